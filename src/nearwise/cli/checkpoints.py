"""Folder of the training checkpoints of ``nearwise fit``, beside its model."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearwise.cli.console import say

# This file marks a folder of checkpoints; folders without it are never removed.
_MARK = "made-by-nearwise-fit.txt"
_MARK_TEXT = "Training checkpoints of 'nearwise fit'. They go when the model is saved.\n"
_FIT = re.compile(r"fit-[0-9a-f]+")


def checkpoint_folder(out: Path) -> Path:
    """Return the folder of the checkpoints of a fit with the output `out`."""
    folder = out if out.name not in ("", "..") else out.resolve()
    return folder.with_name(f"{folder.name}.checkpoint")


def check_checkpoints(out: Path) -> None:
    """Raise ValueError if the path of the checkpoints is taken by something else."""
    folder = checkpoint_folder(out)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        found = "a symbolic link" if folder.is_symlink() else "a file"
    elif folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        found = "a folder that 'nearwise fit' did not make"
    else:
        return
    raise ValueError(
        f"{folder} is {found}, and training checkpoints would go there; nothing was touched. Move "
        "it away, or choose another --out."
    )


@contextmanager
def checkpoints(out: Path, *, resume: bool) -> Iterator[Path]:
    """Keep training checkpoints beside a model until it is complete.

    Checkpoints of an earlier run are used (`resume`) or removed. The yielded folder is removed if
    the block ends without an exception, except for foreign files.
    """
    check_checkpoints(out)
    folder = checkpoint_folder(out)
    if not resume:
        _remove_checkpoints(folder)
    before = fits_in(folder)
    if resume and not before:
        say(f"note: nothing to resume at {folder}; starting afresh.")
    folder.mkdir(exist_ok=True)
    (folder / _MARK).write_text(_MARK_TEXT, encoding="utf-8")
    try:
        yield folder
    except BaseException:
        if not fits_in(folder):  # there is no checkpoint to resume
            _remove_checkpoints(folder)
        raise
    if before and fits_in(folder) - before:  # one folder per rows and options
        say(f"note: {folder} was made from other rows or options; this fit started afresh.")
    _remove_checkpoints(folder)


def fits_in(folder: Path) -> set[str]:
    """Names of the checkpoint folders of fits."""
    found = folder.iterdir() if folder.is_dir() else ()
    return {path.name for path in found if _FIT.fullmatch(path.name) and not path.is_symlink()}


def _remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints; with foreign files the folder stays."""
    if not (folder / _MARK).is_file():
        return
    for name in fits_in(folder):
        shutil.rmtree(folder / name, ignore_errors=True)
    left = sorted(path.name for path in folder.iterdir() if path.name != _MARK)
    if left:
        say(f"note: {folder} holds {', '.join(left[:5])}, which no fit wrote; it was left there.")
        return
    (folder / _MARK).unlink()
    folder.rmdir()
