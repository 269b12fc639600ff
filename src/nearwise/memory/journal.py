"""Journal of changes since a folder was saved: a SQLite file in which commits survive a kill.

A folder holds one version of a model; the journal holds the changes since, one transaction each.
Loading replays them on the folder. Saving folds them in: the folder stores the version that it
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
REFRESH = "refresh"  # kind of a change that is saved in the folder first and noted here afterwards
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
_MOST_UNNOTED = 100  # most refreshes of a folder that may be missing in its journal
_CHUNK = 2**28  # bytes; SQLite's limit for a blob is 10^9
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CONSTRAINT", "SQLITE_ERROR", "SQLITE_SCHEMA")


class JournalState(NamedTuple):
    """Lineage and versions of a journal.

    `lineage` is the generation of version 0 of the folder. Changes up to `folded` are in the
    folder; `latest` is the newest version.
    """

    lineage: str
    folded: int
    latest: int


@dataclass(frozen=True)
class Change:
    """One change of the content of a folder.

    Attributes
    ----------
    version : int
        Model version after the change; versions count from 1.
    kind : str
        Name of the kind, chosen by the caller.
    ids : tuple of int
        Ids of the changed rows.
    details : dict
        Description that is kept of the change; JSON.
    parts : dict of str to bytes
        Data needed to replay the change; empty once it has been folded in.
    key : str or None
        Idempotency key: a request sent twice is one change.
    digest : str
        Digest of the request, to tell a repeated request from another one with the same key.
    time : str
        Time of the change, ISO 8601 in UTC.
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
    """Journal of a folder; the file is created with the first change.

    Writers exclude each other with `locked_folder`; readers need no lock, and read a copy, so that
    they change no file. Connections stay open between calls: call `close` or use a `with` block.
    Not thread-safe.

    The folder's manifest records that there is a journal, and a version that it has reached: so a
    lost or older journal is detected.

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
        """Whether a transaction is open."""
        return self._database.is_writing

    def state(self) -> JournalState | None:
        """Return lineage and versions, or None if there is no journal yet.

        Raises
        ------
        StoreError
            If the file is damaged, not a journal, or of a newer nearwise; in methods with a lineage
            also if changes of the folder are missing in the file.
        """
        with self._reading() as found:
            return None if found is None else found[1]

    def since(self, lineage: str, version: int) -> list[Change]:
        """Return the changes after a version of a folder, oldest first.

        Empty if the journal belongs to another lineage, that of a replaced model.

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
        """Return all changes of a folder, oldest first, without their parts.

        `last` limits the result to this many of the newest.
        """
        with self._reading(lineage) as there:
            if there is None:
                return []
            if last is None:
                return self._changes(there[0], "1 ORDER BY version", parts=False)
            newest = "1 ORDER BY version DESC LIMIT ?"
            return self._changes(there[0], newest, last, parts=False)[::-1]

    def find(self, lineage: str, *, version: int | None = None, key: str | None = None) -> Change:
        """Return the change with a version or a key; KeyError if there is none."""
        name, value = ("version", version) if key is None else ("key", key)
        with self._reading(lineage) as there:
            found = [] if there is None else self._changes(there[0], f"{name} = ?", value)
        if not found:
            raise KeyError(value)
        return found[0]

    def append(self, lineage: str, folded: int, change: Change) -> None:
        """Write a change durably: after the return it survives a kill and a loss of power.

        The caller holds the folder's lock and ensures that the folder itself, of `lineage`, holds
        version `folded`. A journal of another lineage is emptied first.

        Raises
        ------
        OSError
            If the change cannot be written; the journal is then unchanged.
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
            # A refresh is saved in the folder first; the process may have ended before noting it.
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
        """Add a change that is already saved in the folder; the caller holds the folder's lock.

        Raises
        ------
        OSError, StoreError
            As `append`.
        """
        self._begun(lineage, change.version)
        with self._writing() as connection:
            self._insert(connection, change)

    def fold(self, lineage: str, version: int, *, keep: str | None = None) -> None:
        """Delete the parts of the changes up to a version: the folder now includes them.

        Their ids, details and times are kept, and changes of the kind `keep` stay complete. A
        journal of another lineage is emptied: its model was replaced by a new one.
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
        """Continue without lost changes; return whether there were any.

        A damaged, missing or outdated journal is removed, also from the manifest of the folder,
        which is of `lineage` and holds `version`. The caller holds the folder's lock.
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
        """Remove an unusable journal file; the caller holds the folder's lock."""
        self.close()
        for ending in ("-wal", "-shm", ""):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)

    # --- SQLite -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(
        self, lineage: str | None = None
    ) -> Iterator[tuple[sqlite3.Connection, JournalState] | None]:
        """Yield one consistent state of the file; None for no journal or one of another lineage."""
        while True:
            mark = None if lineage is None else journal_mark(self.path.parent)
            with self._explained(), self._found() as there:
                state = None if there is None else there[1]
                why = self._lost(mark, lineage, state)
                if why is None:
                    other = state is not None and lineage is not None and state.lineage != lineage
                    yield None if other else there
                    return
            if journal_mark(self.path.parent) == mark:  # else just saved: retry
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
        """Describe changes recorded in the manifest that the journal lacks, or return None."""
        if mark is None or mark.lineage != lineage:  # the mark of a replaced model
            return None
        if state is None:
            return "is missing or empty"
        if state.lineage != lineage:
            return "belongs to another model"
        if state.latest < mark.version:
            return f"ends at version {state.latest}"
        return None

    def _begun(self, lineage: str, folded: int) -> JournalState:
        """Return the state of the journal of a lineage; start a new journal if there is none."""
        with self._reading(lineage) as there:
            if there is not None:
                return there[1]
        if self.state() is None:
            self.discard()  # left by a kill during the first change of an older nearwise
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
        if not name or name.startswith(_DAMAGE):  # errors of invalid text have no name
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
        ):  # triggers and views would run with our writes
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
        """Empty the tables of another lineage."""
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
    """Make a change from a row of the table; ValueError or TypeError if it is invalid."""
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
