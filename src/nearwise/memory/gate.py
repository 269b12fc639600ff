"""Safe access to folders of uncertain origin: every file of them is opened here.

A link in such a folder could lead anywhere, a pipe or a device may never end, and libraries open
further files by themselves: SQLite replays a ``-journal`` beside a database and deletes the file
named in it. So only regular files inside the folder are opened, and a path is passed to another
library only after `check_database` or `check_tree` has checked all files that it would open.
Other files (.DS_Store, README.md) are ignored.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

Reason = Literal[
    "missing", "foreign", "torn", "newer", "older", "invalid", "changed", "untrusted", "forked"
]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_FILE = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)  # a link, no folder, a socket


class StoreError(ValueError):
    """A folder that cannot be read or must not be overwritten.

    Attributes
    ----------
    reason : str
        "missing", "foreign", "newer" or "older" folder. "torn": its bytes differ from the written
        ones. "invalid": the bytes are as written, but the content is impossible. "changed":
        another process has written it since. "untrusted": it refers to an outside place that the
        caller has not named. "forked": it was opened before this process was forked.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@contextlib.contextmanager
def opened(folder: str | os.PathLike[str], name: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file of a folder for reading; yield the file and its size in bytes.

    Parameters
    ----------
    folder : path
        Path given by the user; it may be a link.
    name : str
        Relative to `folder`, with "/" between folders; none of them may be a link.

    Raises
    ------
    StoreError
        If it is a link, a folder, a pipe or a device, or lies outside `folder`.
    FileNotFoundError
        If the file is missing.
    """
    parents = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parents):
        raise StoreError("foreign", f"{name!r} is no file inside {folder}.")
    last = parents.pop()
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            for part in parents:
                outer, handle = handle, os.open(part, _READ | os.O_DIRECTORY, dir_fd=handle)
                os.close(outer)
            outer, handle = handle, os.open(last, _READ, dir_fd=handle)
            os.close(outer)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise _not_regular(Path(folder, name)) from None
            raise
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise _not_regular(Path(folder, name))
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file, found.st_size
    finally:
        os.close(handle)


def subfolder(folder: str | os.PathLike[str], name: str) -> Path:
    """Return the path of a subfolder; StoreError unless it is a real folder."""
    path = Path(folder, name)
    if not stat.S_ISDIR(_mode(path)):
        raise StoreError(
            "foreign", f"{path} is a link, or no folder. Restore the folder from a copy."
        )
    return path


def check_tree(
    folder: str | os.PathLike[str], known: re.Pattern[str] | None = None
) -> dict[str, int]:
    """List all files of a folder tree, for a library that opens them by itself.

    Parameters
    ----------
    folder : path
    known : pattern, optional
        Allowed names (relative, with "/" between folders). Default: any.

    Returns
    -------
    sizes : dict of str to int
        Bytes of each file, by name, in the order of the names.

    Raises
    ------
    StoreError
        If the tree has a link, a pipe, a device or a name that `known` does not match.
    """
    sizes, folders = {}, [""]
    while folders:
        inside = folders.pop()
        with os.scandir(Path(folder, inside)) as entries:
            for entry in entries:
                name = f"{inside}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                    continue
                found = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode):
                    raise _not_regular(Path(folder, name))
                if known is not None and not known.fullmatch(name):
                    raise StoreError("foreign", f"{Path(folder, name)} is no file of nearwise.")
                sizes[name] = found.st_size
    return dict(sorted(sizes.items()))


def check_database(path: Path, *, to_write: bool = False) -> None:
    """Raise StoreError for unsafe files beside a SQLite database (nearwise uses WAL mode).

    Parameters
    ----------
    path : path
        Database file; it may be missing.
    to_write : bool, default=False
        Whether SQLite is to write to it. A file with a second hard link is then refused: the
        other name may be outside the folder.

    Raises
    ------
    StoreError
        If there is a rollback journal, a log without its database, or no regular file.
    """
    rollback = path.with_name(f"{path.name}-journal")
    if os.path.lexists(rollback):
        raise StoreError(
            "foreign",
            f"{rollback} was not written by nearwise, and SQLite would follow what it says, which "
            "may remove files elsewhere. Do not use this folder unless you know where it comes "
            "from; restore it from a copy.",
        )
    for ending in ("", "-wal", "-shm"):
        file = path.with_name(path.name + ending)
        mode = _mode(file)
        if mode and not stat.S_ISREG(mode):
            raise _not_regular(file)
        if mode and ending == "-wal" and not _mode(path):
            raise StoreError(
                "torn", f"{path} is missing, and its log {file.name} is there. Restore both."
            )
        if mode and to_write and os.lstat(file).st_nlink > 1:
            raise StoreError(
                "foreign",
                f"{file} has a second name (a hard link), and a change would be made there too. "
                "Copy the folder, and change the copy.",
            )


@contextlib.contextmanager
def taken_apart(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise every error of decoding a folder's content as a `StoreError`."""
    try:
        yield
    except (StoreError, MemoryError, ImportError):
        raise
    except Exception as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise StoreError(
            "invalid",
            f"{path} holds what nearwise never writes: {what.rstrip('.')}. Restore it from a copy.",
        ) from error


def _mode(path: Path) -> int:
    """Type and mode of a path, links not followed; 0 if it does not exist."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _not_regular(path: Path) -> StoreError:
    return StoreError(
        "foreign",
        f"{path} is a link, a folder, a pipe or a device; nearwise writes and reads regular files "
        "only. Restore the folder from a copy.",
    )
