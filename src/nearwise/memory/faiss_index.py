"""FAISS indexes with the distance units, order and ties of `NeighborIndex`."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.functional import DEFAULT_MEMORY_BUDGET, Metric, Neighbors
from nearwise.functional.search import check_left
from nearwise.functional.search_cpu import measure_candidates, refuse_not_finite
from nearwise.functional.threads import own_threads
from nearwise.memory.index import ProductIndex

Floats = NDArray[np.float32]
Slots = NDArray[np.int64]

# Extra candidates, so that exact distances decide which rows are the last neighbors.
_SPARE = 8
_ROUNDING = 6.6e-8  # 1.1 times the rounding unit of float32


def _import_faiss() -> ModuleType:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            'the FAISS index needs the extra "faiss": pip install nearwise[faiss]'
        ) from error
    return faiss


class FaissIndex(ProductIndex):
    """Index that takes candidates from FAISS and recomputes their distances.

    FAISS holds a float32 copy of the rows (centered for the Euclidean metrics if that improves
    precision, of unit length for "cosine"); distances are computed from the original rows, on the
    CPU. A query for which FAISS finds too few rows is searched exactly. Raises ImportError if
    faiss is not installed, ValueError if the index does not support the metric.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ("euclidean", "sqeuclidean", "cosine", "inner_product")

    def __init__(self, metric: Metric = "euclidean") -> None:
        super().__init__(metric)
        if self.metric not in self.metrics:
            raise ValueError(
                f"{type(self).__name__} does not support metric={metric!r}. "
                f'Use {" or ".join(self.metrics)}, or index="exact".'
            )
        _import_faiss()
        self._index: Any = None
        # FAISS's ids of the rows, ascending: row i has the id `_slots[i]`.
        self._slots: Slots = np.empty(0, dtype=np.int64)
        self._next_slot = 0

    def __getstate__(self) -> dict[str, Any]:
        index = None if self._index is None else self._faiss.serialize_index(self._index)
        return self.__dict__ | {"_index": index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._index is not None:
            self._index = self._faiss.deserialize_index(self._index)

    @property
    def _faiss(self) -> ModuleType:
        return _import_faiss()

    @property
    def _faiss_metric(self) -> int:
        name = "METRIC_L2" if self._is_euclidean else "METRIC_INNER_PRODUCT"
        return int(getattr(self._faiss, name))

    def _build(self) -> None:
        self._recenter()
        vectors = self._vectors(self._keys)
        self._index = self._make(*vectors.shape)
        if not self._index.is_trained:
            with own_threads():
                self._index.train(vectors)
        self._next_slot = 0
        self._slots = self._slots[:0]
        self._append(len(vectors))

    def _append(self, n_rows: int) -> None:
        new = np.arange(self._next_slot, self._next_slot + n_rows)
        self._insert(self._vectors(self._keys[len(self) - n_rows :]), new)
        self._slots = np.concatenate([self._slots, new])
        self._next_slot += n_rows

    def _drop(self, gone: Tensor) -> None:
        lost = gone.numpy()
        slots, self._slots = self._slots[lost], self._slots[~lost]
        self._delete(slots)

    def _find(self, query: Tensor, n_neighbors: int, query_ids: Tensor | None) -> Neighbors:
        refuse_not_finite("query", query)
        rows = query.cpu()
        n_rows, n_asked = len(self), min(len(self), n_neighbors + _SPARE)
        if query_ids is not None:
            left_out = bool(torch.isin(query_ids, self._ids).any())
            check_left(n_rows - left_out, n_neighbors, n_rows)
            n_asked = min(n_rows, n_asked + 1)
        vectors = self._vectors(rows)
        scores, slots = self._search(vectors, n_asked)
        found = slots >= 0
        positions = np.searchsorted(self._slots, np.where(found, slots, self._next_slot))
        positions = np.minimum(positions, n_rows - 1)
        if query_ids is not None:
            found &= self._ids.numpy()[positions] != query_ids.numpy()[:, None]
        exact = measure_candidates(rows, self._keys, positions, self.metric, DEFAULT_MEMORY_BUDGET)
        exact[~found] = np.inf
        # By distance, then position.
        order = np.lexsort((positions, exact, ~found), axis=1)[:, :n_neighbors]
        distances = torch.from_numpy(np.take_along_axis(exact, order, 1))
        indices = torch.from_numpy(np.take_along_axis(positions, order, 1))
        unsure = found.sum(1) < n_neighbors
        if n_asked < n_rows:
            unsure |= self._may_miss(vectors, scores[:, -1], distances[:, -1].numpy())
        if unsure.any():
            at = torch.from_numpy(unsure.nonzero()[0])
            own = None if query_ids is None else query_ids[at]
            distances[at], indices[at] = self._search_exactly(rows[at], n_neighbors, own)
        return Neighbors(distances.to(query.device), indices.to(query.device))

    def _search(self, vectors: Floats, n_asked: int) -> tuple[Floats, Slots]:
        """Return FAISS's scores and slots, best first; slot -1 where FAISS returned too few."""
        with own_threads():
            scores, slots = self._index.search(vectors, n_asked, params=self._parameters(n_asked))
        return scores, slots

    @abstractmethod
    def _make(self, n_rows: int, width: int) -> Any:
        """Return an empty FAISS index for about `n_rows` rows."""

    @abstractmethod
    def _parameters(self, n_asked: int) -> Any:
        """Return FAISS's parameters of a search for `n_asked` candidates."""

    @abstractmethod
    def _insert(self, vectors: Floats, slots: Slots) -> None:
        """Add rows under these slots, all larger than the present ones."""

    @abstractmethod
    def _delete(self, slots: Slots) -> None:
        """Remove rows; `_slots` already excludes them."""

    @abstractmethod
    def _may_miss(self, vectors: Floats, edge: Floats, worst: Floats) -> NDArray[np.bool_]:
        """Return a mask of the queries that need the exact search.

        `edge` (b,) is FAISS's score of its last candidate and `worst` (b,) the distance of the
        last neighbor among the candidates.
        """


class _FlatIndex(FaissIndex):
    """FAISS's brute-force index; exact in every tie, since distances are recomputed."""

    def _make(self, n_rows: int, width: int) -> Any:
        self._longest = 0.0
        return self._faiss.IndexFlat(width, self._faiss_metric)

    def _parameters(self, n_asked: int) -> Any:
        return None

    def _insert(self, vectors: Floats, slots: Slots) -> None:
        if len(vectors):
            lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
            self._longest = max(self._longest, float(lengths.max()))
        self._index.add(vectors)

    def _delete(self, slots: Slots) -> None:
        # FAISS renumbers the rows of a flat index: slots are always 0, 1, 2, ...
        self._index.remove_ids(self._faiss.IDSelectorBatch(slots))
        self._slots = np.arange(len(self._slots))
        self._next_slot = len(self._slots)

    def _may_miss(self, vectors: Floats, edge: Floats, worst: Floats) -> NDArray[np.bool_]:
        # A row that FAISS dropped scores no better than `edge`. By the error bound of a dot
        # product in any order (see functional.kernels) its distance is then above `worst` if:
        length = np.linalg.norm(vectors.astype(np.float64), axis=1)
        last, width = worst.astype(np.float64), vectors.shape[1]
        if self._is_euclidean:
            squared = last**2 if self.metric == "euclidean" else last
            slack = (2 * width + 32) * (length + self._longest) ** 2 + 8 * squared
            return ~(edge > squared + slack * _ROUNDING)
        slack = (width + 32) * length * self._longest + 8 * np.abs(last)
        limit = last - 1 if self.metric == "cosine" else last
        return ~(-edge > limit + slack * _ROUNDING)


class FaissFlatL2(_FlatIndex):
    """FAISS flat L2: exact, for "euclidean" and "sqeuclidean"."""

    name = "faiss-flat-l2"
    metrics = ("euclidean", "sqeuclidean")


class FaissFlatIP(_FlatIndex):
    """FAISS flat inner product: exact, for "inner_product" and "cosine"."""

    name = "faiss-flat-ip"
    metrics = ("inner_product", "cosine")


class HnswIndex(FaissIndex):
    """FAISS HNSW graph: M = 32, efConstruction = 200, efSearch = max(64, candidates).

    Nodes cannot be deleted: removed rows are masked in every search, and the graph is rebuilt
    when they are more than a quarter of it. It is built in one thread, since several threads give
    a different graph every time. Many copies of one row link mostly to each other; recall falls.
    """

    name = "hnsw"
    is_exact = False
    m = 32
    ef_construction = 200
    ef_search = 64
    max_masked = 0.25

    def _make(self, n_rows: int, width: int) -> Any:
        index = self._faiss.IndexHNSWFlat(width, self.m, self._faiss_metric)
        index.hnsw.efConstruction = self.ef_construction
        self._kept: NDArray[np.bool_] = np.empty(0, dtype=bool)
        self._selector: Any = None
        return index

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_selector": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._index is not None:
            self._select()

    def _parameters(self, n_asked: int) -> Any:
        parameters = self._faiss.SearchParametersHNSW(efSearch=max(self.ef_search, n_asked))
        if self._selector is not None:
            parameters.sel = self._selector
        return parameters

    def _may_miss(self, vectors: Floats, edge: Floats, worst: Floats) -> NDArray[np.bool_]:
        return np.zeros(len(vectors), dtype=bool)

    def _insert(self, vectors: Floats, slots: Slots) -> None:
        with self._one_thread():
            self._index.add(vectors)
        self._kept = np.append(self._kept, np.ones(len(slots), dtype=bool))
        self._select()

    def _delete(self, slots: Slots) -> None:
        self._kept[slots] = False
        if len(self._slots) < (1.0 - self.max_masked) * len(self._kept):
            self._build()
        else:
            self._select()

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        before = self._faiss.omp_get_max_threads()
        self._faiss.omp_set_num_threads(1)
        try:
            yield
        finally:
            self._faiss.omp_set_num_threads(before)

    def _select(self) -> None:
        self._selector = None
        if not self._kept.all():
            # Kept here because FAISS holds bare pointers to both during a search.
            self._bitmap = np.packbits(self._kept, bitorder="little")
            self._selector = self._faiss.IDSelectorBitmap(self._bitmap)


FAISS_INDEXES: dict[str, type[FaissIndex]] = {
    kind.name: kind for kind in (FaissFlatL2, FaissFlatIP, HnswIndex)
}
