"""Image rows of commands: files, and folders with one folder per class."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from nearwise.cli.console import say
from nearwise.cli.options import ReadOptions
from nearwise.cli.outputs import is_model_folder
from nearwise.cli.rows.parsing import parse_size

if TYPE_CHECKING:
    import numpy as np

    from nearwise.data import Dataset
    from nearwise.estimators.inputs.images import ImageEncoder

_PARTS = {"train": "training", "test": "test"}
_TARGET = "class"  # name of the labels of a folder


def _check_size(images: "np.ndarray", known: "ImageEncoder", first: Path) -> None:
    if images.shape[1:3] != known.size:
        height, width = known.size
        raise ValueError(
            f"{first} is {images.shape[1]} x {images.shape[2]}, the model was fitted on {height} x "
            f"{width} (height, width). Add --resize to bring images to that size."
        )


def names_images(data: str) -> bool:
    """Whether DATA is a folder, or a file with the suffix of an image."""
    from nearwise.data.images.folder import SUFFIXES

    return Path(data).is_dir() or Path(data).suffix.lower() in SUFFIXES


def read_class_folder(
    data: str,
    part: Literal["train", "test"],
    options: ReadOptions,
    known: "ImageEncoder | None" = None,
) -> "Dataset":
    """Read a folder with one folder per class.

    `part` selects one of a training and a test folder; the other is skipped with a note. Images
    must have the size of the model (`known`) or be resized to it; without a model, photographs of
    mixed sizes are brought to one. ValueError if `data` is no such
    folder, an image is damaged, or sizes or colours differ.
    """
    from nearwise.data import load_image_folder
    from nearwise.data.images.folder import has_test_part
    from nearwise.estimators.inputs.sources import image_options

    folder = Path(data)
    if not folder.is_dir():
        raise ValueError(
            f"{data} is {'a file' if folder.exists() else 'not there'}. Labels come from folders: "
            "give a folder that holds a folder of images for each class."
        )
    _refuse_other_folders(folder)
    split: Literal["train", "test", "all"] = part if has_test_part(folder) else "all"
    reading = image_options(known, resize=options.resize)
    if known is None:
        reading |= {"image_size": parse_size("--image-size", options.size), "color": options.color}
    dataset = load_image_folder(folder, split=split, skip_damaged=options.skip_damaged, **reading)
    if known is not None:
        _check_size(cast("np.ndarray", dataset.X), known, dataset.files[0])
    if split != "all" and not options.quiet:
        other = "test" if part == "train" else "train"
        taken = f"took its {_PARTS[part]} part, {len(dataset)} images"
        say(f"note: {data}: {taken}, and left its {_PARTS[other]} part out.")
    return dataset


def _refuse_other_folders(folder: Path) -> None:
    """Raise ValueError for a model folder, or a folder of tables, with their names."""
    from nearwise.data.tables.files import table_format

    if is_model_folder(folder):
        raise ValueError(
            f"{folder} is the folder of a saved model. Give a table, or a folder of images."
        )
    entries = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    tables = [path for path in entries if path.is_file() and table_format(path)]
    if tables and not any(path.is_dir() for path in entries):
        named = ", ".join(map(str, tables[:5]))
        raise ValueError(f"{folder} is a folder that holds tables. Give one of them: {named}.")


def read_files(
    data: Sequence[str], options: ReadOptions, known: "ImageEncoder"
) -> "tuple[list[Path], np.ndarray]":
    """Read images without labels from files, and from folders of any depth.

    Returns the files, and the images as uint8 (n, height, width, channels). Images must have the
    size of the model (`known`) or be resized to it.
    """
    from nearwise.data.images.folder import decode_files, image_files
    from nearwise.estimators.inputs.sources import image_options

    files: list[Path] = []
    for path in map(Path, data):
        if not path.exists():
            raise ValueError(
                f"There is no file or folder {path}. Give an image, or a folder of them."
            )
        files += image_files(path)
    images, decoded = decode_files(
        files,
        skip_damaged=options.skip_damaged,
        **image_options(known, resize=options.resize),
    )
    files = [files[i] for i in decoded]
    _check_size(images, known, files[0])
    return files, images


def check_target(target: str | None, known: str = _TARGET) -> None:
    """Raise ValueError for a target column with images: the folder is the label."""
    if target not in (None, known, _TARGET):
        raise ValueError(
            f"--target {target}: the label of an image is the name of its folder. Leave it out."
        )
