"""Model folders: opening, checks of new paths, exclusion of a second writer."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nearwise.cli.console import load_library
from nearwise.cli.outputs import holds_targets, is_model_folder, refuse_inside_model
from nearwise.names import did_you_mean
from nearwise.safe_files import is_own_lock, open_lock

if TYPE_CHECKING:
    from nearwise.estimators.opening import Estimator


def open_model(folder: Path, store: str | None = None, *, several: bool = False) -> "Estimator":
    """Load the model of a folder; ValueError if it is missing, torn, foreign or newer.

    `store` is the location of its memory given by the user; `several` as in `require_model`.
    """
    require_model(folder, several=several)
    load_library()
    from nearwise.estimators.opening import load_any

    return load_any(folder, trusted_store=store)


def require_model(folder: Path, *, several: bool = False) -> None:
    """Raise a ValueError with advice if the model folder is missing.

    A folder of several targets is refused too, unless the command supports `several`.
    """
    if not several and holds_targets(folder):
        from nearwise.cli.several import refuse_targets

        refuse_targets(folder)
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        around = folder.parent.glob("*/manifest.json") if folder.parent.is_dir() else ()
        hint = did_you_mean(folder.name, sorted(found.parent.name for found in around))
        raise ValueError(
            f"{folder} {problem}; a model is a folder.{hint} Make one with "
            "'nearwise fit DATA --target COLUMN --out MODEL'."
        )


def check_out(folder: Path, *, overwrite: bool | None, kind: str | None = None) -> None:
    """Check the output folder before training, rather than fail afterwards.

    `overwrite` is None for commands without this option; `kind` is the kind of the new model's
    folder, None if not known yet.

    ValueError if existing content may not be replaced, OSError if the folder is not writable.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a model is a folder. Choose another --out.")
    refuse_inside_model("--out", folder)
    if folder.is_dir() and any(folder.iterdir()):
        from nearwise.estimators.storage.class_parts import KIND
        from nearwise.estimators.storage.persistence import VERSION, parts_of
        from nearwise.estimators.storage.targets_folder import KIND as TARGETS
        from nearwise.memory import StoreError, check_writable

        try:
            if kind is None:
                kind = TARGETS if holds_targets(folder) else KIND
                if is_model_folder(folder) and kind == KIND:
                    kind = parts_of(folder).KIND
            is_model = check_writable(folder, kind=kind, format_version=VERSION)
        except StoreError as error:
            raise ValueError(f"{error} Nothing was touched. Choose another --out.") from error
        if is_model and not overwrite:
            replace = (
                ", or replace it with --overwrite (the old model stays until the new one is "
                "complete)"
            )
            raise ValueError(
                f"{folder} already holds a model. Choose another --out"
                f"{'' if overwrite is None else replace}."
            )
    parent = folder if folder.is_dir() else folder.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=parent) as probe:
            probe.write(b"x")
    except OSError as error:
        raise OSError(
            f"Cannot write in {parent}: {error.strerror or error}. Choose another --out."
        ) from error


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Lock a folder against other writers, since one could overwrite the other's changes.

    A hidden file beside the folder (or its path; a symbolic link to it has the same lock) is locked
    while the block runs, and removed if it was created here. Processes that only predict need no
    lock. BlockingIOError if another process is changing the folder, ValueError if the lock's name
    is not a file.
    """
    with _locked(folder, fcntl.LOCK_EX):
        yield


@contextmanager
def in_place(folder: Path) -> Iterator[None]:
    """Protect a model from replacement while the block changes it; raises as `sole_writer`.

    Processes that change it exclude each other by the lock in its folder. Without write access
    beside the folder there is no protection; `LiveModel` detects a replacement.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(_locked(folder, fcntl.LOCK_SH))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        yield


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    real = folder.resolve()
    path = real.with_name(f".{real.name}.lock")
    handle = _lock(path, kind, folder)
    try:
        yield
    finally:
        with suppress(BlockingIOError):  # shared with others
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_own_lock(handle):
                path.unlink(missing_ok=True)
        os.close(handle)


def _lock(path: Path, kind: int, folder: Path) -> int:
    while True:
        handle = open_lock(path)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise BlockingIOError(
                f"another process is changing {folder}. Try again when it has finished."
            ) from None
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # its holder removed it after the open


@contextmanager
def new_model(folder: Path, *, overwrite: bool | None, kind: str | None = None) -> Iterator[None]:
    """Check the path of a model, and lock it for this process while the block runs.

    Other writers, also of rows to the old model, get an error at once, since their changes would be
    lost with the replacement. Raises as `check_out` and `sole_writer`.
    """
    check_out(folder, overwrite=overwrite, kind=kind)
    with sole_writer(folder):
        check_out(folder, overwrite=overwrite, kind=kind)  # another fit may have finished
        yield
