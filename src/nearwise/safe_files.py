"""Atomic file writes, lock files, standard output, and conversion to JSON values."""

import contextlib
import math
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO


def plain(value: Any) -> Any:
    """Convert numpy scalars, arrays, tuples and non-finite numbers to JSON-ready values.

    Missing values of pandas (NA, NaT) become None, like NaN.
    """
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):  # numpy scalars and arrays, torch tensors
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if type(value).__name__ in ("NAType", "NaTType"):  # not imported here: pandas takes a second
        return None
    return str(value)


_LOCK_TEXT = b"lock of nearwise; it may be deleted when no nearwise command is running\n"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: a kill leaves the old or the new one.

    For a symbolic link its target is replaced. Pipes, devices and files below /dev are written
    directly. OSError if the file cannot be written; an existing file is then unchanged.
    """
    try:
        target = path.resolve()
        # a device cannot be replaced; /dev/stdout may lead to a file that a shell has open
        if path.absolute().is_relative_to("/dev") or (target.exists() and not target.is_file()):
            path.write_bytes(content)
        else:
            with replacing(target) as file:
                file.write(content)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_aside(path: Path, content: bytes) -> None:
    """Write a file as `write_whole` does; the folder is created if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `target` if the block ends without an error.

    Until then it is a temporary file beside `target`; after an error it is removed and `target` is
    unchanged.
    """
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    handle = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "w+b") as file:
            if target.exists():  # keep its permissions
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def open_lock(path: Path) -> int:
    """Open a file to lock, and create it if missing; existing content is unchanged.

    The caller locks and closes the handle. ValueError if the name is a link, a folder, a pipe or a
    device, which another program made.
    """
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError(
            f"{path} is not a plain file, and nearwise did not make it. Nothing was touched: a "
            "lock file goes there while a model or results are written. Move it away."
        )
    while True:
        try:
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # its owner has just removed it
                return os.open(path, flags)
        else:
            os.write(handle, _LOCK_TEXT)
            return handle


def is_own_lock(handle: int) -> bool:
    """Whether the file has the content of `open_lock`; other files must not be removed."""
    return os.pread(handle, len(_LOCK_TEXT) + 1, 0) == _LOCK_TEXT


@contextlib.contextmanager
def standard_output() -> Iterator[TextIO]:
    """Yield standard output and flush it; an OSError names the failure.

    BrokenPipeError if the reader has closed the pipe.
    """
    if sys.stdout is None:  # None if it was closed at the start of Python
        raise OSError("Standard output is closed. Open it, or name a file to write to.")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise OSError(
            error.errno,
            f"Cannot write to standard output: {why}. Open it for writing, free space, or name a "
            "file to write to.",
        ) from error
