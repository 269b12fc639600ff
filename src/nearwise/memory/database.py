"""SQLite databases of uncertain origin: read from a copy, written only in place.

SQLite opens, creates and changes further files beside a database, even when it only reads.
So a database that this process only reads is copied to a private folder, together with its
write-ahead log, and the copy is opened: the original files stay unchanged byte by byte, and other
processes can go on writing.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nearwise.memory.gate import StoreError, check_database, opened

_LOG_HEADER = 32  # bytes; holds two random numbers that change whenever the log restarts
_TICK = 0.02  # seconds; two writes within it may have the same modification time
_FOLDER = "nearwise-copy-"  # prefix of the private folders
_PATIENCE = 10.0  # seconds of retries while another process writes
_SETTINGS = ("trusted_schema = OFF", "cell_size_check = ON", "temp_store = MEMORY")


class _Stamp(NamedTuple):
    """Node, bytes and time (ns) of a database and of its log; None for a missing file."""

    database: tuple[int, int, int] | None
    log: tuple[int, int, int] | None

    def settled(self) -> bool:
        """Whether any later write would change the stamp: file times have a coarse resolution."""
        times = [part[2] for part in self if part is not None]
        return not 0 <= time.time_ns() - max(times, default=0) < _TICK * 1e9


# Closing a file releases all locks of the process on it, including SQLite's. So a database that
# is open in place is not opened for a copy, and vice versa.
_lock = threading.RLock()
_writers: "weakref.WeakSet[Database]" = weakref.WeakSet()
_of_others: list[sqlite3.Connection] = []  # inherited by a fork; freeing closes them


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _writers.clear()


os.register_at_fork(after_in_child=_after_fork)


class Database:
    """A database file with cached connections; `close` releases them.

    Parameters
    ----------
    path : path
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: sqlite3.Connection | None = None
        self._opened: tuple[int, int, int] = (0, 0, 0)  # process, device, node of the writer's file
        self._copy: sqlite3.Connection | None = None
        self._copied: tuple[int, _Stamp | None] = (0, None)  # process, and copied state

    @property
    def is_there(self) -> bool:
        """Whether the file exists and is not empty; StoreError if `check_database` refuses it."""
        check_database(self.path)
        try:
            return os.lstat(self.path).st_size > 0
        except FileNotFoundError:
            return False

    @property
    def is_writing(self) -> bool:
        """Whether a transaction is open."""
        return self._writer is not None and self._writer.in_transaction

    def close(self) -> None:
        """Close both connections."""
        if self._copy is not None:
            self._copy = None
            self._end_copy()
        if self._writer is not None:
            self._writer = None
            with _lock:
                _writers.discard(self)
                self._end_writer()

    def writer(self) -> sqlite3.Connection:
        """Return a read-write connection to the present file, which must be a database.

        Raises
        ------
        StoreError
            If `check_database` refuses the file, or it is not a database in WAL mode.
        """
        check_database(self.path, to_write=True)
        if self._writer is not None and self._opened != self._there():
            self.close()  # the file was removed or replaced, or this is a fork
        if self._writer is None:
            self.close()
            with _lock:
                opened = self._there()
                self._writer = _connected(self.path.absolute().as_uri() + "?mode=rw")
                self._end_writer = weakref.finalize(self, _end, self._writer, os.getpid())
                self._opened = opened
                _writers.add(self)
            (mode,) = self._writer.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal" or opened != self._there():
                self.close()
                raise StoreError("foreign", f"{self.path} was not made by nearwise.")
            self._writer.execute("PRAGMA synchronous = FULL")
            self._writer.execute("PRAGMA secure_delete = ON")
        return self._writer

    def reader(self) -> sqlite3.Connection:
        """Return a read-only connection that includes every change committed so far.

        Raises
        ------
        StoreError
            If `check_database` refuses the file.
        BlockingIOError
            If another process writes all the time.
        """
        check_database(self.path)
        with _lock:
            if self._there() in {other._opened for other in _writers}:
                return self.writer()
            if self._copy is None or self._copied != (os.getpid(), self._stamp()):
                self.close()
                self._copy, stamp = self._copy_now()
                self._end_copy = weakref.finalize(self, _end, self._copy, os.getpid())
                self._copied = os.getpid(), stamp
            return self._copy

    def _there(self) -> tuple[int, int, int]:
        """Identify this process and the present file."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return (os.getpid(), 0, 0)
        return os.getpid(), found.st_dev, found.st_ino

    @property
    def _log(self) -> str:
        return f"{self.path.name}-wal"

    def _stamp(self) -> _Stamp:
        parts: list[tuple[int, int, int] | None] = []
        for name in (self.path.name, self._log):
            try:
                found = os.lstat(self.path.with_name(name))
                parts.append((found.st_ino, found.st_size, found.st_mtime_ns))
            except FileNotFoundError:
                parts.append(None)
        return _Stamp(*parts)

    def _log_header(self) -> bytes:
        """Return the header, which identifies the log; empty if there is no log or an empty one."""
        try:
            with opened(self.path.parent, self._log) as (file, size):
                return file.read(_LOG_HEADER) if size > _LOG_HEADER else b""
        except FileNotFoundError:
            return b""

    def _copy_now(self) -> tuple[sqlite3.Connection, _Stamp | None]:
        """Copy the database and its log and open the copy; stamp None if a write may go unnoticed.

        A writer moves pages from the log to the database, and they also stay in the log until it
        restarts. So both copies are consistent if the log has not restarted meanwhile. Without a
        log the database must be unchanged.
        """
        deadline = time.monotonic() + _PATIENCE
        while True:
            stamp, header = self._stamp(), self._log_header()
            settled = stamp.settled()
            if not header and not settled:
                time.sleep(_TICK)
                continue
            with _private_folder() as place:
                self._copy_file(self.path.name, place)
                self._copy_file(self._log, place)
                now = self._stamp()
                same = header == self._log_header()
                if same and (header or now.database == stamp.database):
                    connection = _connected(str(Path(place, self.path.name)))
                    # exclusive and unsynced: the copy needs no further files and may be unlinked
                    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                    connection.execute("PRAGMA synchronous = OFF")
                    connection.execute("PRAGMA query_only = ON")
                    try:
                        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
                    except BaseException:
                        connection.close()
                        raise
                    return connection, stamp if settled else None
            if time.monotonic() > deadline:
                raise BlockingIOError(
                    f"{self.path} is written to all the time, and could not be read within "
                    f"{_PATIENCE:g} s. Try again later."
                )
            check_database(self.path)

    def _copy_file(self, name: str, place: str) -> None:
        target = Path(place, name)
        try:
            with opened(self.path.parent, name) as (file, size), target.open("xb") as copy:
                for start, end in _filled(file.fileno(), size):
                    file.seek(start)
                    copy.seek(start)
                    while start < end and (some := file.read(min(2**20, end - start))):
                        start += copy.write(some)
                copy.truncate(size)
        except FileNotFoundError:  # a log that its last writer has removed
            return


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    """Make a folder for a copy; remove folders of killed processes, since they hold rows."""
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError), _locked(left) as found:
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _PATIENCE:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as place, _locked(Path(place)):
        yield place


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[os.stat_result]:
    """Lock a folder until the block or the process ends; OSError if it is already locked."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield os.fstat(handle)
    finally:
        os.close(handle)


