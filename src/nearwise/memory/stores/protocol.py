"""Protocol of row stores: engines for memories larger than RAM, with rows found by id."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import pyarrow as pa
from pydantic import Field

from nearwise.functional import Metric
from nearwise.memory.arrow import checked
from nearwise.memory.checks import UnknownIdError
from nearwise.memory.journal import Change
from nearwise.memory.store import StoreError

BATCH = 10_000  # rows per write or read
_COLUMNS = {
    "id": pa.int64(), "label": pa.int64(), "weight": pa.float32(), "row": pa.large_binary(),
}  # fmt: skip
SPARE = 8  # extra candidates, so that exact distances decide the last neighbors


class SpaceSchema(NamedTuple):
    """A key space: width of the keys and search metric."""

    width: Annotated[int, Field(ge=1)]
    metric: Metric


class Schema(NamedTuple):
    """Stored columns of a row: a key per space, and `n_facts` further numbers."""

    spaces: dict[str, SpaceSchema]
    n_facts: Annotated[int, Field(ge=0)]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `from_json`."""
        return {"spaces": {k: list(v) for k, v in self.spaces.items()}, "n_facts": self.n_facts}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild a schema from the data of `to_json`."""
        spaces = {name: SpaceSchema(*space) for name, space in data["spaces"].items()}
        return cls(spaces, data["n_facts"])

    def no_rows(self) -> "StoredRows":
        """Return zero rows of this schema."""
        keys = {name: np.empty((0, s.width), np.float32) for name, s in self.spaces.items()}
        ids = np.empty(0, np.int64)
        facts = np.empty((0, self.n_facts), np.float32)
        return StoredRows(ids, ids, np.empty(0, np.float32), keys, facts, [])


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of a store.

    Attributes
    ----------
    ids : int64 ndarray of shape (n,)
        Unique.
    labels : int64 ndarray of shape (n,)
        Class positions.
    weights : float32 ndarray of shape (n,)
    keys : dict of str to float32 ndarray of shape (n, width)
        By the names of the spaces.
    facts : float32 ndarray of shape (n, n_facts)
        Further numbers of the model per row; the store does not use them.
    rows : list of bytes, or None
        Input rows, packed by the model; None if they were not requested.
    """

    ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    keys: dict[str, np.ndarray]
    facts: np.ndarray
    rows: list[bytes] | None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, at: np.ndarray) -> "StoredRows":
        """Return the rows at these positions, or at the true entries of a mask."""
        keys = {name: part[at] for name, part in self.keys.items()}
        numbers = np.arange(len(self))[at].tolist()
        rows = None if self.rows is None else [self.rows[i] for i in numbers]
        parts = (self.ids[at], self.labels[at], self.weights[at])
        return StoredRows(*parts, keys, self.facts[at], rows)

    def by_id(self, ids: np.ndarray) -> "StoredRows":
        """Return the rows with these distinct ids, in that order; see `RowReader.fetch`."""
        refuse_unknown(ids, np.isin(ids, self.ids))
        order = np.argsort(self.ids)
        return self.take(order[np.searchsorted(self.ids, ids, sorter=order)])

    @classmethod
    def joined(cls, parts: Sequence["StoredRows"]) -> "StoredRows":
        """Concatenate rows; `rows` must be present in all parts or in none."""
        keys = {name: np.concatenate([p.keys[name] for p in parts]) for name in parts[0].keys}
        rows = None
        if parts[0].rows is not None:
            rows = [row for part in parts for row in part.rows or ()]
        ids, labels, weights, facts = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("ids", "labels", "weights", "facts")
        )
        return cls(ids, labels, weights, keys, facts, rows)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows as one batch; keys are columns named "key SPACE", "facts" only if any."""
        columns = {
            "id": pa.array(self.ids, pa.int64()),
            "label": pa.array(self.labels, pa.int64()),
            "weight": pa.array(self.weights, pa.float32()),
            "row": pa.array(self.rows, pa.large_binary()),
        }
        if self.facts.shape[1]:  # Lance does not support empty vectors
            columns["facts"] = _vectors(self.facts)
        columns |= {f"key {name}": _vectors(keys) for name, keys in self.keys.items()}
        return pa.RecordBatch.from_pydict(columns)

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch) -> "StoredRows":
        """Rebuild rows from the batch of `to_arrow`, with or without the column "row".

        ValueError if the table is damaged or has other columns.
        """
        checked(table)
        found = {name: table.column(name) for name in table.schema.names}
        for name, column in found.items():
            wanted = _COLUMNS.get(name) or pa.list_(pa.float32(), _width(column.type))
            if column.type != wanted or column.null_count:
                raise ValueError(f"the column {name!r} is of type {column.type}, or has gaps")
        keys = {n[4:]: _matrix(found[n]) for n in found if n.startswith("key ")}
        rows = found["row"].to_pylist() if "row" in found else None
        ids, labels, weights = (found[name].to_numpy().copy() for name in ("id", "label", "weight"))
        no_facts = np.empty((len(ids), 0), np.float32)
        facts = _matrix(found["facts"]) if "facts" in found else no_facts
        return cls(ids, labels, weights, keys, facts, rows)


def _width(kind: pa.DataType) -> int:
    return kind.list_size if pa.types.is_fixed_size_list(kind) else -1


def _vectors(values: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _matrix(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    width = column.type.list_size
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), width).copy()


class Edit(NamedTuple):
    """One change of a store.

    Attributes
    ----------
    change : Change
        Journal entry; its `version` is the version after the change.
    summary : dict
        New data of the model about the whole memory; JSON.
    put : StoredRows
        New rows, and replacements of rows with the same ids.
    removed : int64 ndarray of shape (n_removed,)
        Ids of rows to forget.
    """

    change: Change
    summary: dict[str, Any]
    put: StoredRows
    removed: np.ndarray


class Snapshot(NamedTuple):
    """Report of `RowStore.snapshot`.

    `recall` maps every space to the share of the true nearest rows that a search finds, measured on
    `recall.RECALL_QUERIES` of the rows; 1 where searches are exact.
    """

    version: int
    n_rows: int
    recall: dict[str, float]


class Verified(NamedTuple):
    """Checked and unchecked parts of a store, in words."""

    checked: list[str]
    unchecked: list[str]


@runtime_checkable
class RowReader(Protocol):
    """One immutable version of a store; later writes do not affect it."""

    version: int
    summary: dict[str, Any]

    def search(
        self, space: str, query: np.ndarray, k: int, exclude: np.ndarray | None = None
    ) -> np.ndarray:
        """Find candidates that include the nearest rows of each query.

        Parameters
        ----------
        space : str
        query : float32 ndarray of shape (n_queries, width)
        k : int
            Minimum number of candidates per query, if there are enough rows.
        exclude : int64 ndarray of shape (n_queries,), optional
            Id of a row to leave out for each query.

        Returns
        -------
        ids : int64 ndarray of shape (n_queries, at least k)
            Unordered; -1 in unused entries. The caller computes the distances from the keys, so
            that all engines agree.
        """
        ...

    def fetch(self, ids: np.ndarray, *, rows: bool = False) -> StoredRows:
        """Return rows by distinct ids, in that order; with `rows`, also the packed input rows.

        UnknownIdError if an id is missing.
        """
        ...

    def scan(self) -> Iterator[StoredRows]:
        """Yield all rows in batches, with their packed input rows."""
        ...


@runtime_checkable
class RowStore(Protocol):
    """Protocol of row stores; rows are identified by ids, never by positions.

    Many processes may read a store; one at a time changes it: `apply` names the version that the
    change is based on, and fails if another process has changed the store meanwhile.
    """

    place: str  # result of `located`
    wait: float | None  # seconds to wait for a change of another process; None: no limit

    @staticmethod
    def located(uri: str) -> str:
        """Return the canonical form of a URI, without credentials and settings.

        Nothing is opened. ValueError if the URI is invalid.
        """
        ...

    @classmethod
    def create(
        cls, uri: str, schema: Schema, rows: Iterable[StoredRows], summary: dict[str, Any]
    ) -> "RowStore":
        """Create a new store at version 0; StoreError "foreign" if it exists."""
        ...

    @classmethod
    def open(cls, uri: str) -> "RowStore":
        """Open a store; StoreError if it is missing or of a newer nearwise."""
        ...

    @property
    def schema(self) -> Schema:
        """Stored columns of a row."""
        ...

    @property
    def lineage(self) -> str:
        """Identifier of the memory that the versions belong to."""
        ...

    def reader(self) -> RowReader:
        """Open the newest version, including changes of other processes."""
        ...

    def apply(self, edit: Edit, expect: int) -> RowReader:
        """Make a change durable and atomic; return a reader of the new version.

        StoreError "changed" if the newest version is not `expect`; BlockingIOError if another
        process did not finish its change in time.
        """
        ...

    def history(self, lineage: str, last: int | None = None) -> list[Change]:
        """Return the changes since the store was made, oldest first, without their parts."""
        ...

    def find(self, lineage: str, *, version: int | None = None, key: str | None = None) -> Change:
        """Return the change with a version or a key; KeyError if there is none."""
        ...

    def snapshot(self, *, keep_removed: bool = False) -> Snapshot:
        """Rebuild files and indexes from the present rows, and measure the recall.

        Unless `keep_removed`, the content of removed rows is deleted. UserWarning if the recall in
        a space stays below `recall.ENOUGH_RECALL`.
        """
        ...

    def verify(self) -> Verified:
        """Check stored data beyond a scan of all rows; StoreError names damaged parts."""
        ...

    def accept_loss(self) -> bool:
        """Continue without lost changes since the last snapshot; return whether any were lost."""
        ...

    def close(self) -> None:
        """Release files and connections; the next call opens them again."""
        ...

    def drop(self) -> None:
        """Delete the store and all its content."""
        ...


def refuse_unknown(ids: np.ndarray, known: np.ndarray) -> None:
    """Raise UnknownIdError unless all ids are `known`, bool (n_ids,)."""
    if not known.all():
        missing = ids[~known]
        raise UnknownIdError(
            f"{len(missing)} of {len(ids)} ids are not remembered, first {missing[0]}."
        )


def replaced(place: str) -> StoreError:
    """Return the StoreError for a store that was replaced by another one."""
    return StoreError(
        "changed",
        f"Another memory has replaced the one in {place}; ids and versions of the former do not "
        "apply to it. Open the model again.",
    )
