"""The two collections of a store in Milvus: rows, and texts of any length about them."""

import base64
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from nearwise.memory.stores.access import OneProcess, is_local, package
from nearwise.memory.stores.protocol import BATCH, Schema, StoredRows

NEVER = 2**62  # version in which rows die that live
METRICS = {
    "euclidean": "L2",
    "sqeuclidean": "L2",
    "cosine": "COSINE",
    "inner_product": "IP",
}
MOST_AT_ONCE = 16_384  # rows that Milvus gives per query
_PORTS = {"http": 19530, "https": 443}
_NAME = "nearwise"  # of the collections, unless the URI's fragment names another
_MOST_TEXT = 65_535  # bytes of a VARCHAR
_MOST_BYTES = _MOST_TEXT // 4 * 3  # that are as many in base64
_CHUNK = 60_000  # characters of a text in one entity
_CHUNKS = 500  # that are read at once
_NARROWEST = 2  # numbers of a vector; Milvus takes no fewer
_REQUEST = 2**24  # bytes that are written at once; Milvus takes 64 MiB
_WITH_ROWS = 1_000  # rows that are read at once with what they were given as
_NOT_LOADED = (101, 103)  # codes of the errors while a collection is indexed again
_CONNECTING = 10.0  # seconds that a connection may take
_ANSWERING = 60.0  # ... and the answer to a query, or to what is written
_PATIENCE = 600.0  # seconds that a call waits for that


