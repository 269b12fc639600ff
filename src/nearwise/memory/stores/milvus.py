"""MilvusStore: rows in a Milvus database.

One collection holds every version of every row: a row belongs to the versions from `born` to before
`died`. Another holds texts: the head, which names the newest version, what the model keeps of the
memory as a whole, and the changes; text fields of Milvus hold 65,535 bytes, and so a text is cut
into entities. Milvus has no transactions: a change first writes rows and texts that belong to a
version that nobody sees yet, and then moves the head to it, in one step. What a killed writer left
after that head is removed by the next one.
"""

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nearwise.memory.journal import Change
from nearwise.memory.make_index import AUTO_EXACT_BELOW
from nearwise.memory.store import StoreError
from nearwise.memory.stores.milvus_server import (
    METRICS,
    MOST_AT_ONCE,
    NEVER,
    MilvusServer,
    check_schema,
    index_name,
    row_entities,
    row_fields,
    rows_at_once,
    rows_of,
    searched,
    text_entities,
)
from nearwise.memory.stores.protocol import (
    SPARE,
    Edit,
    Schema,
    Snapshot,
    StoredRows,
    Verified,
    replaced,
)
from nearwise.memory.stores.recall import JUDGED_BY, RECALL_QUERIES, widened

_VERSION = 1
_HEAD = "head"  # primary key, and kind, of the text that names the newest version
_QUERIES_AT_ONCE = 1_000
_HITS_AT_ONCE = 1_000_000  # over all queries
_ROWS_PER_CELL = 39  # that an index needs to find the center of a cell
_ALL_CELLS = 65_536  # as many as an index may have; those that it has are searched
_FEWEST_PROBES = 16  # cells that are searched


class _Head(NamedTuple):
    """Properties of the store; `probes` are the cells searched in each indexed space."""

    version: int
    lineage: str
    schema: Schema
    probes: dict[str, int]

    def entity(self) -> dict[str, Any]:
        text = json.dumps(
            {
                "format": _VERSION,
                "lineage": self.lineage,
                "schema": self.schema.to_json(),
                "probes": self.probes,
            }
        )
        (entity,) = text_entities(_HEAD, self.version, text)
        return entity | {"id": _HEAD}


def _living(version: int) -> str:
    return f"born <= {version} and died > {version}"


