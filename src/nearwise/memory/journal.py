"""A journal of changes beside a saved folder, in SQLite: what was written to it survives a kill.

A folder holds one version of a model; the journal holds the changes since, one transaction each.
Loading replays them on the folder. Saving folds them in: the folder names the last version that it
holds, and later loads begin after it, whether or not the journal was cleared by then.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from nearwise.memory.store import StoreError, sync_folder

JOURNAL = "journal.sqlite3"
REFRESH = "refresh"  # kind of a change that the folder is saved with, and that is noted then
_FORMAT_VERSION = 1
_TABLES = (
    "CREATE TABLE journal (lineage TEXT NOT NULL, folded INTEGER NOT NULL, checksum TEXT NOT NULL)",
    "CREATE TABLE changes (version INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, "
    "ids TEXT NOT NULL, details TEXT NOT NULL, key TEXT UNIQUE, digest TEXT NOT NULL, "
    "checksum TEXT NOT NULL)",
    "CREATE TABLE parts (version INTEGER NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL, "
    "content BLOB NOT NULL, checksum TEXT NOT NULL, PRIMARY KEY (version, name, number))",
)
_COLUMNS = "version, time, kind, ids, details, key, digest"  # SQLite itself has no checksums
_CHUNK = 2**28  # bytes; SQLite takes no blob of a billion
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CONSTRAINT", "SQLITE_ERROR", "SQLITE_SCHEMA")


_OF_OTHERS: list[sqlite3.Connection] = []  # that a fork took over; kept, as they close when freed


class JournalState(NamedTuple):
    """Which folder a journal belongs to, and its versions.

    `lineage` names the folder's first generation: the one its version 0 was saved as. The changes
    up to `folded` are in the folder; `latest` is the newest.
    """

    lineage: str
    folded: int
    latest: int


@dataclass(frozen=True)
class Change:
    """One change of what a folder holds.

    Attributes
    ----------
    version : int
        What the change makes of the model; versions count from 1.
    kind : str
        As the caller named it.
    ids : tuple of int
        Rows that were changed.
    details : dict
        What is kept of the change; JSON.
    parts : dict of str to bytes
        What it takes to make the change; empty once it has been folded in.
    key : str or None
        Of the caller, so that the same request sent twice is one change.
    digest : str
        Of the request, to distinguish a repeated one from another with the same key.
    time : str
        When it was made, ISO 8601 in UTC.
    """

    version: int
    kind: str
    ids: tuple[int, ...]
    details: dict[str, Any]
    parts: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    key: str | None = None
    digest: str = ""
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


class Journal:
    """The journal of a folder; there is no file before the first change.

    Writers keep each other out with `locked_folder`; readers need no lock. An open connection is
    kept for the next call, so close it, or use it in a `with` block. One thread at a time.

    Parameters
    ----------
    folder : path
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / JOURNAL
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, ...] = ()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._connection is not None:
            if self._opened[0] == os.getpid():
                self._connection.close()
            else:
                _OF_OTHERS.append(self._connection)  # closing it would undo locks of the parent
            self._connection = None

    @property
    def is_writing(self) -> bool:
        """Whether a change is being written."""
        return self._connection is not None and self._connection.in_transaction

    def state(self) -> JournalState | None:
        """Give lineage and versions, None where there is no journal yet.

        Raises
        ------
        StoreError
            If the file is damaged, not a journal, or of a newer nearwise.
        """
        with self._reading() as found:
            return None if found is None else found[1]

    def since(self, lineage: str, version: int) -> list[Change]:
        """Give the changes after a version of a folder, oldest first.

        There are none if the journal belongs to another lineage, which a new model has replaced.

        Raises
        ------
        StoreError
            With reason "changed" if changes after `version` have been folded in meanwhile: read
            the folder again. As `state` otherwise.
        """
        with self._reading(lineage) as there:
            if there is None:
                return []
            connection, state = there
            if state.folded > version:
                raise StoreError(
                    "changed",
                    f"{self.path.parent} has been saved since it was read. Read it again.",
                )
            found = self._changes(connection, "version > ? ORDER BY version", version)
            if [change.version for change in found] != list(range(version + 1, state.latest + 1)):
                raise self._torn(f"not all changes from {version + 1} to {state.latest} are there")
            return found

    def history(self, lineage: str, last: int | None = None) -> list[Change]:
        """Give the changes that a folder has seen, oldest first, without their parts.

        `last` gives only this many, the newest.
        """
        with self._reading(lineage) as there:
            if there is None:
                return []
            if last is None:
                return self._changes(there[0], "1 ORDER BY version", parts=False)
            newest = "1 ORDER BY version DESC LIMIT ?"
            return self._changes(there[0], newest, last, parts=False)[::-1]

    def find(self, lineage: str, *, version: int | None = None, key: str | None = None) -> Change:
        """Give the change of a version, or the one made under a key; KeyError if there is none."""
        name, value = ("version", version) if key is None else ("key", key)
        with self._reading(lineage) as there:
            found = [] if there is None else self._changes(there[0], f"{name} = ?", value)
        if not found:
            raise KeyError(value)
        return found[0]

    def append(self, lineage: str, folded: int, change: Change) -> None:
        """Write a change; when this returns it survives a kill and a loss of power.

        The caller holds the folder's lock and ensures that the folder itself, of `lineage`, holds
        version `folded`. A journal of another lineage is emptied first.

        Raises
        ------
        OSError
            If it cannot be written; nothing has changed then.
        StoreError
            As `state`.
        """
        is_new = not self.path.exists()
        with self._writing() as connection:
            state = self._state(connection)
            if state is None or state.lineage != lineage:
                self._start(connection, lineage, folded)
                state = JournalState(lineage, folded, folded)
            newest = connection.execute("SELECT max(version) FROM changes").fetchone()[0]
            # A refresh is saved first, and noted then; the process may have ended in between.
            for version in range(folded + 1 if newest is None else newest + 1, folded + 1):
                self._insert(connection, Change(version, REFRESH, (), {}))
            if folded > state.latest:
                self._set_state(connection, lineage, folded)
                state = JournalState(lineage, folded, folded)
            if change.version != state.latest + 1:
                raise self._torn(f"it ends at {state.latest}, and {change.version} was to follow")
            self._insert(connection, change)
            for name, content in change.parts.items():
                for number, start in enumerate(range(0, max(len(content), 1), _CHUNK)):
                    which = change.version, name, number
                    chunk = content[start : start + _CHUNK]
                    connection.execute(
                        "INSERT INTO parts VALUES (?, ?, ?, ?, ?)",
                        (*which, chunk, _checksum(*which, chunk)),
                    )
        if is_new:
            sync_folder(self.path.parent)

    def note(self, lineage: str, change: Change) -> None:
        """List a change that the folder has been saved with; the caller holds the folder's lock.

        Raises
        ------
        OSError, StoreError
            As `append`.
        """
        with self._writing() as connection:
            state = self._state(connection)
            if state is None or state.lineage != lineage:
                self._start(connection, lineage, change.version)
            self._insert(connection, change)

    def fold(self, lineage: str, version: int, *, keep: str | None = None) -> None:
        """Forget the parts of the changes up to a version: the folder holds them now.

        Which rows they changed and when is kept, and changes of the kind `keep` stay whole. A
        journal of another lineage is emptied: a new model replaced the one it belonged to.
        """
        if not self.path.exists():
            return
        with self._writing() as connection:
            state = self._state(connection)
            if state is None or state.lineage != lineage:
                self._start(connection, lineage, version)
            else:
                self._set_state(connection, lineage, max(state.folded, version))
                connection.execute(
                    "DELETE FROM parts WHERE version IN "
                    "(SELECT version FROM changes WHERE version <= ? AND kind IS NOT ?)",
                    (version, keep),
                )
        with self._explained():
            busy, *_ = self._open().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy and keep is None:
            raise BlockingIOError(
                f"What {self.path} has forgotten is still in its log, as another process reads it. "
                "Try again when that has finished."
            )

    def discard(self) -> None:
        """Remove a file that cannot be used; the caller holds the folder's lock."""
        self.close()
        for ending in ("-wal", "-shm", ""):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)

    # --- SQLite -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(
        self, lineage: str | None = None
    ) -> Iterator[tuple[sqlite3.Connection, JournalState] | None]:
        """Hold one state of the file; None where there is no journal, or one of another lineage."""
        if not os.path.lexists(self.path):
            self.close()
            yield None
            return
        with self._explained():
            connection = self._open()
            connection.execute("BEGIN")
            try:
                state = self._state(connection)
                other = state is not None and lineage is not None and state.lineage != lineage
                yield None if state is None or other else (connection, state)
            finally:
                connection.execute("COMMIT")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _open(self) -> sqlite3.Connection:
        """Give a connection of this process to the file that is there now."""
        if self._connection is not None and self._opened != self._there():
            self.close()  # the file was removed or replaced, or the process is another
        if self._connection is None:
            if os.path.lexists(self.path) and not stat.S_ISREG(os.lstat(self.path).st_mode):
                raise StoreError(
                    "foreign", f"{self.path} is not a plain file, and nearwise did not make it."
                )
            self._connection = _connect(self.path)
            self._opened = self._there()
        return self._connection

    def _there(self) -> tuple[int, ...]:
        """Name this process and the file that is there."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return (os.getpid(),)
        return os.getpid(), found.st_dev, found.st_ino

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            self.close()
            self._explain(error)

    def _explain(self, error: sqlite3.DatabaseError) -> NoReturn:
        name = getattr(error, "sqlite_errorname", None) or ""
        if not name or name.startswith(_DAMAGE):  # text that is none has no name
            raise self._torn(str(error)) from error
        raise OSError(
            f"could not open or write {self.path}: {error}. The journal is as it was. Free space, "
            "or make the folder one that can be written to."
        ) from error

    def _torn(self, what: str) -> StoreError:
        return StoreError(
            "torn",
            f"{self.path} is damaged: {what}. Restore the folder from a copy. (Without this file "
            "it opens as it was last saved, without the changes since.)",
        )

    def _state(self, connection: sqlite3.Connection) -> JournalState | None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
        found = {text for (text,) in tables}
        if not found:
            return None
        if version > _FORMAT_VERSION:
            raise StoreError(
                "newer",
                f"{self.path} has format version {version} and this nearwise reads up to "
                f"{_FORMAT_VERSION}. Upgrade nearwise: pip install -U nearwise.",
            )
        if found != set(_TABLES):  # triggers and views would run with what we write
            raise self._torn("it holds tables that nearwise does not write")
        states = connection.execute("SELECT lineage, folded, checksum FROM journal").fetchall()
        if len(states) != 1 or _checksum(*states[0][:2]) != states[0][2]:
            raise self._torn("it does not say which folder it belongs to")
        (lineage, folded, _), *_ = states
        latest = connection.execute("SELECT max(version) FROM changes").fetchone()[0]
        return JournalState(lineage, folded, max(folded, latest or 0))

    def _insert(self, connection: sqlite3.Connection, change: Change) -> None:
        values = (
            change.version, change.time, change.kind, json.dumps(change.ids),
            json.dumps(change.details), change.key, change.digest,
        )  # fmt: skip
        connection.execute(
            f"INSERT INTO changes ({_COLUMNS}, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, _checksum(*values)),
        )

    def _start(self, connection: sqlite3.Connection, lineage: str, folded: int) -> None:
        """Make the tables, or empty them where they belong to another lineage."""
        if self._state(connection) is None:
            for table in _TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA user_version = {_FORMAT_VERSION}")
        connection.execute("DELETE FROM changes")
        connection.execute("DELETE FROM parts")
        self._set_state(connection, lineage, folded)

    def _set_state(self, connection: sqlite3.Connection, lineage: str, folded: int) -> None:
        connection.execute("DELETE FROM journal")
        row = (lineage, folded, _checksum(lineage, folded))
        connection.execute("INSERT INTO journal VALUES (?, ?, ?)", row)

    def _changes(
        self, connection: sqlite3.Connection, where: str, *values: Any, parts: bool = True
    ) -> list[Change]:
        query = f"SELECT {_COLUMNS}, checksum FROM changes WHERE {where}"
        changes = []
        for *row, checksum in connection.execute(query, values):
            version, time, kind, ids, details, key, digest = row
            if _checksum(*row) != checksum:
                raise self._torn(f"change {version} does not match its checksum")
            made_of = self._parts(connection, version) if parts else {}
            ids, details = tuple(json.loads(ids)), json.loads(details)
            changes.append(Change(version, kind, ids, details, made_of, key, digest, time))
        return changes

    def _parts(self, connection: sqlite3.Connection, version: int) -> dict[str, bytes]:
        query = "SELECT name, number, content, checksum FROM parts WHERE version = ? ORDER BY 1, 2"
        found: dict[str, list[bytes]] = {}
        for name, number, content, checksum in connection.execute(query, (version,)):
            chunks = found.setdefault(name, [])
            if number != len(chunks) or _checksum(version, name, number, content) != checksum:
                raise self._torn(f"{name!r} of change {version} does not match its checksum")
            chunks.append(content)
        return {name: b"".join(chunks) for name, chunks in found.items()}


def _checksum(*values: Any) -> str:
    digest = hashlib.sha256()
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _connect(path: Path) -> sqlite3.Connection:
    """Open for reading and writing, or only for reading where the folder allows no more."""
    read_only = path.exists() and not os.access(path.parent, os.W_OK)
    quoted = path.absolute().as_uri()
    if read_only:  # SQLite tries to make the index of a log that nobody writes, which it cannot
        logged = path.with_name(f"{path.name}-wal").exists()
        quoted += "?mode=ro" if logged else "?immutable=1"
    connection = sqlite3.connect(quoted, uri=True, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")
    if not read_only:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
    return connection