class MilvusServer(OneProcess):
    """Two collections in a database of a server; threads may share it.

    Parameters
    ----------
    uri : str
        As of `MilvusStore`.
    """

    def __init__(self, uri: str) -> None:
        super().__init__()
        parts = urlsplit(uri)
        transport, host = parts.scheme.partition("+")[2], parts.hostname or ""
        self.name, self.database = parts.fragment or _NAME, parts.path.strip("/")
        if not host or parts.username or parts.password or parts.query or "/" in self.database:
            raise ValueError(
                f"The URI of the store at {host!r} must be of the form "
                "milvus+http://HOST:PORT/DATABASE#NAME. The token comes from MILVUS_TOKEN."
            )
        netloc = f"[{host}]" if ":" in host else host
        netloc = f"{netloc}:{parts.port or _PORTS[transport]}"
        self._address = f"{transport}://{netloc}"
        self._token_may_be_sent = transport == "https" or is_local(host)
        if not self.name.isidentifier() or not self.name.isascii():
            raise ValueError(
                f"The store at {host} with the name {self.name!r}: use letters, digits and _ after "
                "the #."
            )
        self.place = f"milvus+{self._address}/{self.database}#{self.name}"
        self.rows, self.texts = f"{self.name}_rows", f"{self.name}_texts"
        self._client: Any = None
        self._lock = threading.Lock()

    @property
    def client(self) -> Any:
        """The connection, made on first use; OSError where there is no server."""
        self.refuse_fork()
        with self._lock:
            if self._client is None:
                pymilvus, token = package("pymilvus"), os.environ.get("MILVUS_TOKEN", "")
                if token and not self._token_may_be_sent:
                    raise ValueError(
                        f"The token in MILVUS_TOKEN would go to {self.place} in clear. Use "
                        "milvus+https://, or unset MILVUS_TOKEN if that server asks for none."
                    )
                try:
                    self._client = pymilvus.MilvusClient(
                        uri=self._address,
                        token=token,
                        db_name=self.database,
                        timeout=_CONNECTING,
                    )
                except pymilvus.MilvusException as error:
                    raise OSError(
                        f"could not reach the store at {self.place}: {error.message}. Check the "
                        "URI, that the server runs, and the token in MILVUS_TOKEN."
                    ) from error
            return self._client

    def close(self) -> None:
        """Close the connection; the next call makes one again. In a fork it is the parent's."""
        if self.is_forked:
            return
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def ask(self, call: str, *args: Any, **options: Any) -> Any:
        """Call the client, once the collections are loaded; OSError with the server's message."""
        return self._patiently(getattr(self.client, call), *args, **options)

    def _patiently(self, call: Any, *args: Any, **options: Any) -> Any:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return call(*args, **options)
            except package("pymilvus").MilvusException as error:
                if error.code in _NOT_LOADED and time.monotonic() < until:
                    time.sleep(0.1)  # it is indexed just now
                    continue
                raise OSError(
                    f"the store at {self.place} failed in {call.__name__}: {error.message} "
                    f"(code {error.code})."
                ) from error

    # --- collections ----------------------------------------------------------------------------

    def create(self, schema: Schema) -> None:
        """Make both collections, not yet indexed."""
        kind = package("pymilvus").DataType
        fields = self._described()
        for name in ("row", "born", "died", "label"):
            fields.add_field(name, kind.INT64)
        fields.add_field("weight", kind.FLOAT)
        for name in ("facts", "given"):
            fields.add_field(name, kind.VARCHAR, max_length=_MOST_TEXT)
        for number, space in enumerate(schema.spaces.values()):
            width = max(space.width, _NARROWEST)
            fields.add_field(f"key{number}", kind.FLOAT_VECTOR, dim=width)
        self._create(self.rows, fields)
        fields = self._described()
        for name in ("kind", "key"):
            fields.add_field(name, kind.VARCHAR, max_length=64)
        for name in ("version", "number"):
            fields.add_field(name, kind.INT64)
        fields.add_field("text", kind.VARCHAR, max_length=_MOST_TEXT)
        # Milvus needs a vector in every collection.
        fields.add_field("vector", kind.FLOAT_VECTOR, dim=_NARROWEST)
        self._create(self.texts, fields)

    def _described(self) -> Any:
        pymilvus = package("pymilvus")
        fields = pymilvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        fields.add_field("id", pymilvus.DataType.VARCHAR, is_primary=True, max_length=64)
        return fields

    def _create(self, name: str, fields: Any) -> None:
        self.ask("create_collection", name, schema=fields, consistency_level="Strong")

    def index_kind(self, field: str) -> str | None:
        """Name the kind of index that a field of the rows has, None without."""
        named = self.ask("list_indexes", self.rows, field_name=field)
        return str(self.ask("describe_index", self.rows, named[0])["index_type"]) if named else None

    def index(self, collection: str, field: str, kind: str, **parameters: Any) -> None:
        """Index a field of a collection that is not loaded."""
        described = self.client.prepare_index_params()
        described.add_index(field, index_type=kind, index_name=index_name(field), **parameters)
        # Searches are exact without a FLAT index, too; pymilvus waits half a second at least.
        self.ask("create_index", collection, described, sync=kind == "IVF_FLAT")

    def drop(self) -> None:
        """Remove both collections, where they are."""
        for name in (self.rows, self.texts):
            if self.ask("has_collection", name):
                self.ask("drop_collection", name)

    # --- entities -------------------------------------------------------------------------------

    def query(self, collection: str, where: str, fields: list[str], limit: int) -> list[Any]:
        """Give fields of the entities that a filter names."""
        options = {"filter": where, "output_fields": fields, "limit": limit}
        return list(self.ask("query", collection, **options, **_at_once()))

    def search(self, where: str, **options: Any) -> Any:
        """Search the rows that a filter names."""
        return self.ask("search", self.rows, filter=where, **options, **_at_once())

    def count(self, where: str) -> int:
        """Count the rows that a filter names."""
        options = {"filter": where, "output_fields": ["count(*)"]}
        found = self.ask("query", self.rows, **options, **_at_once())
        return int(found[0]["count(*)"])

    def scan(self, collection: str, where: str, fields: list[str], batch: int) -> Iterator[Any]:
        """Give lists of the entities that a filter names, in the order of their primary keys."""
        iterator = self.ask(
            "query_iterator",
            collection,
            batch_size=batch,
            filter=where,
            output_fields=fields,
            **_at_once(),
        )
        try:
            while found := self._patiently(iterator.next):
                yield list(found)
        finally:
            iterator.close()

    def write(
        self, collection: str, entities: Iterable[dict[str, Any]], *, new: bool = False
    ) -> None:
        """Write entities; unless they are `new`, in place of those with the same primary keys."""
        call = "insert" if new else "upsert"
        batch: list[dict[str, Any]] = []
        size = 0
        for entity in entities:
            batch.append(entity)
            size += sum(
                len(v) if isinstance(v, str) else np.asarray(v).nbytes for v in entity.values()
            )
            if size > _REQUEST or len(batch) >= BATCH:
                self.ask(call, collection, batch, timeout=_ANSWERING)
                batch, size = [], 0
        if batch:
            self.ask(call, collection, batch, timeout=_ANSWERING)

    def delete(self, collection: str, where: str) -> None:
        """Remove the entities that a filter names."""
        self.ask("delete", collection, filter=where, **_at_once())

    # --- texts ----------------------------------------------------------------------------------

    def read_text(self, kind: str, version: int) -> str | None:
        """Give one text, None if there is none."""
        parts: dict[int, str] = {}
        while not len(parts) % _CHUNKS:
            chosen = f"number >= {len(parts)} and number < {len(parts) + _CHUNKS}"
            where = f'kind == "{kind}" and version == {version} and {chosen}'
            found = self.query(self.texts, where, ["number", "text"], limit=_CHUNKS)
            if not found:
                break
            parts |= {entity["number"]: entity["text"] for entity in found}
        return "".join(parts[number] for number in sorted(parts)) if parts else None

    def read_texts(self, where: str) -> dict[int, str]:
        """Give the texts of one kind that a filter names, by their versions, in order."""
        parts: dict[int, dict[int, str]] = defaultdict(dict)
        for batch in self.scan(self.texts, where, ["version", "number", "text"], _CHUNKS):
            for entity in batch:
                parts[entity["version"]][entity["number"]] = entity["text"]
        return {
            version: "".join(parts[version][number] for number in sorted(parts[version]))
            for version in sorted(parts)
        }


