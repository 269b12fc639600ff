"""Checks of output paths: never an input of the command, never inside a model folder."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from nearwise.names import did_you_mean
from nearwise.safe_files import standard_output

_SHOWN = 8  # files in a message


def check_output(option: str, out: str | Path | None, reads: Iterable[str | Path] = ()) -> None:
    """Check an output file before any work, so that no existing data is damaged.

    ValueError if `out` is a folder, one of the files in `reads` (files, folders of images, "-"), or
    inside a model folder. Files are compared by real path and by device and inode, so that relative
    names, symbolic links and hard links are resolved. `option` is the name of `out` in messages.
    """
    if out is None:
        return
    if str(out) == "-":
        with standard_output():  # fails early if it is closed
            return
    path = Path(out)
    if path.is_dir():
        raise ValueError(f"{option} {out} is a folder. Name a file.")
    refuse_inside_model(option, path)
    for read in map(str, reads):
        if _is_read(path, read):
            name = "standard input" if read == "-" else read
            raise ValueError(
                f"{option} {out} would replace what is read from {name}; nothing was touched. "
                "Choose another name."
            )


def require_data(data: Iterable[str]) -> None:
    """Raise ValueError for an input that is not there, before anything slow is imported."""
    for path in map(Path, data):
        if str(path) == "-" or path.exists():
            continue
        found = path.parent.iterdir() if path.parent.is_dir() else ()
        beside = sorted(one.name for one in found if not one.name.startswith("."))
        hint = did_you_mean(path.name, beside)
        if not hint and beside:
            hint = f" Its folder holds {', '.join(beside[:_SHOWN])}."
        what = f"No file {path}" if path.suffix else f"There is no file or folder {path}"
        raise ValueError(f"{what}.{hint} Check the path.")


def check_folder(
    option: str, out: Path | None, reads: Iterable[str | Path] = (), *, for_model: bool = False
) -> None:
    """Raise ValueError for an output folder inside a model folder or mixed with inputs.

    This means that `out` is, or is inside, a model folder or an input folder, or contains an input
    file. A model (`for_model`) may replace another one; results may not.
    """
    if out is None:
        return
    if is_model_folder(out) and not for_model:
        raise ValueError(
            f"{option} {out} is a model's folder, which holds nothing but the model; nothing was "
            "touched. Choose another folder."
        )
    refuse_inside_model(option, out)
    real_out = out.resolve()
    for read in map(Path, reads):
        real = read.resolve()
        if read.is_dir() and (real == real_out or real in real_out.parents):
            raise ValueError(
                f"{option} {out} lies in the folder {read}, which is read: it would be taken for "
                "data the next time. Choose a folder outside."
            )
        if read.is_file() and real_out in real.parents:
            raise ValueError(
                f"{option} {out} holds {read}, which is read, and results could replace it. "
                "Choose another folder."
            )


def refuse_inside_model(option: str, path: Path) -> None:
    """Raise ValueError for a path inside a model folder; `option` is its name in messages."""
    for folder in path.resolve().parents:
        if is_model_folder(folder):
            raise ValueError(
                f"{option} {path} lies in the model {folder}, whose folder holds nothing but the "
                "model; nothing was touched. Choose a place outside."
            )


def is_model_folder(folder: Path) -> bool:
    """Whether a folder is managed by the library: a model, a memory, a checkpoint."""
    return b'"nearwise folder"' in _manifest(folder)


def holds_targets(folder: Path) -> bool:
    """Whether a folder holds the models of several targets, without an import of the library."""
    return b'"attention k-NN models of several targets"' in _manifest(folder)


def _manifest(folder: Path) -> bytes:
    """Read the start of a folder's manifest; empty without one."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return b""
    with manifest.open("rb") as file:
        return file.read(4096)


def _is_read(path: Path, read: str) -> bool:
    """Whether a file is one of the inputs."""
    if read == "-":
        try:
            return _same_as(path, os.fstat(0))
        except OSError:  # standard input is closed
            return False
    other = Path(read)
    if not other.is_dir():
        return path.resolve() == other.resolve() or (
            other.exists() and _same_as(path, other.stat())
        )
    if not path.exists():
        return False
    from nearwise.data.images.folder import SUFFIXES

    images = (
        Path(folder) / name
        for folder, _, names in os.walk(other)
        for name in names
        if Path(name).suffix.lower() in SUFFIXES
    )
    return any(image.exists() and _same_as(path, image.stat()) for image in images)


def _same_as(path: Path, other: os.stat_result) -> bool:
    return path.exists() and stat.S_ISREG(other.st_mode) and os.path.samestat(path.stat(), other)
