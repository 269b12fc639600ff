"""Files that appear whole, lock files, standard output, and values as JSON holds them."""

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
    """Turn numpy scalars, arrays, tuples and non-finite numbers into what JSON holds.

    Gaps of pandas (NA, NaT) become None, as NaN does.
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
    """Write a file so that a kill leaves the old one or the new one, never a part.

    A symbolic link stays one: the file it leads to is replaced. A pipe or a device, and what lies
    below /dev, is written to as it is. OSError if it cannot be written; a file that was there is
    left as it was.
    """
    try:
        target = path.resolve()
        # a device cannot be renamed over; /dev/stdout may lead to a file that a shell holds
        if path.absolute().is_relative_to("/dev") or (target.exists() and not target.is_file()):
            path.write_bytes(content)
        else:
            with replacing(target) as file:
                file.write(content)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_aside(path: Path, content: bytes) -> None:
    """Write a file as `write_whole` does, in a folder that is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `target` once the block ends without an error.

    It lies beside `target` until then, and is removed after an error; `target` stays as it was.
    """
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    handle = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "w+b") as file:
            if target.exists():  # who may read it stays as it was
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def open_lock(path: Path) -> int:
    """Open a file to lock, and make it if it is not there; what is there stays as it is.

    The caller locks and closes the handle. ValueError if a link, a folder, a pipe or a device has
    that name: another program made it.
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
            with contextlib.suppress(FileNotFoundError):  # its holder removed it just now
                return os.open(path, flags)
        else:
            os.write(handle, _LOCK_TEXT)
            return handle


def is_own_lock(handle: int) -> bool:
    """Whether `open_lock` made the file that it opened; one that was there is not removed."""
    return os.pread(handle, len(_LOCK_TEXT) + 1, 0) == _LOCK_TEXT


@contextlib.contextmanager
def standard_output() -> Iterator[TextIO]:
    """Give standard output to write to, and flush it; an OSError names what could not be written.

    BrokenPipeError if its reader has gone.
    """
    if sys.stdout is None:  # so Python leaves it where it was closed from the start
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
