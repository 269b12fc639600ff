"""Images in class folders, with or without train and test folders above them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from nearwise.data.dataset import Dataset
from nearwise.data.images.decode import (
    FORMATS,
    Color,
    Encoded,
    Images,
    Size,
    decode_images,
)

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
TEST_NAMES = ("test", "val", "valid", "validation")


def load_folder(
    folder: Path,
    *,
    split: Literal["train", "test", "all"] = "all",
    image_size: Size | None = None,
    color: Color | None = None,
) -> Dataset:
    """Load images from a folder with a folder for each class.

    The class folders may lie in a folder "train" and one of "test", "val", "valid" or
    "validation"; the latter is then the test part. Classes and files come in the order of their
    names, the training part first. Hidden files and folders (a dot first) are skipped. Options
    are those of `load_images`.

    Raises
    ------
    ValueError
        If there is no class folder, one is empty or holds something other than images, an image
        is damaged, or images are not alike; names the file or folder.
    """
    parts = _parts(folder)
    if split != "all":
        if "test" not in parts:
            raise ValueError(
                f"{folder} has no folders train and test, so no split={split!r}. Leave it out."
            )
        parts = {split: parts[split]}
    classes = {part: _classes(place) for part, place in parts.items()}
    _refuse_new_classes(parts, classes)
    files, labels, n_train = [], [], 0
    for part, named in classes.items():
        for name, place in named.items():
            images = _images(place)
            files += images
            labels += [name] * len(images)
        n_train = n_train if part == "test" else len(files)
    X = decode_images(
        (Encoded(str(file), file) for file in files),
        len(files),
        image_size=image_size,
        color=color,
    )
    return Dataset(
        folder.resolve().name,
        X,
        np.array(labels),
        "class",
        "images",
        str(folder),
        test_index=np.arange(n_train, len(files), dtype=np.int64) if len(parts) == 2 else None,
        files=tuple(files),
    )


def list_folder(folder: Path) -> tuple[dict[str, tuple[list[Path], list[int]]], list[str]]:
    """List the images of a folder of class folders without decoding them.

    Parameters
    ----------
    folder : Path
        As for `load_folder`.

    Returns
    -------
    parts : dict of str to (list of Path, list of int)
        "train" and "test", or "all": files in the order of classes and names, and class numbers.
    classes : list of str
        Names of the classes.

    Raises
    ------
    ValueError
        As `load_folder`, but for damaged or unlike images.
    """
    parts = _parts(folder)
    classes = {part: _classes(place) for part, place in parts.items()}
    _refuse_new_classes(parts, classes)
    names = sorted(classes["train"] if "train" in classes else classes["all"])
    listed: dict[str, tuple[list[Path], list[int]]] = {}
    for part, named in classes.items():
        files, codes = listed.setdefault(part, ([], []))
        for name, place in named.items():
            images = _images(place)
            files += images
            codes += [names.index(name)] * len(images)
    return listed, names


def image_files(source: Path | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """List the images that a folder holds directly, or check a list of image files.

    Raises
    ------
    FileNotFoundError
        If there is no such folder or file.
    ValueError
        If there are no images, or something in the folder or list is none.
    """
    if isinstance(source, Path) and source.is_dir():
        if inner := _folders(source):
            raise ValueError(
                f"{inner[0]} is a folder within {source}. Put the images directly into one folder, "
                "or give a list of files."
            )
        return _images(source, "folder")
    files = [source] if isinstance(source, Path) else [Path(file) for file in source]
    if not files:
        raise ValueError("The list of image files is empty. Give at least one.")
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise ValueError(
                f"{file} is no image (known endings: {', '.join(SUFFIXES)}). Leave it out."
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
        A folder that holds images directly, in the order of their names; one image; or several.
    image_size, color
        As for `load_images`.

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
    one = isinstance(source, str | os.PathLike)
    files = image_files(Path(source) if one else source)  # type: ignore[arg-type]
    return decode_images(
        (Encoded(str(file), file) for file in files),
        len(files),
        image_size=image_size,
        color=color,
    )


def has_class_folders(folder: Path) -> bool:
    """Whether a folder holds folders, as a data set with labels does."""
    return bool(_folders(folder))


def _parts(folder: Path) -> dict[str, Path]:
    """Return the folders that hold class folders: "all", or "train" and perhaps "test"."""
    names = [place.name for place in _folders(folder)]
    tests = [name for name in names if name.lower() in TEST_NAMES]
    trains = [name for name in names if name.lower() == "train"]
    if len(trains) != 1 or len(trains) + len(tests) != len(names):
        return {"all": folder}
    if not _folders(folder / trains[0]):  # a class of trains
        return {"all": folder}
    if len(tests) > 1:
        raise ValueError(
            f"{folder} holds {', '.join(tests)}: which is the test part? Keep one, and move the "
            "other away or into train."
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
    loose = [p for p in sorted(folder.iterdir()) if p.is_file() and p.suffix.lower() in SUFFIXES]
    places = _folders(folder)
    if not places:
        seen = f"{len(loose)} images" if loose else "no folders"
        raise ValueError(
            f"{folder} has no class folders: it holds {seen}. Put the images of each class in a "
            f"folder with the name of the class, as in {folder / 'cat' / '1.png'}."
        )
    if loose:
        raise ValueError(
            f"{loose[0]} lies beside the class folders ({len(loose)} such images), so its class "
            "is not known. Move it into its class folder, or remove it."
        )
    return {place.name: place for place in places}


def _images(folder: Path, what: str = "class folder") -> list[Path]:
    entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    for path in entries:
        if path.is_dir():
            raise ValueError(
                f"{path} is a folder within a {what}. Put the images of a class directly "
                "into its folder."
            )
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(
                f"{path} is no image ({', '.join(FORMATS)}; known endings: {', '.join(SUFFIXES)}). "
                "Remove it, or hide it with a dot before its name."
            )
    if not entries:
        raise ValueError(f"The {what} {folder} holds no image. Add some, or remove it.")
    return entries
