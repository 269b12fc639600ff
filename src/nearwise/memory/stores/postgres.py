"""PostgresStore: rows in a PostgreSQL database, searched by its extension pgvector.

One table holds every version of every row: a row belongs to the versions from `born` to before
`died`. A change is one transaction, so that processes on many machines can read and write.
"""

import base64
import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nearwise.memory.journal import Change
from nearwise.memory.make_index import AUTO_EXACT_BELOW
from nearwise.memory.store import StoreError
from nearwise.memory.stores.postgres_server import PostgresServer, place_of
from nearwise.memory.stores.protocol import (
    BATCH,
    SPARE,
    Edit,
    Schema,
    Snapshot,
    StoredRows,
    Verified,
    replaced,
)
from nearwise.memory.stores.recall import JUDGED_BY, RECALL_QUERIES, widened
from nearwise.memory.ties import tie_ranks_in_sql

_VERSION = 1
_NEVER = 2**62  # `died` of present rows
_OPERATORS = {
    "euclidean": ("<->", "vector_l2_ops"),
    "sqeuclidean": ("<->", "vector_l2_ops"),
    "cosine": ("<=>", "vector_cosine_ops"),
    "inner_product": ("<#>", "vector_ip_ops"),
    "manhattan": ("<+>", "vector_l1_ops"),
}
_MOST_INDEXED = 2000  # most dimensions of a key that pgvector can index
_MOST_SEARCHED = 1000  # largest hnsw.ef_search of pgvector
_NARROWEST = 40  # smallest hnsw.ef_search used here


class PostgresReader:
    """One version of a `PostgresStore`; see `RowReader`."""

    def __init__(
        self, database: PostgresServer, schema: Schema, version: int, summary: dict[str, Any]
    ) -> None:
        self._database, self._schema = database, schema
        self.version, self.summary = version, summary

    def search(
        self, space: str, query: np.ndarray, k: int, exclude: np.ndarray | None = None
    ) -> np.ndarray:
        """Find candidates; see `RowReader.search`."""
        return self._search(space, query, k, exclude, exactly=False)

    def _search(
        self,
        space: str,
        query: np.ndarray,
        k: int,
        exclude: np.ndarray | None,
        *,
        exactly: bool,
    ) -> np.ndarray:
        number = list(self._schema.spaces).index(space)
        metric = self._schema.spaces[space].metric
        operator, _ = _OPERATORS[metric]
        wanted = k + SPARE
        probes, oldest = self._database.run("SELECT probes, oldest FROM {}.head").fetchone()
        if oldest > self.version:
            raise StoreError(
                "changed",
                f"Version {self.version} is gone: rows were rewritten twice since it was "
                "opened. Open the model again.",
            )
        order = f"key{number} {operator} %s"
        if metric == "cosine":  # NaN for a key of zeros
            order = f"coalesce(nullif({order}, 'NaN'), 1)"
        if exactly or space not in probes:
            # only without an index: this order would prevent its use
            order += f", {tie_ranks_in_sql('id')}"
        else:
            order = f"key{number} {operator} %s"
        left_out = np.full(len(query), -1) if exclude is None else exclude
        text = (
            f"SELECT array(SELECT id FROM {{}}.rows WHERE born <= %s AND died > %s AND id <> %s "
            f"ORDER BY {order} LIMIT {wanted})"
        )
        found = np.full((len(query), wanted), -1)
        with self._database.transaction():
            self._database.run("SELECT set_config('hnsw.iterative_scan', 'strict_order', true)")
            if exactly:
                self._database.run("SET LOCAL enable_indexscan = off")
            else:
                probed = str(min(_MOST_SEARCHED, max(int(probes.get(space, 0)), wanted)))
                self._database.run("SELECT set_config('hnsw.ef_search', %s, true)", probed)
            for row, (one, own) in enumerate(zip(query, left_out.tolist(), strict=True)):
                values = (self.version, self.version, own, one)
                ids = self._database.run(text, *values).fetchone()[0]
                found[row, : len(ids)] = ids
        return found

    def fetch(self, ids: np.ndarray, *, rows: bool = False) -> StoredRows:
        """Return rows by id; see `RowReader.fetch`."""
        found = self._rows("id = ANY(%s)", list(map(int, ids)), rows=rows, many=len(ids))
        return found.by_id(ids)

    def scan(self) -> Iterator[StoredRows]:
        """Yield all rows in the order of their ids; see `RowReader.scan`."""
        last = -1
        while True:
            batch = self._rows("id > %s", last, rows=True, many=BATCH)
            if not len(batch):
                return
            yield batch
            last = int(batch.ids[-1])

    def _rows(self, where: str, value: Any, *, rows: bool, many: int) -> StoredRows:
        n_spaces = len(self._schema.spaces)
        keys = "".join(f", key{number}" for number in range(n_spaces))
        text = (
            f"SELECT id, label, weight, facts{keys}{', row' if rows else ''} FROM {{}}.rows "
            f"WHERE {where} AND born <= %s AND died > %s ORDER BY id LIMIT {many}"
        )
        cursor = self._database.run(text, value, self.version, self.version, binary=True)
        found = cursor.fetchall()
        if not found:
            return replace(self._schema.no_rows(), rows=[] if rows else None)
        columns = list(zip(*found, strict=True))
        named = {
            name: np.stack([key.to_numpy() for key in columns[4 + number]])
            for number, name in enumerate(self._schema.spaces)
        }
        return StoredRows(
            np.array(columns[0], np.int64),
            np.array(columns[1], np.int64),
            np.array(columns[2], np.float32),
            named,
            np.frombuffer(b"".join(columns[3]), "<f4").reshape(len(found), -1).copy(),
            list(columns[-1]) if rows else None,
        )


