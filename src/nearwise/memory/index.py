"""Neighbor indexes: protocol, common base classes and the exact index."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.forking import heed_forks
from nearwise.functional import DEFAULT_MEMORY_BUDGET, Metric, Neighbors
from nearwise.functional.distances import center_of, check_metric
from nearwise.functional.search import (
    check_left,
    check_n_neighbors,
    check_query,
    check_rows,
    search_checked,
)
from nearwise.functional.search_cpu import KeyNorms, refuse_not_finite
from nearwise.functional.search_torch import PreparedKeys, search_prepared
from nearwise.memory import checks

IndexName = Literal["auto", "exact", "faiss-flat-l2", "faiss-flat-ip", "hnsw", "ivf-flat"]


class ReadWriteLock:
    """Many readers at once, or one writer alone; a waiting writer has priority over new readers."""

    def __init__(self) -> None:
        self._release()
        heed_forks(self, ReadWriteLock._release)  # their lock holders may be gone

    def _release(self) -> None:
        """Reset to the unlocked state."""
        self._changed = threading.Condition()
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0

    def __reduce__(self) -> tuple[type["ReadWriteLock"], tuple[()]]:
        """Copy and pickle as a new, unlocked lock."""
        return ReadWriteLock, ()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._writers_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
            finally:
                self._writers_waiting -= 1
                self._changed.notify_all()
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()


@runtime_checkable
class NeighborIndex(Protocol):
    """Protocol of indexes that search the nearest remembered rows.

    All indexes use the units of `nearwise.functional.pairwise_distances`, return the nearest
    neighbor first and exclude a query by its id. Exact indexes break every tie alike: the lowest
    position wins. Searching from many threads is safe, also while rows are added or removed.
    """

    metric: Metric
    is_exact: bool

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    @property
    def ids(self) -> Tensor:
        """Ids of the rows, int64 of shape (n_rows,), in the order of their positions."""
        ...

    def fit(self, keys: Tensor, ids: Tensor | None = None) -> Self:
        """Replace all rows by `keys` (n_rows, n_features) with `ids` (n_rows,)."""
        ...

    def add(self, keys: Tensor, ids: Tensor | None = None) -> None:
        """Append rows; their positions follow the present ones."""
        ...

    def remove(self, ids: Tensor) -> None:
        """Remove rows; the others keep their order, so later positions shift down."""
        ...

    def search(self, query: Tensor, n_neighbors: int, query_ids: Tensor | None = None) -> Neighbors:
        """Find the nearest rows of each query.

        Parameters
        ----------
        query : Tensor of shape (n_queries, n_features)
            Finite rows.
        n_neighbors : int
            At least 1, at most the rows left.
        query_ids : int64 Tensor of shape (n_queries,), optional
            The row with the id of the query is left out.

        Returns
        -------
        neighbors : Neighbors
            Distances (n_queries, n_neighbors) float32 and positions (n_queries, n_neighbors).
        """
        ...


class IndexState(NamedTuple):
    """Fitted state of an index; with the same keys it restores an equal index.

    Attributes
    ----------
    name : IndexName
        Of the index; never "auto".
    n_fitted : int
        Number of rows at the last fit; some may have been removed since.
    ids : int64 Tensor of shape (n_rows,)
        Ids of the present rows.
    cells : int32 Tensor of shape (n_rows,)
        Cell of each row; 0 where the index has no cells.
    learned : dict of str to Tensor
        Further fitted tensors; empty if the index can be rebuilt from its rows alone.
    """

    name: IndexName
    n_fitted: int
    ids: Tensor
    cells: Tensor
    learned: dict[str, Tensor]


class BaseIndex(ABC):
    """Base of all indexes: rows, ids, checks and locking; subclasses implement the search.

    Parameters
    ----------
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        Unit and order of the distances; "euclidean" by default.
    """

    is_exact = True
    name: ClassVar[IndexName]
    n_fitted = 0  # rows at the last `fit`

    def __init__(self, metric: Metric = "euclidean") -> None:
        self.metric = check_metric(metric)
        self._keys, self._ids = torch.empty(0, 0), torch.empty(0, dtype=torch.int64)
        self._lock = ReadWriteLock()

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(metric={self.metric!r}, n_rows={len(self)})"

    @property
    def ids(self) -> Tensor:
        """Ids of the rows, int64 of shape (n_rows,), in the order of their positions."""
        return self._ids

    def fit(self, keys: Tensor, ids: Tensor | None = None) -> Self:
        """Replace all rows by these.

        Parameters
        ----------
        keys : Tensor of shape (n_rows, n_features)
            At least one row; float32, float64, bfloat16 or float16, finite. Not copied.
        ids : int64 Tensor of shape (n_rows,), optional
            Unique; 0, 1, 2, ... by default.

        Returns
        -------
        self : NeighborIndex
            The index, ready to search.
        """
        keys, own = self._checked(keys, torch.arange(len(keys)) if ids is None else ids)
        with self._lock.write():
            self._keys, self._ids, self.n_fitted = keys, own, len(own)
            self._build()
        return self

    def state(self) -> IndexState:
        """Return the fitted state of the index."""
        with self._lock.read():
            cells, learned = self._learned()
            return IndexState(self.name, self.n_fitted, self._ids, cells, learned)

    def restore(self, state: IndexState, keys: Tensor, ids: Tensor) -> Self:
        """Index rows with the fitted state of another index instead of a new fit.

        Parameters
        ----------
        state : IndexState
            State of an index with this name and metric.
        keys, ids : Tensor
            As in `fit`; all `ids` are among the ids of `state`.

        Returns
        -------
        self : NeighborIndex
            The index, ready to search. It returns the neighbors that the other index would return
            with these rows alone.
        """
        keys, own = self._checked(keys, ids)
        cells = state.cells[checks.find_ids(own, state.ids, "state of the index")]
        with self._lock.write():
            self._keys, self._ids, self.n_fitted = keys, own, state.n_fitted
            self._rebuild(cells, state.learned)
        return self

    def _checked(self, keys: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Check the rows and ids to index, and move the rows to the search device."""
        check_rows("keys", keys)
        check_n_neighbors(1, len(keys))
        refuse_not_finite("keys", keys)
        keys = self._place(keys.detach())
        return keys, checks.as_ids(ids, keys.device, len(keys))

    def add(self, keys: Tensor, ids: Tensor | None = None) -> None:
        """Append rows; by default their ids go on from the largest present one."""
        check_rows("keys", keys)
        refuse_not_finite("keys", keys)
        with self._lock.write():
            self._check_width("keys", keys)
            keys = self._place(keys.detach()).to(self._keys)
            if ids is None:
                first = int(self._ids.max()) + 1 if len(self) else 0
                ids = torch.arange(first, first + len(keys))
            new = checks.as_ids(ids, keys.device, len(keys))
            checks.refuse_taken(new, self._ids, "index")
            self._keys, self._ids = torch.cat([self._keys, keys]), torch.cat([self._ids, new])
            self._append(len(keys))

    def remove(self, ids: Tensor) -> None:
        """Remove the rows with these ids; the others keep their order."""
        with self._lock.write():
            gone = torch.zeros(len(self), dtype=torch.bool, device=self._ids.device)
            gone[checks.find_ids(ids, self._ids, "index")] = True
            self._keys, self._ids = self._keys[~gone], self._ids[~gone]
            self._drop(gone)

    def search(self, query: Tensor, n_neighbors: int, query_ids: Tensor | None = None) -> Neighbors:
        """Find the nearest rows of each query; see `NeighborIndex.search`.

        Raises
        ------
        ValueError
            If the index is empty, a value is NaN or infinite, shapes do not fit, or `n_neighbors`
            exceeds the rows left for a query.
        """
        with self._lock.read():
            check_query(query, n_neighbors, len(self), "rows of the index")
            self._check_width("query", query)
            if query_ids is not None:
                query_ids = checks.as_ids(query_ids, self._ids.device, len(query), unique=False)
            return self._find(query.detach(), n_neighbors, query_ids)

    def _place(self, rows: Tensor) -> Tensor:
        """Move rows to the search device."""
        return rows

    def _check_width(self, name: str, rows: Tensor) -> None:
        if rows.shape[1] != self._keys.shape[1]:
            raise ValueError(
                f"{name} has {rows.shape[1]} features and the index {self._keys.shape[1]} "
                f"({len(self)} rows). Embed both in the same space, or call fit first."
            )

    def _search_exactly(
        self,
        query: Tensor,
        n_neighbors: int,
        query_ids: Tensor | None,
        norms: KeyNorms | None = None,
    ) -> Neighbors:
        ids = None if query_ids is None else (query_ids, self._ids)
        return search_checked(
            query, self._keys, n_neighbors, self.metric, ids, DEFAULT_MEMORY_BUDGET, norms
        )

    @abstractmethod
    def _find(self, query: Tensor, n_neighbors: int, query_ids: Tensor | None) -> Neighbors:
        """Search; the lock is held, and arguments are checked except for finite values."""

    @abstractmethod
    def _build(self) -> None:
        """Index all of `_keys`."""

    def _learned(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return `cells` and `learned` of an `IndexState`."""
        return torch.zeros(len(self), dtype=torch.int32), {}

    def _rebuild(self, cells: Tensor, learned: dict[str, Tensor]) -> None:
        """Index all of `_keys` with the fitted state given."""
        self._build()

    @abstractmethod
    def _append(self, n_rows: int) -> None:
        """Index the last `n_rows` of `_keys`."""

    @abstractmethod
    def _drop(self, gone: Tensor) -> None:
        """Remove rows, given as a mask of the former positions."""


class ProductIndex(BaseIndex):
    """Base of indexes that find candidates by float32 products of rows on the CPU.

    They hold a float32 copy of the rows: centered for the Euclidean metrics if that improves
    precision, of unit length for "cosine".
    """

    _center: Tensor | None = None

    @property
    def _is_euclidean(self) -> bool:
        return self.metric in ("euclidean", "sqeuclidean")

    def _place(self, rows: Tensor) -> Tensor:
        return rows.cpu()

    def _recenter(self) -> None:
        self._center = center_of(self._keys) if self._is_euclidean and len(self) else None

    def _vectors(self, rows: Tensor) -> NDArray[np.float32]:
        """Return the float32 rows used in products."""
        if self.metric == "cosine":
            rows = torch.nn.functional.normalize(rows.double(), dim=1, eps=1e-300)
        elif self._center is not None:
            rows = rows - self._center
        return np.ascontiguousarray(rows.float().numpy())


class ExactIndex(BaseIndex):
    """Brute-force index over all rows; see `nearwise.functional.topk_neighbors`.

    Queries on another device are moved there and their neighbors back.

    Parameters
    ----------
    metric
        As for every index.
    device : torch.device, optional
        Rows are moved there and searched in plain torch, on a CPU too. None: rows stay on their
        device, and on a CPU they are searched by compiled loops.
    """

    name = "exact"
    _norms: KeyNorms | None = None
    _prepared: PreparedKeys | None = None

    def __init__(self, metric: Metric = "euclidean", *, device: torch.device | None = None) -> None:
        super().__init__(metric)
        self.device = device

    def _place(self, rows: Tensor) -> Tensor:
        return rows if self.device is None else rows.to(self.device)

    def _find(self, query: Tensor, n_neighbors: int, query_ids: Tensor | None) -> Neighbors:
        rows = query.to(self._keys.device)
        if self._prepared is None:
            found = self._search_exactly(rows, n_neighbors, query_ids, self._norms)
        else:
            refuse_not_finite("query", rows)
            found = self._search_prepared(rows, self._prepared, n_neighbors, query_ids)
        return Neighbors(*(part.to(query.device) for part in found))

    def _search_prepared(
        self, query: Tensor, prepared: PreparedKeys, n_neighbors: int, query_ids: Tensor | None
    ) -> Neighbors:
        ids = None if query_ids is None else (query_ids, self._ids)
        budget = DEFAULT_MEMORY_BUDGET
        distances, indices, left = search_prepared(query, prepared, n_neighbors, ids, budget)
        if ids and len(query):
            check_left(int(left.min()), n_neighbors, len(self))
        return Neighbors(distances, indices)

    def _build(self) -> None:
        self._norms = self._prepared = None
        if self.device is not None or self._keys.device.type != "cpu":
            self._prepared = PreparedKeys.of(self._keys, self.metric)
            return
        is_euclidean = self.metric in ("euclidean", "sqeuclidean")
        self._norms = KeyNorms.of(self._keys, is_euclidean)

    def _append(self, n_rows: int) -> None:
        self._build()

    def _drop(self, gone: Tensor) -> None:
        self._build()