def _filled(handle: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of the stored parts of a file: holes may be larger than any disk."""
    end = 0
    while end < size:
        try:
            start = os.lseek(handle, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole until the end
                return
            raise
        end = min(os.lseek(handle, start, os.SEEK_HOLE), size)
        yield start, end


def _end(connection: sqlite3.Connection, process: int) -> None:
    """Close a connection at once, rather than at garbage collection."""
    if process == os.getpid():
        connection.close()
    else:
        _of_others.append(connection)  # closing it would undo locks of the parent


def database_image(statements: list[tuple[str, tuple[object, ...]]]) -> bytes:
    """Return the bytes of a new database in WAL mode, as `Database.writer` requires.

    The file is written in one step: SQLite itself would use several and a rollback journal.
    """
    with sqlite3.connect(":memory:", isolation_level=None) as connection:
        for statement, values in statements:
            connection.execute(statement, values)
        image = bytearray(connection.serialize())
    connection.close()
    image[18:20] = b"\x02\x02"  # read and write version 2: WAL mode
    return bytes(image)


def _connected(place: str) -> sqlite3.Connection:
    uri = place.startswith("file:")
    connection = sqlite3.connect(place, uri=uri, isolation_level=None, check_same_thread=False)
    for setting in _SETTINGS:
        connection.execute(f"PRAGMA {setting}")
    return connection
