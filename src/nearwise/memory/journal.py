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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from nearwise.memory.database import Database, database_image
from nearwise.memory.gate import StoreError
from nearwise.memory.store import JournalMark, journal_mark, mark_journal, put_whole

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
_INDEXES = (("changes", "sqlite_autoindex_changes_1"), ("parts", "sqlite_autoindex_parts_1"))
_SCHEMA: set[tuple[str, str, str, str | None]]
_SCHEMA = {("table", text.split()[2], text.split()[2], text) for text in _TABLES}
_SCHEMA |= {("index", name, table, None) for table, name in _INDEXES}  # of the keys
_COLUMNS = "version, time, kind, ids, details, key, digest"  # SQLite itself has no checksums
_MOST_UNNOTED = 100  # refreshes that a folder was saved with and that are not in its journal
_CHUNK = 2**28  # bytes; SQLite takes no blob of a billion
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CONSTRAINT", "SQLITE_ERROR", "SQLITE_SCHEMA")


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

    Writers keep each other out with `locked_folder`; readers need no lock, and read a copy, so that
    they change no file. What is open is kept for the next call, so close it, or use it in a `with`
    block. One thread at a time.

    The folder's manifest says that there is a journal, and a version that it has reached: a journal
    that is lost, or older, is not taken for one without changes.

    Parameters
    ----------
    folder : path
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / JOURNAL
        self._database = Database(self.path)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()

    @property
    def is_writing(self) -> bool:
        """Whether a change is being written."""
        return self._database.is_writing

    def state(self) -> JournalState | None:
        """Give lineage and versions, None where there is no journal yet.

        Raises
        ------
        StoreError
            If the file is damaged, not a journal, or of a newer nearwise; in calls with a lineage
            also if the folder has had changes of it that the file lacks.
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
            n_later = max(state.latest - version, 0)
            if len(found) != n_later or (n_later and found[0].version != version + 1):
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
        folder = self.path.parent
        latest = self._begun(lineage, folded).latest
        mark = journal_mark(folder)
        if mark is None or mark.lineage != lineage:  # the first change since the folder was saved
            mark_journal(folder, JournalMark(lineage=lineage, version=latest))
        with self._writing() as connection:
            newest = connection.execute("SELECT max(version) FROM changes").fetchone()[0]
            if newest is not None and folded > newest + _MOST_UNNOTED:
                raise self._torn(f"it ends at {newest}, and the folder holds version {folded}")
            # A refresh is saved first, and noted then; the process may have ended in between.
            for version in range(folded + 1 if newest is None else newest + 1, folded + 1):
                self._insert(connection, Change(version, REFRESH, (), {}))
            if folded > latest:
                self._set_state(connection, lineage, folded)
            latest = max(folded, latest)
            if change.version != latest + 1:
                raise self._torn(f"it ends at {latest}, and {change.version} was to follow")
            self._insert(connection, change)
            for name, content in change.parts.items():
                for number, start in enumerate(range(0, max(len(content), 1), _CHUNK)):
                    which = change.version, name, number
                    chunk = content[start : start + _CHUNK]
                    connection.execute(
                        "INSERT INTO parts VALUES (?, ?, ?, ?, ?)",
                        (*which, chunk, _checksum(*which, chunk)),
                    )

    def note(self, lineage: str, change: Change) -> None:
        """List a change that the folder has been saved with; the caller holds the folder's lock.

        Raises
        ------
        OSError, StoreError
            As `append`.
        """
        self._begun(lineage, change.version)
        with self._writing() as connection:
            self._insert(connection, change)

    def fold(self, lineage: str, version: int, *, keep: str | None = None) -> None:
        """Forget the parts of the changes up to a version: the folder holds them now.

        Which rows they changed and when is kept, and changes of the kind `keep` stay whole. A
        journal of another lineage is emptied: a new model replaced the one it belonged to.
        """
        if not self._database.is_there:
            return
        with self._writing() as connection:
            state = self._state(connection)
            if state is None:
                return
            if state.lineage == lineage:
                version = max(state.folded, version)
                self._set_state(connection, lineage, version)
                connection.execute(
                    "DELETE FROM parts WHERE version IN "
                    "(SELECT version FROM changes WHERE version <= ? AND kind IS NOT ?)",
                    (version, keep),
                )
            else:
                self._restart(connection, lineage, version)
        mark_journal(self.path.parent, JournalMark(lineage=lineage, version=version))
        with self._explained():
            connection = self._database.writer()
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy and keep is None:
            raise BlockingIOError(
                f"What {self.path} has forgotten is still in its log, as another process reads it. "
                "Try again when that has finished."
            )

    def accept_loss(self, lineage: str, version: int) -> bool:
        """Go on without changes that are lost; whether there were any.

        A journal that is damaged, missing or too old is removed, and forgotten by the folder, which
        is of `lineage` and holds `version`. The caller holds the folder's lock.
        """
        try:
            self.since(lineage, version)
            self.history(lineage)
        except StoreError as error:
            if error.reason != "torn":
                raise
            mark_journal(self.path.parent, None)
            self.discard()
            return True
        return False

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
        while True:
            mark = None if lineage is None else journal_mark(self.path.parent)
            with self._explained(), self._found() as there:
                state = None if there is None else there[1]
                why = self._lost(mark, lineage, state)
                if why is None:
                    other = state is not None and lineage is not None and state.lineage != lineage
                    yield None if other else there
                    return
            if journal_mark(self.path.parent) == mark:  # else the folder was saved just now
                raise self._lacking(why)

    @contextlib.contextmanager
    def _found(self) -> Iterator[tuple[sqlite3.Connection, JournalState] | None]:
        if not self._database.is_there:
            self.close()
            yield None
            return
        connection = self._database.reader()
        connection.execute("BEGIN")
        try:
            state = self._state(connection)
            yield None if state is None else (connection, state)
        finally:
            connection.execute("COMMIT")

    @staticmethod
    def _lost(
        mark: JournalMark | None, lineage: str | None, state: JournalState | None
    ) -> str | None:
        """Say what a journal lacks that the folder says it has."""
        if mark is None or mark.lineage != lineage:  # of a model that another has replaced
            return None
        if state is None:
            return "is missing or empty"
        if state.lineage != lineage:
            return "belongs to another model"
        if state.latest < mark.version:
            return f"ends at version {state.latest}"
        return None

    def _begun(self, lineage: str, folded: int) -> JournalState:
        """Give the state of the journal of a lineage; begin it where there is none."""
        with self._reading(lineage) as there:
            if there is not None:
                return there[1]
        if self.state() is None:
            self.discard()  # what a kill within the first change of an older nearwise left
            self._put_new(lineage, folded)
        else:
            with self._writing() as connection:
                self._restart(connection, lineage, folded)
        return JournalState(lineage, folded, folded)

    def _put_new(self, lineage: str, folded: int) -> None:
        row = (lineage, folded, _checksum(lineage, folded))
        statements: list[tuple[str, tuple[object, ...]]] = [(text, ()) for text in _TABLES]
        statements.append((f"PRAGMA user_version = {_FORMAT_VERSION}", ()))
        statements.append(("INSERT INTO journal VALUES (?, ?, ?)", row))
        put_whole(self.path.parent, self.path.name, database_image(statements))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            connection = self._database.writer()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

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
        return StoreError("torn", f"{self.path} is damaged: {what}. {self._remedy}")

    def _lacking(self, why: str) -> StoreError:
        return StoreError(
            "torn",
            f"{self.path} {why}, and lacks changes that were made to the folder. {self._remedy}",
        )

    @property
    def _remedy(self) -> str:
        return (
            "Restore the folder from a copy; or go on as it was last saved, without the changes "
            "since: nearwise compact MODEL --accept-lost-changes."
        )

    def _state(self, connection: sqlite3.Connection) -> JournalState | None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
        if not found:
            return None
        if version > _FORMAT_VERSION:
            raise StoreError(
                "newer",
                f"{self.path} has format version {version} and this nearwise reads up to "
                f"{_FORMAT_VERSION}. Upgrade nearwise: pip install -U nearwise.",
            )
        if (
            len(found) != len(_SCHEMA) or set(found) != _SCHEMA
        ):  # triggers and views would run with what we write
            raise self._torn("it holds tables that nearwise does not write")
        states = connection.execute("SELECT lineage, folded, checksum FROM journal").fetchall()
        if len(states) != 1 or _checksum(*states[0][:2]) != states[0][2]:
            raise self._torn("it does not say which folder it belongs to")
        (lineage, folded, _), *_ = states
        if not (isinstance(lineage, str) and isinstance(folded, int)):
            raise self._torn("it does not say which folder it belongs to")
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

    def _restart(self, connection: sqlite3.Connection, lineage: str, folded: int) -> None:
        """Empty the tables, which belong to another lineage."""
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
            if _checksum(*row) != checksum:
                raise self._torn(f"change {row[0]} does not match its checksum")
            made_of = self._parts(connection, row[0]) if parts else {}
            try:
                changes.append(_as_change(row, made_of))
            except (ValueError, TypeError, RecursionError) as error:
                raise self._torn(f"change {row[0]} is none that nearwise writes") from error
        return changes

    def _parts(self, connection: sqlite3.Connection, version: int) -> dict[str, bytes]:
        query = "SELECT name, number, content, checksum FROM parts WHERE version = ? ORDER BY 1, 2"
        found: dict[str, list[bytes]] = {}
        for name, number, content, checksum in connection.execute(query, (version,)):
            chunks = found.setdefault(name, [])
            if number != len(chunks) or _checksum(version, name, number, content) != checksum:
                raise self._torn(f"{name!r} of change {version} does not match its checksum")
            if not isinstance(content, bytes):
                raise self._torn(f"{name!r} of change {version} is no bytes")
            chunks.append(content)
        return {name: b"".join(chunks) for name, chunks in found.items()}


def _as_change(row: list[Any], parts: dict[str, bytes]) -> Change:
    """Make a change of a row of the table; ValueError or TypeError if it is none."""
    version, time, kind, ids, details, key, digest = row
    ids, details = json.loads(ids), json.loads(details)
    texts = time, kind, digest, "" if key is None else key
    if not (all(isinstance(text, str) for text in texts) and isinstance(details, dict)):
        raise TypeError("a value is of another type")
    if not all(type(one) is int and 0 <= one < 2**63 for one in ids):
        raise ValueError("an id is none")
    return Change(version, kind, tuple(ids), details, parts, key, digest, time)


def _checksum(*values: Any) -> str:
    digest = hashlib.sha256()
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()
