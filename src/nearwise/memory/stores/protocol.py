"""RowStore: remembered rows in an engine that holds more than memory does, found by their ids."""

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

BATCH = 10_000  # rows that are written or read at once
_COLUMNS = {
    "id": pa.int64(), "label": pa.int64(), "weight": pa.float32(), "row": pa.large_binary(),
}  # fmt: skip
SPARE = 8  # candidates beyond those needed, so that exact distances settle the order at the edge


class SpaceSchema(NamedTuple):
    """A key space: numbers of a key, and the metric it is searched by."""

    width: Annotated[int, Field(ge=1)]
    metric: Metric


class Schema(NamedTuple):
    """What a store keeps of a row: a key per space, and `n_facts` further numbers."""

    spaces: dict[str, SpaceSchema]
    n_facts: Annotated[int, Field(ge=0)]

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` rebuilds it."""
        return {"spaces": {k: list(v) for k, v in self.spaces.items()}, "n_facts": self.n_facts}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild a schema from what `to_json` returned."""
        spaces = {name: SpaceSchema(*space) for name, space in data["spaces"].items()}
        return cls(spaces, data["n_facts"])

    def no_rows(self) -> "StoredRows":
        """Give no rows at all."""
        keys = {name: np.empty((0, s.width), np.float32) for name, s in self.spaces.items()}
        ids = np.empty(0, np.int64)
        facts = np.empty((0, self.n_facts), np.float32)
        return StoredRows(ids, ids, np.empty(0, np.float32), keys, facts, [])


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows as a store keeps them.

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
        What the model keeps of each row; the store does not use it.
    rows : list of bytes, or None
        The rows as they were given, packed by the model; None where they were not requested.
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
        """Return the rows at some positions, or where a mask is true."""
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
        """Put rows below each other; all of them have what they were given as, or none."""
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
        """Give the rows as one batch; keys are columns named "key SPACE", "facts" only if any."""
        columns = {
            "id": pa.array(self.ids, pa.int64()),
            "label": pa.array(self.labels, pa.int64()),
            "weight": pa.array(self.weights, pa.float32()),
            "row": pa.array(self.rows, pa.large_binary()),
        }
        if self.facts.shape[1]:  # Lance has no vectors of no numbers
            columns["facts"] = _vectors(self.facts)
        columns |= {f"key {name}": _vectors(keys) for name, keys in self.keys.items()}
        return pa.RecordBatch.from_pydict(columns)

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch) -> "StoredRows":
        """Rebuild rows from what `to_arrow` gave, the column "row" left out or not.

        ValueError if it is damaged, or something else.
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
        What is kept of it; its `version` is the one that the change makes.
    summary : dict
        What the model keeps of the memory as a whole from then on; JSON.
    put : StoredRows
        Rows that are new, or replace those with the same ids.
    removed : int64 ndarray of shape (n_removed,)
        Ids of rows to forget.
    """

    change: Change
    summary: dict[str, Any]
    put: StoredRows
    removed: np.ndarray


class Snapshot(NamedTuple):
    """What `RowStore.snapshot` found.

    `recall` maps every space to the share of the true nearest rows that a search finds, measured on
    `recall.RECALL_QUERIES` of the rows; 1 where searches are exact.
    """

    version: int
    n_rows: int
    recall: dict[str, float]


class Verified(NamedTuple):
    """What `RowStore.verify` looked at, in words, and what it could not look at."""

    checked: list[str]
    unchecked: list[str]


@runtime_checkable
class RowReader(Protocol):
    """One version of a store; it never changes, whatever is written meanwhile."""

    version: int
    summary: dict[str, Any]

    def search(
        self, space: str, query: np.ndarray, k: int, exclude: np.ndarray | None = None
    ) -> np.ndarray:
        """Find candidates among which the nearest rows of each query are.

        Parameters
        ----------
        space : str
        query : float32 ndarray of shape (n_queries, width)
        k : int
            At least this many candidates per query, if there are as many rows.
        exclude : int64 ndarray of shape (n_queries,), optional
            Id of a row to leave out for each query.

        Returns
        -------
        ids : int64 ndarray of shape (n_queries, at least k)
            In no order; -1 where there are no more. Their distances are measured by the caller,
            from the keys, so that all engines agree.
        """
        ...

    def fetch(self, ids: np.ndarray, *, rows: bool = False) -> StoredRows:
        """Give rows by their distinct ids, in that order; with `rows` as they were given, too.

        UnknownIdError if one is not there.
        """
        ...

    def scan(self) -> Iterator[StoredRows]:
        """Give all rows in batches, as they were given too."""
        ...


@runtime_checkable
class RowStore(Protocol):
    """Remembered rows in an engine of their own, which uses ids, never positions.

    Several processes may read a store and one at a time changes it: `apply` names the version that
    the change was made from, and is refused where another process was faster.
    """

    place: str  # as `located` gives it
    wait: float | None  # seconds that a change waits for that of another process; None: for ever

    @staticmethod
    def located(uri: str) -> str:
        """Say where a URI leads, always in the same words, without credentials and settings.

        Nothing is opened. ValueError if a store cannot be there.
        """
        ...

    @classmethod
    def create(
        cls, uri: str, schema: Schema, rows: Iterable[StoredRows], summary: dict[str, Any]
    ) -> "RowStore":
        """Make a store that is not there yet, at version 0; StoreError "foreign" if it is."""
        ...

    @classmethod
    def open(cls, uri: str) -> "RowStore":
        """Open a store; StoreError if there is none, or it is of a newer nearwise."""
        ...

    @property
    def schema(self) -> Schema:
        """What is kept of each row."""
        ...

    @property
    def lineage(self) -> str:
        """Name of the memory that versions count from."""
        ...

    def reader(self) -> RowReader:
        """Open the newest version, changes of other processes included."""
        ...

    def apply(self, edit: Edit, expect: int) -> RowReader:
        """Make a change durable, in one step or not at all, and give the version it makes.

        StoreError "changed" if the newest version is not `expect`; BlockingIOError if another
        process did not finish its change in time.
        """
        ...

    def history(self, lineage: str, last: int | None = None) -> list[Change]:
        """Give the changes since the store was made, oldest first, without their parts."""
        ...

    def find(self, lineage: str, *, version: int | None = None, key: str | None = None) -> Change:
        """Give the change of a version, or the one made under a key; KeyError if there is none."""
        ...

    def snapshot(self, *, keep_removed: bool = False) -> Snapshot:
        """Write what was changed to where it is searched fastest, and measure the recall.

        Unless `keep_removed`, what removed rows held is gone for good. UserWarning if the recall in
        a space stays below `recall.ENOUGH_RECALL`.
        """
        ...

    def verify(self) -> Verified:
        """Check what is stored beside reading all rows; StoreError names what is not sound."""
        ...

    def accept_loss(self) -> bool:
        """Go on without changes since the last snapshot, if they are lost; whether they were."""
        ...

    def close(self) -> None:
        """Release files and connections; the next call opens them again."""
        ...

    def drop(self) -> None:
        """Remove the store and all that it holds."""
        ...


def refuse_unknown(ids: np.ndarray, known: np.ndarray) -> None:
    """Raise UnknownIdError unless all ids are `known`, bool (n_ids,)."""
    if not known.all():
        missing = ids[~known]
        raise UnknownIdError(
            f"{len(missing)} of {len(ids)} ids are not remembered, first {missing[0]}."
        )


def replaced(place: str) -> StoreError:
    """Give the error of a store that another one has replaced."""
    return StoreError(
        "changed",
        f"Another memory has replaced the one in {place}; ids and versions of the former do not "
        "apply to it. Open the model again.",
    )
