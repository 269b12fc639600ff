"""Model folders: open one, check a place for a new one, keep two writers apart."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearwise.estimators import AttnKNNClassifier


def open_model(folder: Path) -> "AttnKNNClassifier":
    """Load the classifier of a model folder.

    Parameters
    ----------
    folder : Path
        Written by ``nearwise fit`` or `AttnKNNClassifier.save`.

    Returns
    -------
    model : AttnKNNClassifier
        Ready to predict.

    Raises
    ------
    ValueError
        If there is no such folder, or it is torn, foreign or newer than this library.
    """
    _require_folder(folder)
    from nearwise.estimators import AttnKNNClassifier

    return AttnKNNClassifier.load(folder)


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        seen = "is a file" if folder.exists() else "does not exist"
        raise ValueError(
            f"{folder} {seen}; a model is a folder. Make one with "
            "'nearwise fit DATA --target COLUMN --out MODEL'."
        )


def check_place(folder: Path, *, overwrite: bool) -> None:
    """Raise now what would otherwise fail after training.

    Parameters
    ----------
    folder : Path
        Where a model shall be written.
    overwrite : bool
        Whether a model that is there may be replaced.

    Raises
    ------
    ValueError
        If something is there and may not be replaced.
    OSError
        If nothing can be written there.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a model is a folder. Choose another --out.")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / "manifest.json").is_file():
            raise ValueError(
                f"{folder} holds files that are no nearwise model; nothing was touched. "
                "Choose another --out."
            )
        if not overwrite:
            raise ValueError(
                f"{folder} already holds a model. Choose another --out, or replace it with "
                "--overwrite (the old model stays until the new one is complete)."
            )
    place = folder if folder.is_dir() else folder.absolute().parent
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"x")
    except OSError as error:
        raise OSError(
            f"Cannot write in {place}: {error.strerror or error}. Choose another --out."
        ) from error


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep two processes from changing a model at once, where the later would undo the earlier.

    A hidden file beside the folder is locked while the block runs, and removed. Processes that
    only predict need no lock.

    Parameters
    ----------
    folder : Path
        A model folder.

    Raises
    ------
    ValueError
        If there is no such folder.
    BlockingIOError
        If another process is changing it.
    """
    _require_folder(folder)
    path = folder.absolute().with_name(f".{folder.name}.lock")
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(handle.fileno()).st_nlink:  # its holder removed it after we opened it
                raise BlockingIOError
        except BlockingIOError:
            raise BlockingIOError(
                f"another process is changing {folder}. Try again when it has finished."
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
