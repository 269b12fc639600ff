"""Images in class folders, with optional train and test folders above them."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from nearwise.data.dataset import Dataset
from nearwise.data.images.decode import (
    FORMATS,
    Color,
    Encoded,
    Images,
    Size,
    damage_in_words,
    decode_images,
    decode_sound,
)
from nearwise.data.images.mixed import common_form
from nearwise.shown import PICTURE_SUFFIXES
from nearwise.warn import warn_user

SUFFIXES = PICTURE_SUFFIXES
TEST_NAMES = ("test", "val", "valid", "validation")
_NAMED = 5  # files named in a warning

Split = Literal["train", "test", "all"]
Listed = tuple[list[Path], list[int]]


def load_image_folder(
    folder: str | os.PathLike[str],
    *,
    split: Split = "all",
    image_size: Size | None = None,
    color: Color | None = None,
    skip_damaged: bool = False,
    mixed_size: Size | None = None,
) -> Dataset:
    """Load images from a folder with one folder per class.

    The class folders may lie in a folder "train" and one of "test", "val", "valid" or
    "validation"; the latter is then the test part. Classes and files are sorted by name, the
    training part first. Hidden files and folders (with a leading dot) are skipped; so are other
    files than images, and links to images of the same class folder, with a warning.

    Parameters
    ----------
    folder : path
    split : {"all", "train", "test"}, default="all"
        Part to load.
    image_size : int or (int, int), optional
        Target height and width; the aspect ratio is not kept. One number means a square. Default:
        all images must have one size.
    color : {"rgb", "grey"}, optional
        Target color mode. Default: all images must have the same mode.
    skip_damaged : bool, default=False
        Whether to skip unreadable images, with a warning that names them, instead of raising.
    mixed_size : int or (int, int), optional
        `image_size` of photographs of mixed sizes, if it is not given: used with a warning if
        sizes differ and most images are above 64 pixels. Grey and color photographs then become
        color. Default: unlike images raise.

    Returns
    -------
    dataset : Dataset
        Data set of kind "images"; X is a uint8 array of shape (n_rows, height, width, channels).
        `test_index` is set if both parts were loaded.

    Raises
    ------
    ValueError
        If there is no class folder, one is empty, symbolic links put one image into two, an image
        is damaged and `skip_damaged` is not set, or images are not alike; names the file or folder.
    ImportError
        If the extra "images" is missing.

    Warns
    -----
    UserWarning
        If files of the folder are skipped, or photographs are brought to `mixed_size` or color.
    """
    if split not in get_args(Split):
        raise ValueError(f"split={split!r} is not one of {', '.join(get_args(Split))}.")
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder. Pass one with a folder for each class.")
    listed, names = list_folder(folder)
    if split != "all":
        if "test" not in listed:
            raise ValueError(
                f"{folder} has no folders train and test, so no split={split!r}. Leave it out."
            )
        listed = {split: listed[split]}
    files = [file for part, _ in listed.values() for file in part]
    codes = np.array([code for _, part in listed.values() for code in part], dtype=np.int64)
    tested = np.array([part == "test" for part, (paths, _) in listed.items() for _ in paths])
    if mixed_size is not None:
        image_size, color = common_form(files, str(folder), image_size, color, mixed_size)
    X, read = decode_files(files, image_size=image_size, color=color, skip_damaged=skip_damaged)
    root = folder.resolve().name
    return Dataset(
        root,
        X,
        np.array(names)[codes[read]],
        "class",
        "images",
        str(folder),
        test_index=np.flatnonzero(tested[read]) if len(listed) == 2 else None,
        files=tuple(files[i] for i in read),
        row_names=tuple(f"{root}/{files[i].relative_to(folder).as_posix()}" for i in read),
    )


def list_folder(folder: Path) -> tuple[dict[str, Listed], list[str]]:
    """List the images of a folder of class folders without decoding them.

    Returns files sorted by class and name with their class numbers, for "train" and "test" or for
    "all", and the class names. Warns if other files than images, or links to images of the same
    folder, are skipped.
    """
    parts = _parts(folder)
    classes = {part: _classes(directory) for part, directory in parts.items()}
    _refuse_new_classes(parts, classes)
    names = sorted(classes["train"] if "train" in classes else classes["all"])
    listed: dict[str, Listed] = {}
    others: list[Path] = []
    again: list[Path] = []
    known: dict[str, Path] = {}
    for part, named in classes.items():
        files, codes = listed.setdefault(part, ([], []))
        for name, directory in named.items():
            images, strange = _images(directory)
            repeated = set(_repeated(images, known))
            images = [path for path in images if path not in repeated]
            files += images
            codes += [names.index(name)] * len(images)
            others += strange
            again += sorted(repeated)
    _tell_others(folder, others)
    _tell_again(folder, again)
    return listed, names


def has_test_part(folder: Path) -> bool:
    """Whether the class folders are inside a training and a test folder."""
    return "test" in _parts(folder)


def decode_files(
    files: Sequence[Path],
    *,
    image_size: Size | None = None,
    color: Color | None = None,
    skip_damaged: bool = False,
) -> tuple[Images, list[int]]:
    """Decode image files, optionally skipping unreadable ones with a warning.

    Returns uint8 (n_kept, height, width, channels), and the positions of these images in `files`.
    Options as in `load_image_folder`.
    """
    encoded = (Encoded(str(file), file) for file in files)
    sound = decode_sound(encoded, len(files), image_size=image_size, color=color)
    if sound.damaged:
        damage = damage_in_words(sound.damaged, len(files))
        if not skip_damaged:
            raise ValueError(
                f"{damage} Or leave such files out: skip_damaged=True (--skip-damaged)."
            )
        if not sound.kept:
            raise ValueError(f"No image is left: {damage}")
        warn_user(f"{damage} {len(sound.damaged)} of {len(files)} left out.")
    return sound.X, sound.kept


def image_files(source: Path | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """List the images in a folder and the folders within it, or check a list of image files.

    Symbolic links are followed, and each image of a folder is listed once, even with several links
    to it. Warns if other files than images, or repeated links, are skipped.
    """
    if isinstance(source, Path) and source.is_dir():
        found, again = _everything(source)
        images, others = _apart(sorted(found))
        if not images:
            raise ValueError(f"The folder {source} holds no image{_but(others)}. Add some.")
        _tell_others(source, others)
        _tell_again(source, again)
        return images
    files = [source] if isinstance(source, Path) else [Path(file) for file in source]
    if not files:
        raise ValueError("The list of image files is empty. Give at least one.")
    for file in files:
        if not _is_image(file):
            raise ValueError(
                f"{file} is not an image (known endings: {', '.join(SUFFIXES)}). Leave it out."
            )
        if not file.is_file():
            raise FileNotFoundError(f"There is no image {file}. Check the path.")
    return files


def read_images(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    image_size: Size | None = None,
    color: Color | None = None,
) -> Images:
    """Read image files without labels into one array.

    Parameters
    ----------
    source : path or sequence of paths
        A folder, one image file, or several. Images of a folder and its subfolders are sorted by
        name.
    image_size, color
        As for `load_image_folder`.

    Returns
    -------
    images : uint8 ndarray of shape (n, height, width, channels)

    Raises
    ------
    FileNotFoundError
        If there is no such folder or file.
    ValueError
        If there are no images, one is damaged, or they are not alike; names the file.
    """
    is_path = isinstance(source, str | os.PathLike)
    files = image_files(Path(source) if is_path else source)  # type: ignore[arg-type]
    return decode_images(
        (Encoded(str(file), file) for file in files),
        len(files),
        image_size=image_size,
        color=color,
    )


def _parts(folder: Path) -> dict[str, Path]:
    """Return the parent folders of the class folders: "all", or "train" and maybe "test"."""
    names = [directory.name for directory in _folders(folder)]
    tests = [name for name in names if name.lower() in TEST_NAMES]
    trains = [name for name in names if name.lower() == "train"]
    if len(trains) != 1 or len(trains) + len(tests) != len(names):
        return {"all": folder}
    if not _folders(folder / trains[0]):  # "train" is a class
        return {"all": folder}
    if len(tests) > 1:
        raise ValueError(
            f"{folder} holds {', '.join(tests)}: which is the test part? Give the folders one by "
            f"one: {folder / trains[0]} to learn from, {folder / tests[0]} to measure. Or keep one "
            "of them, and move the other away or into train."
        )
    parts = {"train": folder / trains[0]}
    return parts | {"test": folder / tests[0]} if tests else parts


def _refuse_new_classes(parts: dict[str, Path], classes: dict[str, dict[str, Path]]) -> None:
    if len(parts) == 2 and (new := sorted(set(classes["test"]) - set(classes["train"]))):
        raise ValueError(
            f"{parts['test']} has the class folders {', '.join(new)}, which {parts['train']} "
            "lacks. Use the same names in both."
        )


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _classes(folder: Path) -> dict[str, Path]:
    loose = [p for p in sorted(folder.iterdir()) if p.is_file() and _is_image(p)]
    places = _folders(folder)
    if not places:
        content = f"{len(loose)} images" if loose else "no folders"
        raise ValueError(
            f"{folder} has no class folders: it holds {content}. Put the images of each class in a "
            f"folder with the name of the class, as in {folder / 'cat' / '1.png'}."
        )
    if loose:
        raise ValueError(
            f"{loose[0]} lies beside the class folders ({len(loose)} such images), so its class "
            "is not known. Move it into its class folder, or remove it."
        )
    return {directory.name: directory for directory in places}


def _images(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the images in a class folder, and its other files."""
    entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    inner = next((path for path in entries if path.is_dir()), None)
    if inner is not None:
        raise ValueError(
            f"{inner} is a folder within a class folder. Put the images of a class directly into "
            "its folder."
        )
    images, others = _apart(entries)
    if not images:
        raise ValueError(
            f"The class folder {folder} holds no image{_but(others)}. Add some, or remove it."
        )
    return images, others


