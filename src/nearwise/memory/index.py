"""NeighborIndex: one protocol for every way to find neighbors, and the exact index."""

from typing import Literal, Protocol, Self, get_args, runtime_checkable

import torch
from torch import Tensor

from nearwise.functional import DEFAULT_MEMORY_BUDGET, Metric, Neighbors
from nearwise.functional.search import (
    check_left,
)
from nearwise.functional.search_cpu import KeyNorms
from nearwise.functional.search_torch import PreparedKeys, search_prepared
from nearwise.memory.base_index import BaseIndex

IndexName = Literal["auto", "exact", "faiss-flat-l2", "faiss-flat-ip", "hnsw", "ivf-flat"]
INDEX_NAMES: tuple[IndexName, ...] = get_args(IndexName)
# From here on "auto" gives up exactness for speed.
AUTO_EXACT_BELOW = 100_000


@runtime_checkable
class NeighborIndex(Protocol):
    """What finds the nearest remembered rows.

    All indexes speak the units of `nearwise.functional.pairwise_distances`, return neighbors
    nearest first and leave a query out by its id. Exact ones also agree in every tie: the lowest
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
        """Forget everything and index `keys` (n_rows, n_features) under `ids` (n_rows,)."""
        ...

    def add(self, keys: Tensor, ids: Tensor | None = None) -> None:
        """Append rows; their positions follow the present ones."""
        ...

    def remove(self, ids: Tensor) -> None:
        """Forget rows; the others keep their order, so positions close up."""
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


def make_index(
    name: IndexName = "auto",
    metric: Metric = "euclidean",
    n_rows: int | None = None,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    device: torch.device | None = None,
) -> NeighborIndex:
    """Make an index by name.

    Parameters
    ----------
    name : {"auto", "exact", "faiss-flat-l2", "faiss-flat-ip", "hnsw", "ivf-flat"}, default="auto"
        "auto" is "exact" below 100,000 rows and for "manhattan", else "ivf-flat". All but "exact"
        need the extra "faiss" and hold a second, float32 copy of the rows on the CPU.
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        "euclidean" by default. "exact" knows all, "hnsw" and "ivf-flat" all but "manhattan",
        "faiss-flat-l2" the first two, "faiss-flat-ip" the next two.
    n_rows : int, optional
        Rows to come; "auto" needs it.
    memory_budget : int, default=256 MiB
        Bytes of working memory of a search.
    device : torch.device, optional
        Where "exact" keeps and searches its rows, see `ExactIndex`; with one "auto" is "exact" at
        every size. The FAISS indexes search on the CPU.

    Returns
    -------
    index : NeighborIndex
        Still empty; call `fit`.

    Raises
    ------
    ValueError
        If a name is unknown, the index does not know the metric, or "auto" lacks `n_rows`.
    ImportError
        If faiss is needed and not installed.
    """
    if name not in INDEX_NAMES:
        raise ValueError(f"index={name!r} is not known. Use one of {', '.join(INDEX_NAMES)}.")
    if name == "auto":
        if n_rows is None:
            raise ValueError('index="auto" needs n_rows to choose by. Pass the number of rows.')
        few = n_rows < AUTO_EXACT_BELOW
        name = "exact" if few or device is not None or metric == "manhattan" else "ivf-flat"
    if name == "exact":
        return ExactIndex(metric, memory_budget=memory_budget, device=device)
    from nearwise.memory import faiss_index

    return faiss_index.FAISS_INDEXES[name](metric, memory_budget=memory_budget)


class ExactIndex(BaseIndex):
    """Searches all rows, on the device they lie on; see `nearwise.functional.topk_neighbors`.

    Queries on another device are moved there and their neighbors back.

    Parameters
    ----------
    metric, memory_budget
        As for every index.
    device : torch.device, optional
        Rows are moved there and searched in plain torch, on a CPU too. None: they stay where they
        are, and on a CPU they are searched by compiled loops.
    """

    _norms: KeyNorms | None = None
    _prepared: PreparedKeys | None = None

    def __init__(
        self,
        metric: Metric = "euclidean",
        *,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(metric, memory_budget=memory_budget)
        self.device = device

    def _place(self, rows: Tensor) -> Tensor:
        return rows if self.device is None else rows.to(self.device)

    def _find(self, query: Tensor, n_neighbors: int, query_ids: Tensor | None) -> Neighbors:
        rows = query.to(self._keys.device)
        if self._prepared is None:
            found = self._search_exactly(rows, n_neighbors, query_ids, self._norms)
        else:
            found = self._search_prepared(rows, self._prepared, n_neighbors, query_ids)
        return Neighbors(*(part.to(query.device) for part in found))

    def _search_prepared(
        self, query: Tensor, prepared: PreparedKeys, n_neighbors: int, query_ids: Tensor | None
    ) -> Neighbors:
        ids = None if query_ids is None else (query_ids, self._ids)
        budget = self.memory_budget
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