class PostgresStore:
    """Rows in a PostgreSQL database; see `RowStore`.

    Parameters
    ----------
    uri : str
        URI of libpq, "postgresql://USER@HOST/DATABASE#SCHEMA". The schema of the tables is
        "nearwise" by default. Passwords come from PGPASSWORD or ~/.pgpass.
        They are sent by SCRAM only, and to other machines only by TLS with ``sslmode=verify-full``,
        unless the URI, PGREQUIREAUTH or PGSSLMODE sets another value.

    Notes
    -----
    Searches are exact, by a scan, until `snapshot` finds 100,000 rows and builds HNSW indexes.
    A snapshot keeps removed rows for readers of earlier versions, and the next snapshot deletes
    them. The server frees their space by VACUUM.
    """

    wait: float | None = None

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._database = PostgresServer(uri)
        self.place = self._database.place
        found = self._database.run("SELECT to_regclass(%s)", f'"{self._database.name}".head')
        if found.fetchone()[0] is None:
            raise StoreError(
                "missing",
                f"There is no store in the schema {self._database.name!r} of {self.place}. Check "
                "the URI, or make one with 'nearwise move'.",
            )
        version, lineage, schema = self._database.run(
            "SELECT format, lineage, schema FROM {}.head"
        ).fetchone()
        if version > _VERSION:
            raise StoreError(
                "newer",
                f"The store at {self.place} has format version {version} and this nearwise reads "
                f"up to {_VERSION}. Upgrade nearwise: pip install -U nearwise.",
            )
        self.lineage: str = lineage
        self.schema = Schema.from_json(schema)
        self._reader: PostgresReader | None = None

    located = staticmethod(place_of)

    @classmethod
    def open(cls, uri: str) -> "PostgresStore":
        """Open a store; see `RowStore.open`."""
        return cls(uri)

    @classmethod
    def create(
        cls, uri: str, schema: Schema, rows: Iterable[StoredRows], summary: dict[str, Any]
    ) -> "PostgresStore":
        """Make a store in a new schema; see `RowStore.create`."""
        database = PostgresServer(uri)
        keys = "".join(f", key{i} vector({s.width})" for i, s in enumerate(schema.spaces.values()))
        with database.transaction():
            if database.run(
                "SELECT 1 FROM pg_namespace WHERE nspname = %s", database.name
            ).fetchone():
                raise StoreError(
                    "foreign",
                    f"The schema {database.name!r} of {database.place} is there already. Name "
                    "another after a # in the URI.",
                )
            database.run("CREATE SCHEMA {}")
            database.run(
                # json, since jsonb does not keep the order of names
                "CREATE TABLE {}.head (format int, lineage text, schema json, version bigint, "
                "summary json, probes jsonb, oldest bigint, compacted bigint)"
            )
            database.run(
                "CREATE TABLE {}.changes (version bigint PRIMARY KEY, time text, kind text, "
                "ids json, details json, key text UNIQUE, digest text, parts json)"
            )
            database.run(
                "CREATE TABLE {}.rows (id bigint, born bigint, died bigint, label bigint, "
                f"weight real, facts bytea{keys}, row bytea, PRIMARY KEY (id, born))"
            )
            for batch in rows:
                _copy(database, batch, 0)
            database.run(
                "INSERT INTO {}.head VALUES (%s, %s, %s, 0, %s, %s, 0, 0)",
                _VERSION,
                secrets.token_hex(8),
                json.dumps(schema.to_json()),
                json.dumps(summary),
                json.dumps({}),
            )
        database.close()
        store = cls(uri)
        store._index()
        return store

    def reader(self) -> PostgresReader:
        """Open the newest version; see `RowStore.reader`."""
        lineage, version, summary = self._database.run(
            "SELECT lineage, version, summary FROM {}.head"
        ).fetchone()
        if lineage != self.lineage:
            raise replaced(self.place)
        if self._reader is None or self._reader.version != version:
            self._reader = PostgresReader(self._database, self.schema, version, summary)
        return self._reader

    def apply(self, edit: Edit, expect: int) -> PostgresReader:
        """Write a change; see `RowStore.apply`."""
        change, version = edit.change, expect + 1
        with self._database.transaction():
            milliseconds = "0" if self.wait is None else str(max(1, int(1000 * self.wait)))
            self._database.run("SELECT set_config('lock_timeout', %s, true)", milliseconds)
            now, lineage = self._database.run(
                "SELECT version, lineage FROM {}.head FOR UPDATE"
            ).fetchone()
            if now != expect or lineage != self.lineage:
                raise StoreError(
                    "changed",
                    f"The store at {self.place} is at version {now}, and the change was made "
                    f"from {expect}. Read it again.",
                )
            gone = np.concatenate([edit.put.ids, edit.removed]).tolist()
            self._database.run(
                "UPDATE {}.rows SET died = %s WHERE id = ANY(%s) AND died = %s",
                version,
                gone,
                _NEVER,
            )
            _copy(self._database, edit.put, version)
            parts = {n: base64.b64encode(part).decode() for n, part in change.parts.items()}
            self._database.run(
                "INSERT INTO {}.changes VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
                version,
                change.time,
                change.kind,
                json.dumps(change.ids),
                json.dumps(change.details),
                change.key,
                change.digest,
                json.dumps(parts),
            )
            self._database.run(
                "UPDATE {}.head SET version = %s, summary = %s", version, json.dumps(edit.summary)
            )
        self._reader = PostgresReader(self._database, self.schema, version, edit.summary)
        return self._reader

    def history(self, lineage: str, last: int | None = None) -> list[Change]:
        """Return the changes; see `RowStore.history`."""
        found = self._changes(lineage, "true ORDER BY version DESC LIMIT %s", last, parts=False)
        return found[::-1]

    def find(self, lineage: str, *, version: int | None = None, key: str | None = None) -> Change:
        """Return one change; see `RowStore.find`."""
        name, value = ("version", version) if key is None else ("key", key)
        found = self._changes(lineage, f"{name} = %s", value, parts=True)
        if not found:
            raise KeyError(value)
        return found[0]

    def _changes(self, lineage: str, where: str, value: Any, *, parts: bool) -> list[Change]:
        if lineage != self.lineage:
            return []
        columns = "version, kind, ids, details, key, digest, time" + (", parts" if parts else "")
        rows = self._database.run(f"SELECT {columns} FROM {{}}.changes WHERE {where}", value)
        return [
            Change(
                version,
                kind,
                tuple(ids),
                details,
                {name: base64.b64decode(part) for name, part in (rest[0] if rest else {}).items()},
                key,
                digest,
                time,
            )
            for version, kind, ids, details, key, digest, time, *rest in rows
        ]

    def snapshot(self, *, keep_removed: bool = False) -> Snapshot:
        """Index the rows, and delete removed ones; see `RowStore.snapshot`."""
        reader = self.reader()
        with self._database.transaction():
            self._database.run("SELECT 1 FROM {}.head FOR UPDATE")
            self._database.run("DELETE FROM {}.rows USING {}.head WHERE died <= head.compacted")
            self._database.run(
                "UPDATE {}.head SET oldest = compacted, compacted = %s", reader.version
            )
        if not keep_removed:
            self._database.run(
                "UPDATE {}.changes SET parts = %s WHERE version <= %s",
                json.dumps({}),
                reader.version,
            )
        recall = self._index()
        (n_rows,) = self._database.run(
            "SELECT count(*) FROM {}.rows WHERE born <= %s AND died > %s",
            reader.version,
            reader.version,
        ).fetchone()
        return Snapshot(reader.version, n_rows, recall)

    def _index(self) -> dict[str, float]:
        """Index the spaces of large memories, and measure the recall of each."""
        reader, recall = self.reader(), {}
        living = self._database.run("SELECT count(*) FROM {}.rows WHERE died = %s", _NEVER)
        (n_rows,) = living.fetchone()
        self._database.run("ANALYZE {}.rows")
        for number, (name, space) in enumerate(self.schema.spaces.items()):
            recall[name] = 1.0
            if n_rows < AUTO_EXACT_BELOW or space.width > _MOST_INDEXED:
                self._database.run(f"DROP INDEX IF EXISTS {{}}.key{number}_hnsw")
                self._database.run("UPDATE {}.head SET probes = probes - %s::text", name)
                continue
            _, kind = _OPERATORS[space.metric]
            self._database.run(
                f"CREATE INDEX IF NOT EXISTS key{number}_hnsw ON {{}}.rows USING hnsw "
                f"(key{number} {kind})"
            )
            recall[name] = self._tuned(reader, name)
        return recall

    def _tuned(self, reader: PostgresReader, name: str) -> float:
        """Raise ef_search until the recall suffices; return the recall."""
        some = self._database.run(
            "SELECT id FROM {}.rows WHERE died = %s ORDER BY md5(id::text) LIMIT %s",
            _NEVER,
            RECALL_QUERIES,
        ).fetchall()
        queries = reader.fetch(np.array([row[0] for row in some])).keys[name]
        k = JUDGED_BY - SPARE
        true = reader._search(name, queries, k, None, exactly=True)

        def search(width: int) -> np.ndarray:
            self._database.run(
                "UPDATE {}.head SET probes = probes || %s", json.dumps({name: width})
            )
            return reader.search(name, queries, k)

        return widened(name, search, true, _NARROWEST, _MOST_SEARCHED)[1]

    def verify(self) -> Verified:
        """List the parts that only the server can check; see `RowStore.verify`."""
        (state,) = self._database.run("SHOW data_checksums").fetchone()
        return Verified([], [f"bytes of the rows (PostgreSQL's own checksums of them are {state})"])

    def accept_loss(self) -> bool:
        """Return False: changes are transactions of the database and cannot be lost."""
        return False

    def close(self) -> None:
        """Close all connections; the next call opens one again."""
        self._database.close()

    def drop(self) -> None:
        """Delete the store; see `RowStore.drop`."""
        self._database.run("DROP SCHEMA {} CASCADE")
        self.close()


def _copy(database: PostgresServer, rows: StoredRows, version: int) -> None:
    """Insert rows with this version as `born`."""
    keys = "".join(f", key{number}" for number in range(len(rows.keys)))
    text = f'COPY "{database.name}".rows (id, born, died, label, weight, facts{keys}, row)'
    assert rows.rows is not None  # new rows always include their packed form
    kinds = [*["int8"] * 4, "float4", "bytea", *["vector"] * len(rows.keys), "bytea"]
    with database.connection.cursor().copy(f"{text} FROM STDIN WITH (FORMAT BINARY)") as copy:
        copy.set_types(kinds)
        for i in range(len(rows)):
            numbers = int(rows.ids[i]), version, _NEVER, int(rows.labels[i]), float(rows.weights[i])
            keys_of = (part[i] for part in rows.keys.values())
            facts = rows.facts[i].astype("<f4").tobytes()
            copy.write_row((*numbers, facts, *keys_of, rows.rows[i]))
