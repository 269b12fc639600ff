"""CellIndex: an approximate index that searches only the cells near a query."""

from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.functional import Metric, Neighbors
from nearwise.functional.cells import (
    arrays_of,
    block_edges,
    measure_slots,
    nearest_cells,
    pack,
    probe,
)
from nearwise.functional.distances import METRICS
from nearwise.functional.kernels import norms_of
from nearwise.functional.search import check_left
from nearwise.functional.search_cpu import refuse_not_finite
from nearwise.functional.threads import Threads
from nearwise.memory.index import ProductIndex

Floats = NDArray[np.float32]

_AT_ONCE = 8192  # queries
_PACKED_AT_ONCE = 2**15  # rows
_BLOCKS_AT_ONCE = 128
_MANY_NEIGHBORS = 1024  # above it, sorting all distances is faster
_ROUNDS = 8  # of k-means
_LEARNED_FROM = 40  # rows per cell
# Extra candidates, so that exact distances decide which rows are the last neighbors.
_SPARE = 8
_MORE_CELLS = 2  # factor: most cells searched, relative to the estimated number
_NO_IDS = np.empty(0, dtype=np.int64)


class CellIndex(ProductIndex):
    """Inverted-file index: ``4 sqrt(n)`` k-means cells, of which the nearest sixteenth is searched.

    It holds a second, float32 copy of the rows (centered for the Euclidean metrics if that
    improves precision, of unit length for "cosine"); distances are computed from the original
    rows. If its cells hold too few rows, a query is searched exactly. Cells are learned when the
    index is fitted, and again when it has grown to twice that size.
    """

    name = "ivf-flat"
    is_exact = False
    min_probes = 16
    probed_share = 1 / 16
    rows_per_cell = 39

    def __init__(self, metric: Metric = "euclidean") -> None:
        super().__init__(metric)
        if self.metric == "manhattan":
            raise ValueError(
                'index="ivf-flat" does not support metric="manhattan". Use another metric, or '
                'index="exact".'
            )
        self._cells = np.empty(0, dtype=np.int32)
        self._centers: Floats = np.empty((0, 0), dtype=np.float32)

    def _build(self) -> None:
        self._recenter()
        self._centers = self._learn_centers()
        self._cells = np.empty(0, dtype=np.int32)
        self._append(len(self))

    def _learn_centers(self) -> Floats:
        """Run k-means on a sample of the rows."""
        n = len(self)
        n_cells = max(1, min(int(4 * n**0.5), n // self.rows_per_cell))
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        rows = self._vectors(self._keys[order[: _LEARNED_FROM * n_cells]])
        self._set_centers(rows[:n_cells].copy())
        for _ in range(_ROUNDS):
            cells = torch.from_numpy(self._nearest(rows)).long()
            sums = torch.zeros(n_cells, rows.shape[1], dtype=torch.float64)
            sums.index_add_(0, cells, torch.from_numpy(rows).double())
            sizes = torch.bincount(cells, minlength=n_cells)[:, None]
            means = (sums / sizes.clamp_min(1)).float().numpy()
            self._set_centers(np.where(sizes.numpy() > 0, means, self._centers))
        return self._centers

    def _set_centers(self, centers: Floats) -> None:
        self._centers = centers
        edges, _ = block_edges(np.array([0, len(centers)]))
        packed = np.empty(centers.size, dtype=np.float32)
        pack(centers, edges, np.float32(-2), packed)
        squares = (norms_of(centers)[0] ** 2).astype(np.float32)
        self._packed_centers = packed, edges, squares
        # The cell with the largest inner product is nearest; lengths of centers are not used.
        by_product = self.metric == "inner_product"
        self._query_centers = packed, edges, np.zeros_like(squares) if by_product else squares

    def _nearest(self, rows: Floats) -> NDArray[np.int32]:
        """Cell nearest to each row, (n,)."""
        near = np.empty((len(rows), 1), dtype=np.int32)
        with Threads(rows.size * len(self._centers)) as threads:
            threads.run(
                lambda part: nearest_cells(rows[part], *self._packed_centers, 1, near[part]),
                len(rows),
            )
        return near[:, 0]

    def _append(self, n_rows: int) -> None:
        if len(self) > 2 * self.n_fitted:
            self.n_fitted = len(self)
            self._build()
            return
        new = [self._cells]
        for rows in self._keys[len(self) - n_rows :].split(_PACKED_AT_ONCE):
            new.append(self._nearest(self._vectors(rows)))
        self._cells = np.concatenate(new)
        self._arrange()

    def _drop(self, gone: Tensor) -> None:
        self._cells = self._cells[~gone.numpy()]
        self._arrange()

    def _arrange(self) -> None:
        """Pack the rows, cell by cell."""
        n, width = self._keys.shape
        order = np.argsort(self._cells, kind="stable").astype(np.int32)
        sizes = np.bincount(self._cells, minlength=len(self._centers))
        edges, first_block = block_edges(np.concatenate([[0], np.cumsum(sizes)]))
        packed, norms = np.empty(n * width, dtype=np.float32), np.empty(n, dtype=np.float32)
        by = np.float32(-2 if self._is_euclidean else -1)
        starts = np.append(np.arange(0, len(edges) - 1, _BLOCKS_AT_ONCE), len(edges) - 1)
        for a, z in pairwise(starts):
            here = slice(edges[a], edges[z])
            rows = self._vectors(self._keys[torch.from_numpy(order[here]).long()])
            span = packed[here.start * width : here.stop * width]
            pack(rows, edges[a : z + 1] - edges[a], by, span)
            norms[here] = norms_of(rows)[0]
        bias = norms**2 if self._is_euclidean else np.zeros_like(norms)
        self._packed, self._order = (packed, bias, edges, first_block), order
        self._rows = arrays_of(self._keys)
        self._scale = norms_of(self._rows)[1]

    def _learned(self) -> tuple[Tensor, dict[str, Tensor]]:
        learned = {"centers": torch.from_numpy(self._centers)}
        if self._center is not None:
            learned["mean"] = self._center
        return torch.from_numpy(self._cells), learned

    def _rebuild(self, cells: Tensor, learned: dict[str, Tensor]) -> None:
        self._center = learned.get("mean")
        self._set_centers(learned["centers"].numpy())
        self._cells = cells.numpy()
        self._arrange()

    def _find(self, query: Tensor, n_neighbors: int, query_ids: Tensor | None) -> Neighbors:
        refuse_not_finite("query", query)
        rows, n = query.cpu(), len(self)
        if query_ids is not None:
            left_out = bool(torch.isin(query_ids, self._ids).any())
            check_left(n - left_out, n_neighbors, n)
        if n_neighbors > _MANY_NEIGHBORS:
            exact = self._search_exactly(rows, n_neighbors, query_ids)
            return Neighbors(*(part.to(query.device) for part in exact))
        distances = torch.full((len(rows), n_neighbors), torch.inf)
        indices = torch.zeros(len(rows), n_neighbors, dtype=torch.int64)
        counts = np.zeros(len(rows), dtype=np.int64)
        found = (distances.numpy(), indices.numpy(), counts)
        n_cells = len(self._centers)
        n_probes = min(n_cells, max(self.min_probes, int(n_cells * self.probed_share)))
        with Threads(len(rows) * self._keys.numel() * n_probes // n_cells) as threads:
            threads.run(partial(self._probe, rows, query_ids, n_probes, found), len(rows))
        unsure = torch.from_numpy(counts < n_neighbors).nonzero()[:, 0]
        if len(unsure):
            own = None if query_ids is None else query_ids[unsure]
            exact = self._search_exactly(rows[unsure], n_neighbors, own)
            distances[unsure], indices[unsure] = exact
        return Neighbors(distances.to(query.device), indices.to(query.device))

    def _probe(
        self,
        query: Tensor,
        query_ids: Tensor | None,
        n_probes: int,
        found: tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]],
        here: slice,
    ) -> None:
        """Search the cells near some queries."""
        key_ids = _NO_IDS if query_ids is None else self._ids.numpy()
        keys, metric = (self._rows, self._scale, key_ids), METRICS.index(self.metric)
        n_asked = found[0].shape[1] + _SPARE + (query_ids is not None)
        for start in range(here.start, here.stop, _AT_ONCE):
            at = slice(start, min(start + _AT_ONCE, here.stop))
            rows, factors = arrays_of(query[at]), self._vectors(query[at])
            most = min(len(self._centers), _MORE_CELLS * n_probes)
            near = np.empty((len(rows), most), dtype=np.int32)
            nearest_cells(factors, *self._query_centers, n_probes, near)
            scores = np.full((len(rows), n_asked), np.inf, dtype=np.float32)
            slots = np.full((len(rows), n_asked), -1, dtype=np.int32)
            probe(factors, near, self._packed, scores, slots)
            own = _NO_IDS if query_ids is None else query_ids[at].numpy()
            sides = (rows, norms_of(rows)[1], own)
            measure_slots(sides, keys, self._order, slots, metric, tuple(p[at] for p in found))