def _at_once() -> dict[str, Any]:
    """Options of what is to see all that was written, and to answer."""
    return {"consistency_level": "Strong", "timeout": _ANSWERING}


def index_name(field: str) -> str:
    """Name the index of a field; Milvus Lite drops all indexes where the name is another."""
    return f"{field}_idx"


def text_entities(kind: str, version: int, text: str, key: str = "") -> list[dict[str, Any]]:
    """Cut an ASCII text into entities."""
    chunks = [text[start : start + _CHUNK] for start in range(0, max(len(text), 1), _CHUNK)]
    return [
        {
            "id": f"{kind}.{version:019d}.{number:08d}",
            "kind": kind,
            "key": key,
            "version": version,
            "number": number,
            "text": chunk,
            "vector": [0.0] * _NARROWEST,
        }
        for number, chunk in enumerate(chunks)
    ]


def row_fields(schema: Schema, *, rows: bool) -> list[str]:
    """Name the fields that make `StoredRows`."""
    keys = [f"key{number}" for number in range(len(schema.spaces))]
    return ["row", "label", "weight", "facts", *keys, *(["given"] if rows else [])]


def rows_at_once(schema: Schema, *, rows: bool) -> int:
    """How many rows are read at once; Milvus gives up to 100 MB."""
    width = sum(space.width for space in schema.spaces.values()) + schema.n_facts
    return max(1, min(_WITH_ROWS if rows else BATCH, _REQUEST // (4 * width + 1)))


def check_schema(schema: Schema) -> None:
    """Refuse what Milvus cannot hold or search."""
    for name, space in schema.spaces.items():
        if space.metric not in METRICS:
            raise ValueError(
                f"Milvus does not search by the metric {space.metric!r} of the space {name!r}. Use "
                f"one of {', '.join(METRICS)}, or a store on disk or in PostgreSQL."
            )
    if 4 * schema.n_facts > _MOST_BYTES:
        raise ValueError(
            f"{schema.n_facts} facts were given per row, and Milvus takes {_MOST_BYTES // 4}. Use "
            "a store on disk or in PostgreSQL."
        )


def row_entities(rows: StoredRows, born: int) -> list[dict[str, Any]]:
    """Describe rows that are born with a version; ValueError if Milvus cannot hold one."""
    assert rows.rows is not None  # they are written as they were given
    entities = []
    for i, given in enumerate(rows.rows):
        if len(given) > _MOST_BYTES:
            raise ValueError(
                f"The row with the id {rows.ids[i]} takes {len(given)} bytes, and Milvus takes "
                f"{_MOST_BYTES}. Use a store on disk or in PostgreSQL."
            )
        number = int(rows.ids[i])
        entity = {
            "id": f"{number:019d}.{born}",  # in the order of the numbers
            "row": number,
            "born": born,
            "died": NEVER,
            "label": int(rows.labels[i]),
            "weight": float(rows.weights[i]),
            "facts": base64.b64encode(rows.facts[i].astype("<f4").tobytes()).decode(),
            "given": base64.b64encode(given).decode(),
        }
        entity |= {f"key{n}": searched(part[i]) for n, part in enumerate(rows.keys.values())}
        entities.append(entity)
    return entities


def searched(key: np.ndarray) -> np.ndarray:
    """Give a key as Milvus takes it: zeros at its end change no distance."""
    lacking = max(0, _NARROWEST - len(key))
    return np.pad(key, (0, lacking)) if lacking else key


def rows_of(entities: list[Any], schema: Schema, *, rows: bool) -> StoredRows:
    """Rebuild rows from the fields that `row_fields` names."""
    if not entities:
        return replace(schema.no_rows(), rows=[] if rows else None)
    keys = {
        name: np.array([e[f"key{number}"] for e in entities], np.float32)[:, : space.width].copy()
        for number, (name, space) in enumerate(schema.spaces.items())
    }
    facts = np.frombuffer(b"".join(base64.b64decode(e["facts"]) for e in entities), "<f4")
    return StoredRows(
        np.array([e["row"] for e in entities], np.int64),
        np.array([e["label"] for e in entities], np.int64),
        np.array([e["weight"] for e in entities], np.float32),
        keys,
        facts.reshape(len(entities), schema.n_facts).astype(np.float32),
        [base64.b64decode(e["given"]) for e in entities] if rows else None,
    )