class MilvusReader:
    """One version of a `MilvusStore`; see `RowReader`."""

    def __init__(self, server: MilvusServer, head: _Head, summary: dict[str, Any]) -> None:
        self._server, self._head = server, head
        self.version, self.summary = head.version, summary
        self._n_rows: int | None = None

    @property
    def n_rows(self) -> int:
        """Rows of this version."""
        if self._n_rows is None:
            self._n_rows = self._server.count(_living(self.version))
        return self._n_rows

    def search(
        self, space: str, query: np.ndarray, k: int, exclude: np.ndarray | None = None
    ) -> np.ndarray:
        """Find candidates; see `RowReader.search`."""
        probes = self._head.probes.get(space, 0)
        while True:
            found = self._search(space, query, k, exclude, probes)
            if not probes or probes >= _ALL_CELLS:
                return found
            enough = min(k, self.n_rows - (exclude is not None))
            if ((found >= 0).sum(1) >= enough).all():
                return found
            probes *= 2  # the cells that were searched hold no more

    def _search(
        self, space: str, query: np.ndarray, k: int, exclude: np.ndarray | None, probes: int
    ) -> np.ndarray:
        schema = self._head.schema
        wanted = k + SPARE + (exclude is not None)
        if wanted > MOST_AT_ONCE:
            wanted = min(wanted, self.n_rows)
        if wanted > MOST_AT_ONCE:
            raise ValueError(
                f"{k} neighbors were asked for, and Milvus finds {MOST_AT_ONCE - SPARE - 1} at "
                "most. Ask for fewer, or use a store on disk or in PostgreSQL."
            )
        found = np.full((len(query), wanted), -1)
        step = max(1, min(_QUERIES_AT_ONCE, _HITS_AT_ONCE // max(wanted, 1)))
        for start in range(0, len(query) if wanted else 0, step):
            hits = self._server.search(
                _living(self.version),
                data=[searched(one) for one in query[start : start + step]],
                anns_field=f"key{list(schema.spaces).index(space)}",
                limit=wanted,
                search_params={
                    "metric_type": METRICS[schema.spaces[space].metric],
                    "params": {"nprobe": probes} if probes else {},
                },
            )
            for row, of_query in enumerate(hits, start):
                ids = [int(hit["id"].partition(".")[0]) for hit in of_query]
                found[row, : len(ids)] = ids
        return found if exclude is None else np.where(found == exclude[:, None], -1, found)

    def fetch(self, ids: np.ndarray, *, rows: bool = False) -> StoredRows:
        """Give rows by id; see `RowReader.fetch`."""
        schema = self._head.schema
        parts = [rows_of([], schema, rows=rows)]
        step = rows_at_once(schema, rows=rows)
        for start in range(0, len(ids), step):
            some = ids[start : start + step].tolist()
            where = f"row in {some} and {_living(self.version)}"
            found = self._server.query(
                self._server.rows, where, row_fields(schema, rows=rows), len(some)
            )
            parts.append(rows_of(found, schema, rows=rows))
        return StoredRows.joined(parts).by_id(ids)

    def scan(self) -> Iterator[StoredRows]:
        """Give all rows in the order of their ids; see `RowReader.scan`."""
        schema = self._head.schema
        fields, step = row_fields(schema, rows=True), rows_at_once(schema, rows=True)
        for batch in self._server.scan(self._server.rows, _living(self.version), fields, step):
            yield rows_of(batch, schema, rows=True)


class MilvusStore:
    """Rows in a Milvus database; see `RowStore`.

    Parameters
    ----------
    uri : str
        "milvus+http://HOST:PORT/DATABASE" or "milvus+https://..."; after a # the beginning of the
        collections' names, "nearwise" by default. The token comes from MILVUS_TOKEN, and is sent
        by https only, or to this machine.

    Notes
    -----
    One process at a time may change a store; Milvus cannot detect that another does so at the same
    moment, and the rows of both would count. Processes that read may be many.

    Searches are exact until `snapshot` finds 100,000 rows and builds IVF indexes; readers wait
    meanwhile. A row as given may have up to 49,149 bytes.

    A snapshot deletes what removed rows held, and requests Milvus to free the space; Milvus itself
    decides when. Readers of versions before the newest lack these rows from then on.
    """

    wait: float | None = None

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._server = MilvusServer(uri)
        self.place = self._server.place
        self._changing = threading.Lock()
        self._reader: MilvusReader | None = None
        if not self._server.ask("has_collection", self._server.texts):
            raise self._missing()
        self._server.ask("load_collection", self._server.texts)
        head = self._head()
        self.lineage, self.schema = head.lineage, head.schema
        self._load_rows()

    @staticmethod
    def located(uri: str) -> str:
        """Give the URI with its port and name; see `Engine.located`."""
        return MilvusServer(uri).place

    @classmethod
    def open(cls, uri: str) -> "MilvusStore":
        """Open a store; see `Engine.open`."""
        return cls(uri)

    @classmethod
    def create(
        cls, uri: str, schema: Schema, rows: Iterable[StoredRows], summary: dict[str, Any]
    ) -> "MilvusStore":
        """Make a store whose collections are not there yet; see `Engine.create`."""
        check_schema(schema)
        server = MilvusServer(uri)
        for name in (server.rows, server.texts):
            if server.ask("has_collection", name):
                raise StoreError(
                    "foreign",
                    f"The collection {name!r} at {server.place} is there already. Name another "
                    "store after a # in the URI.",
                )
        try:
            server.create(schema)
            for batch in rows:
                server.write(server.rows, row_entities(batch, 0), new=True)
            server.index(server.rows, "row", "INVERTED")
            for number, space in enumerate(schema.spaces.values()):
                server.index(server.rows, f"key{number}", "FLAT", metric_type=METRICS[space.metric])
            server.index(server.texts, "vector", "FLAT", metric_type="L2")
            server.write(server.texts, text_entities("summary", 0, json.dumps(summary)))
            head = _Head(0, secrets.token_hex(8), schema, {})
            server.write(server.texts, [head.entity()])
            store = cls(uri)
            store._index()
            return store
        except BaseException:
            server.drop()
            raise
        finally:
            server.close()

    def _missing(self) -> StoreError:
        return StoreError(
            "missing",
            f"There is no store named {self._server.name!r} at {self._server.place}. Check the "
            "URI, or make one with 'nearwise move'.",
        )

    def _load_rows(self) -> None:
        """Let rows be searched; where a space has no index yet, exactly."""
        server = self._server
        for number, space in enumerate(self.schema.spaces.values()):
            if server.index_kind(f"key{number}") is None:
                metric = METRICS[space.metric]
                server.index(server.rows, f"key{number}", "FLAT", metric_type=metric)
        server.ask("load_collection", server.rows)

    def _head(self) -> _Head:
        found = self._server.query(
            self._server.texts, f'id == "{_HEAD}"', ["version", "text"], limit=1
        )
        if not found:
            raise self._missing()
        said = json.loads(found[0]["text"])
        if said["format"] > _VERSION:
            raise StoreError(
                "newer",
                f"The store at {self._server.place} has format version {said['format']} and this "
                f"nearwise reads up to {_VERSION}. Upgrade nearwise: pip install -U nearwise.",
            )
        schema = Schema.from_json(said["schema"])
        return _Head(int(found[0]["version"]), said["lineage"], schema, said["probes"])

    def reader(self) -> MilvusReader:
        """Open the newest version; see `RowStore.reader`."""
        head = self._head()
        if head.lineage != self.lineage:
            raise replaced(self._server.place)
        while self._reader is None or self._reader._head != head:
            summary = self._server.read_text("summary", head.version)
            if summary is not None:
                self._reader = MilvusReader(self._server, head, json.loads(summary))
                break
            before, head = head, self._head()  # it was changed just now
            if head == before:
                raise StoreError(
                    "torn",
                    f"The store at {self._server.place} lacks the summary of version "
                    f"{head.version}. Restore it from a copy.",
                )
        return self._reader

    # --- changes --------------------------------------------------------------------------------

    def apply(self, edit: Edit, expect: int) -> MilvusReader:
        """Make a change; see `RowStore.apply`."""
        version, server = expect + 1, self._server
        with self._changing:
            head = self._head()
            if head.version != expect or head.lineage != self.lineage:
                raise StoreError(
                    "changed",
                    f"The store at {server.place} is at version {head.version}, and the change was "
                    f"made from {expect}. Read it again.",
                )
            born = row_entities(edit.put, version)
            texts = self._texts_of(edit, version)
            self._clear(expect)
            server.write(server.rows, born)
            self._let_die(np.concatenate([edit.put.ids, edit.removed]), version)
            server.write(server.texts, texts)
            after = head._replace(version=version)
            server.write(server.texts, [after.entity()])
            self._reader = MilvusReader(server, after, edit.summary)
            return self._reader

    @staticmethod
    def _texts_of(edit: Edit, version: int) -> list[dict[str, Any]]:
        change = edit.change
        parts = {name: base64.b64encode(part).decode() for name, part in change.parts.items()}
        noted = {
            "kind": change.kind,
            "ids": change.ids,
            "details": change.details,
            "key": change.key,
            "digest": change.digest,
            "time": change.time,
        }
        return [
            *text_entities("summary", version, json.dumps(edit.summary)),
            *text_entities("change", version, json.dumps(noted), _key_of(change.key)),
            *(text_entities("parts", version, json.dumps(parts)) if parts else []),
        ]

    def _let_die(self, ids: np.ndarray, version: int) -> None:
        """Mark the rows that live before a version as not belonging to it."""
        step = rows_at_once(self.schema, rows=True)
        for start in range(0, len(ids), step):
            some = ids[start : start + step].tolist()
            self._date(f"row in {some} and {_living(version - 1)}", version, len(some))

    def _date(self, where: str, died: int, most: int) -> bool:
        """Note when up to `most` rows die, and return whether there were any."""
        fields = ["id", "born", *row_fields(self.schema, rows=True)]
        found = self._server.query(self._server.rows, where, fields, most)
        # Milvus writes an entity as a whole.
        self._server.write(self._server.rows, [dict(row) | {"died": died} for row in found])
        return bool(found)

    def _clear(self, version: int) -> None:
        """Remove what a writer left that was killed, and summaries that nobody reads."""
        server = self._server
        unborn, dying = f"born > {version}", f"died > {version} and died < {NEVER}"
        if server.query(server.rows, f"{unborn} or ({dying})", ["id"], limit=1):
            server.delete(server.rows, unborn)
            while self._date(dying, NEVER, rows_at_once(self.schema, rows=True)):
                pass
        server.delete(
            server.texts, f'version > {version} or (kind == "summary" and version < {version})'
        )

    # --- history --------------------------------------------------------------------------------

    def history(self, lineage: str, last: int | None = None) -> list[Change]:
        """Give the changes; see `RowStore.history`."""
        if lineage != self.lineage:
            return []
        newest = self._head().version
        first = 0 if last is None else newest - last
        found = self._server.read_texts(
            f'kind == "change" and version > {first} and version <= {newest}'
        )
        return [_change(version, text) for version, text in found.items()]

    def find(self, lineage: str, *, version: int | None = None, key: str | None = None) -> Change:
        """Give one change; see `RowStore.find`."""
        wanted = version
        if key is not None:
            named = self._server.query(
                self._server.texts,
                f'kind == "change" and key == "{_key_of(key)}"',
                ["version"],
                limit=1,
            )
            wanted = named[0]["version"] if named else None
        text = None
        if wanted is not None and wanted <= self._head().version and lineage == self.lineage:
            text = self._server.read_text("change", wanted)
        if wanted is None or text is None:
            raise KeyError(version if key is None else key)
        packed = json.loads(self._server.read_text("parts", wanted) or "{}")
        parts = {name: base64.b64decode(part) for name, part in packed.items()}
        return replace(_change(wanted, text), parts=parts)

    def drop(self) -> None:
        """Remove the store; see `RowStore.drop`."""
        self._server.drop()
        self.close()

    # --- snapshots ------------------------------------------------------------------------------

    def snapshot(self, *, keep_removed: bool = False) -> Snapshot:
        """Index the rows, and delete dead ones; see `RowStore.snapshot`."""
        server = self._server
        with self._changing:
            version = self._head().version
            self._clear(version)
            server.delete(server.rows, f"died <= {version}")
            if not keep_removed:
                server.delete(server.texts, f'kind == "parts" and version <= {version}')
            recall = self._index()
            for name in (server.rows, server.texts):
                server.ask("compact", name)
            return Snapshot(version, self.reader().n_rows, recall)

    def _index(self) -> dict[str, float]:
        """Index the spaces as their size requires, and measure the recall in each."""
        server, recall = self._server, dict.fromkeys(self.schema.spaces, 1.0)
        n_rows = server.count("born >= 0")
        server.ask("flush", server.rows)
        exact = n_rows < AUTO_EXACT_BELOW
        n_cells = max(1, min(int(4 * n_rows**0.5), n_rows // _ROWS_PER_CELL, _ALL_CELLS))
        probes: dict[str, int] = {}
        if not exact:  # before the indexes are there: an exact search does not mind
            probes = dict.fromkeys(self.schema.spaces, _FEWEST_PROBES)
            self._settle(probes)
        for number, space in enumerate(self.schema.spaces.values()):
            field, metric = f"key{number}", METRICS[space.metric]
            kind = server.index_kind(field)
            if kind == "FLAT" if exact else kind == "IVF_FLAT":
                continue
            if kind is not None:
                server.ask("release_collection", server.rows)
                server.ask("drop_index", server.rows, index_name(field))
            if not exact:
                parameters = {"metric_type": metric, "params": {"nlist": n_cells}}
                server.index(server.rows, field, "IVF_FLAT", **parameters)
        self._load_rows()
        for name in probes:
            probes[name], recall[name] = self._tuned(name)
        self._settle(probes)
        return recall

    def _settle(self, probes: dict[str, int]) -> None:
        """Note how many cells are searched."""
        head = self._head()
        if head.probes != probes:
            self._server.write(self._server.texts, [head._replace(probes=dict(probes)).entity()])

    def _tuned(self, name: str) -> tuple[int, float]:
        """Search more cells until enough is found; give their number and the recall."""
        reader = self.reader()
        queries, k = self._some(reader).keys[name], JUDGED_BY - SPARE
        search = partial(reader._search, name, queries, k, None)
        return widened(name, search, search(_ALL_CELLS), _FEWEST_PROBES, _ALL_CELLS)

    def _some(self, reader: MilvusReader) -> StoredRows:
        """Choose rows that searches are measured on."""
        server = self._server
        batches = server.scan(server.rows, _living(reader.version), ["row"], MOST_AT_ONCE)
        ids = np.array([entity["row"] for batch in batches for entity in batch])
        chosen = np.random.default_rng(0).choice(len(ids), RECALL_QUERIES, replace=False)
        return reader.fetch(ids[np.sort(chosen)])

    def verify(self) -> Verified:
        """Leave bytes to the server; see `RowStore.verify`."""
        self.reader()
        return Verified([], ["bytes of the rows (Milvus tells of no checksums)"])

    def close(self) -> None:
        """Close the connection; the next call makes one again."""
        self._server.close()


def _key_of(key: str | None) -> str:
    """Name a caller's key, whatever its length and letters."""
    return "" if key is None else hashlib.sha256(key.encode()).hexdigest()


def _change(version: int, text: str) -> Change:
    noted = json.loads(text)
    return Change(version, **noted | {"ids": tuple(noted["ids"])})
