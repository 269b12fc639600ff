"""Images in class folders, with or without train and test folders above them."""

from pathlib import Path
from typing import Literal

import numpy as np

from nearwise.data.dataset import Dataset
from nearwise.data.images.decode import FORMATS, Color, Encoded, Size, decode_images

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
    if len(parts) == 2 and (new := sorted(set(classes["test"]) - set(classes["train"]))):
        raise ValueError(
            f"{parts['test']} has the class folders {', '.join(new)}, which {parts['train']} "
            "lacks. Use the same names in both."
        )
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


def _images(folder: Path) -> list[Path]:
    entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    for path in entries:
        if path.is_dir():
            raise ValueError(
                f"{path} is a folder within a class folder. Put the images of a class directly "
                "into its folder."
            )
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(
                f"{path} is no image ({', '.join(FORMATS)}; known endings: {', '.join(SUFFIXES)}). "
                "Remove it, or hide it with a dot before its name."
            )
    if not entries:
        raise ValueError(f"The class folder {folder} holds no image. Add some, or remove it.")
    return entries