def _repeated(images: Sequence[Path], known: dict[str, Path]) -> list[Path]:
    """Return links to images of the same class folder, and add its images to `known`.

    `known` holds the images of the earlier class folders, by their real paths. ValueError if an
    image is in another class folder as well.
    """
    repeated = []
    for path in sorted(images, key=Path.is_symlink):  # prefer a file to a link to it
        first = known.setdefault(os.path.realpath(path), path)
        if first is path:
            continue
        if first.parent != path.parent:
            raise ValueError(
                f"{first} and {path} are one image, reached by a symbolic link. Its class, or its "
                "part, is not clear: remove one of them."
            )
        repeated.append(path)
    return repeated


def _everything(folder: Path) -> tuple[list[Path], list[Path]]:
    """List the files below a folder, each once, and repeated links to them.

    Links are followed last, so that files in the folder itself keep their names. Hidden files and
    folders are skipped.
    """
    files: list[Path] = []
    again: list[Path] = []
    visited: set[str] = set()
    waiting, links = [folder], list[Path]()
    while waiting or links:
        path = waiting.pop() if waiting else links.pop(0)
        real = os.path.realpath(path)
        if real in visited:
            again.append(path)
            continue
        visited.add(real)
        if not path.is_dir():
            files.append(path)
            continue
        for inside in sorted(path.iterdir()):
            if not inside.name.startswith("."):
                (links if inside.is_symlink() else waiting).append(inside)
    return files, again


def _apart(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return images and other files."""
    return [p for p in paths if _is_image(p)], [p for p in paths if not _is_image(p)]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _but(others: Sequence[Path]) -> str:
    kinds = Counter(path.suffix.lower() or path.name for path in others)
    listed = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(_NAMED))
    return f" ({', '.join(FORMATS)}) but other files: {listed}" if others else ""


def _tell_others(folder: Path, others: Sequence[Path]) -> None:
    """Warn about skipped files that are not images."""
    if not others:
        return
    single = len(others) == 1
    count = "1 file whose ending is" if single else f"{len(others)} files whose endings are"
    warn_user(
        f"{folder}: left out {count} none of {', '.join(SUFFIXES)}: {_named(folder, others)}."
    )


def _tell_again(folder: Path, again: Sequence[Path]) -> None:
    """Warn about skipped links to files that are listed already."""
    if again:
        warn_user(
            f"{folder}: each image is read once; left out what symbolic links lead to again: "
            f"{_named(folder, again)}."
        )


def _named(folder: Path, paths: Sequence[Path]) -> str:
    named = ", ".join(str(path.relative_to(folder)) for path in paths[:_NAMED])
    return f"{named} and {len(paths) - _NAMED} more" if len(paths) > _NAMED else named
