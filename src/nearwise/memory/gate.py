"""The gate: files of a folder that may come from elsewhere are opened here, and only here.

Such a folder is data. A link in it could lead anywhere, a pipe or a device would never end, and
libraries open files that nobody named: SQLite plays back a ``-journal`` beside a database, and
deletes the file that this names. So regular files are opened, inside the folder, and nothing else;
a library is given a path only after `check_database` or `check_tree` has seen what it would open.
Other names (.DS_Store, README.md) are left alone: nothing opens them.
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
    """A folder cannot be read or must not be written over.

    Attributes
    ----------
    reason : str
        What is wrong with the folder: "missing", "foreign", "newer" or "older". "torn": its bytes
        are not those that were written. "invalid": they are, and their content is impossible.
        "changed": another process has written it since. "untrusted": it names a place outside it
        that the caller does not name. "forked": it was opened before this process was forked.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@contextlib.contextmanager
def opened(folder: str | os.PathLike[str], name: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file of a folder for reading; give it and its size in bytes.

    Parameters
    ----------
    folder : path
        As the user named it; it may be a link.
    name : str
        Relative to it, with "/" between folders, none of which may be a link.

    Raises
    ------
    StoreError
        If it is a link, a folder, a pipe or a device, or lies outside.
    FileNotFoundError
        If it is not there.
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
    """Give the path of a folder in a folder; StoreError if a link or something else is there."""
    path = Path(folder, name)
    if not stat.S_ISDIR(_mode(path)):
        raise StoreError(
            "foreign", f"{path} is a link, or no folder. Restore the folder from a copy."
        )
    return path


def check_tree(
    folder: str | os.PathLike[str], known: re.Pattern[str] | None = None
) -> dict[str, int]:
    """List the files of a folder and of those inside, for a library that opens them by itself.

    Parameters
    ----------
    folder : path
    known : pattern, optional
        All names (relative, with "/" between folders) must match it. Default: any.

    Returns
    -------
    sizes : dict of str to int
        Bytes of each file, by name, in the order of the names.

    Raises
    ------
    StoreError
        If there is a link, a pipe or a device among them, or another name.
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
    """Refuse what SQLite would open beside a database; nearwise has its databases in WAL mode.

    Parameters
    ----------
    path : path
        Of the database, which may be missing.
    to_write : bool, default=False
        Whether SQLite is to write to it. A file with a second name is refused then: it may be one
        outside the folder.

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
    """Make whatever goes wrong with a folder's content a `StoreError`: it may be anything."""
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
    """Type and mode of what has a name, links not followed; 0 where nothing has it."""
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
