"""Exact search on the CPU: matrix products in tiles, selection in compiled loops."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.functional import kernels
from nearwise.functional.distances import METRICS, Metric
from nearwise.functional.search_torch import center_of

Array = NDArray[Any]

_KEY_TILE = 4096
_QUERY_TILE = 1024
# From here on sorting whole rows is cheaper than keeping a sorted list up to date.
_MANY_NEIGHBORS = 1024
# Outside these norms float32 products could overflow or vanish: rows are then measured directly.
_LARGEST_NORM = 1e18
_SMALLEST_NORM = 1e-15
_NO_IDS: Array = np.empty(0, dtype=np.int64)


def search_cpu(
    query: Tensor,
    keys: Tensor,
    n_neighbors: int,
    metric: Metric,
    ids: tuple[Tensor, Tensor] | None,
    memory_budget: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return distances (b, k), indices (b, k) and the number found (b,); arguments are checked."""
    search = _Search(query.detach(), keys.detach(), n_neighbors, metric, ids, memory_budget)
    with torch.autocast("cpu", enabled=False), search.threads:
        if n_neighbors > _MANY_NEIGHBORS:
            search.sort_rows()
        else:
            search.scan_tiles()
    results = (search.distances, search.indices, search.counts)
    return tuple(map(torch.from_numpy, results))  # type: ignore[return-value]


def measure_candidates(
    query: Tensor, keys: Tensor, candidates: Array, metric: Metric, memory_budget: int
) -> Array:
    """Return exact distances (b, m) float32 of each query to its candidates.

    `query` (b, d) and `keys` (n, d) lie on the CPU; `candidates` (b, m) int64 are row positions.
    """
    wide = torch.float64 in (query.dtype, keys.dtype)
    dtype = torch.float64 if wide else torch.float32
    n_candidates = candidates.shape[1]
    out = np.empty(candidates.shape, dtype=np.float32)
    step = max(1, memory_budget // 2 // (n_candidates * (16 * query.shape[1] + 32)))
    with _Threads() as threads:
        for part in _tiles(query.detach(), dtype, step, None):
            rows = keys.detach()[torch.from_numpy(candidates[part.span].ravel())].to(dtype)
            near = next(_tiles(rows, dtype, len(rows), None))
            measure = partial(_measure_near, part, near, METRICS.index(metric), out[part.span])
            threads.run(measure, len(part.rows))
    return out


def _measure_near(part: "_Tile", near: "_Tile", metric: int, out: Array, here: slice) -> None:
    shape = (len(part.rows), out.shape[1])
    rows = near.rows.reshape(*shape, -1)[here]
    scale = near.scale.reshape(shape)[here]
    kernels.measure_near(part.rows[here], rows, part.scale[here], scale, metric, out[here])


@dataclass
class _Tile:
    """Some rows, ready for the kernels."""

    start: int
    rows: Array  # (n, d) as given, float32 or float64
    factors: Tensor  # (n, d) float32, the operand of the matrix product
    norms: Array  # (n,) L2 norms of `factors`
    scale: Array  # (n,) one over the L2 norm of `rows`, 0 for a row of zeros

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + len(self.rows))

    def is_safe(self, metric: int) -> bool:
        """Tell whether float32 products of these rows keep their promised precision."""
        if metric == 2 and float(self.scale.max()) > 1.0 / _SMALLEST_NORM:
            return False
        return float(self.norms.max()) < _LARGEST_NORM


class _Search:
    """The arguments and the results of one search."""

    def __init__(
        self,
        query: Tensor,
        keys: Tensor,
        n_neighbors: int,
        metric: Metric,
        ids: tuple[Tensor, Tensor] | None,
        memory_budget: int,
    ) -> None:
        self.query, self.keys, self.memory_budget = query, keys, memory_budget
        self.metric = METRICS.index(metric)
        wide = torch.float64 in (query.dtype, keys.dtype)
        self.dtype = torch.float64 if wide else torch.float32
        self.query_ids, self.key_ids = (i.numpy() for i in ids) if ids else (_NO_IDS, _NO_IDS)
        self.distances: Array = np.full((len(query), n_neighbors), np.inf, dtype=np.float32)
        self.indices: Array = np.zeros((len(query), n_neighbors), dtype=np.int64)
        self.counts: Array = np.zeros(len(query), dtype=np.int64)
        self.threads = _Threads()

    def scan_tiles(self) -> None:
        """Keep the best of every query up to date over tiles of keys."""
        query_step, key_step = _tile_sizes(
            len(self.query), len(self.keys), self.keys.shape[1], self.memory_budget
        )
        center = center_of(self.keys) if self.metric <= 1 else None
        buffer = torch.empty(query_step * key_step)
        for tile in _tiles(self.keys, self.dtype, key_step, center):
            bias, factor = _score(self.metric, tile)
            for part in _tiles(self.query, self.dtype, query_step, center):
                direct = not (tile.is_safe(self.metric) and part.is_safe(self.metric))
                products = buffer[: len(part.rows) * len(tile.rows)].view(len(part.rows), -1)
                if not direct:
                    torch.mm(part.factors, tile.factors.T, out=products)
                merge = partial(self._merge, part, tile, products.numpy(), bias, factor, direct)
                self.threads.run(merge, len(part.rows))

    def _merge(
        self,
        part: _Tile,
        tile: _Tile,
        products: Array,
        bias: Array,
        factor: Array,
        direct: bool,
        here: slice,
    ) -> None:
        at = slice(part.start + here.start, part.start + here.stop)
        kernels.scan(
            products[here],
            bias,
            factor,
            tile.norms.max(),
            tile.start,
            part.rows[here],
            tile.rows,
            part.norms[here],
            part.scale[here],
            tile.scale,
            self.query_ids[at],
            self.key_ids[tile.span],
            self.metric,
            direct,
            self.distances[at],
            self.indices[at],
            self.counts[at],
        )

    def sort_rows(self) -> None:
        """Measure every pair directly and sort."""
        # A row of distances, its order and the copies a sort makes: about 24 bytes a key.
        query_step = max(1, min(_QUERY_TILE, self.memory_budget // 2 // (24 * len(self.keys))))
        key_step = max(1, self.memory_budget // 4 // (16 * self.keys.shape[1] + 32))
        for part in _tiles(self.query, self.dtype, query_step, None):
            measured = np.empty((len(part.rows), len(self.keys)), dtype=np.float32)
            for tile in _tiles(self.keys, self.dtype, key_step, None):
                measure = partial(self._measure, part, tile, measured[:, tile.span])
                self.threads.run(measure, len(part.rows))
            for i, row in enumerate(measured, start=part.start):
                self._sort_row(i, row)

    def _measure(self, part: _Tile, tile: _Tile, out: Array, here: slice) -> None:
        rows, scale = part.rows[here], part.scale[here]
        kernels.measure(rows, tile.rows, scale, tile.scale, self.metric, out[here])

    def _sort_row(self, i: int, row: Array) -> None:
        order = np.argsort(row, kind="stable")
        if len(self.key_ids):
            order = order[self.key_ids[order] != self.query_ids[i]]
        order = order[: self.indices.shape[1]]
        self.counts[i] = len(order)
        self.indices[i, : len(order)] = order
        self.distances[i, : len(order)] = row[order]


class _Threads:
    """Runs a function on ranges of rows, in as many threads as torch uses."""

    def __enter__(self) -> "_Threads":
        self._n = max(1, torch.get_num_threads())
        # A pool a search: a shared one would not survive a fork.
        self._pool = ThreadPoolExecutor(self._n - 1) if self._n > 1 else None
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool:
            self._pool.shutdown()

    def run(self, work: Callable[[slice], None], n_rows: int) -> None:
        """Call `work` on slices that cover ``range(n_rows)`` and wait for all of them."""
        edges = [n_rows * i // self._n for i in range(self._n + 1)]
        spans = [slice(a, b) for a, b in pairwise(edges) if b > a]
        waiting = [self._pool.submit(work, span) for span in spans[1:]] if self._pool else []
        work(spans[0])
        for one in waiting:
            one.result()


def _tiles(rows: Tensor, dtype: torch.dtype, step: int, center: Tensor | None) -> Iterator[_Tile]:
    for start in range(0, len(rows), step):
        tile = rows[start : start + step].to(dtype).contiguous()
        factors = tile.float() if center is None else (tile - center).float()
        norms = _norms(factors)
        scale = norms if factors is tile else _norms(tile)
        scale = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
        yield _Tile(start, tile.numpy(), factors, norms, scale)


def _norms(rows: Tensor) -> Array:
    squares = np.empty(len(rows), dtype=np.float64)
    kernels.squared_norms(rows.numpy(), squares)
    return np.sqrt(squares)


def _score(metric: int, tile: _Tile) -> tuple[Array, Array]:
    """Return bias and factor that turn products into the scores `kernels.scan` compares."""
    n = len(tile.norms)
    with np.errstate(over="ignore"):  # such tiles are measured directly
        if metric <= 1:
            return (tile.norms**2).astype(np.float32), np.full(n, -2.0, dtype=np.float32)
        factor = -tile.scale if metric == 2 else np.full(n, -1.0)
        return np.zeros(n, dtype=np.float32), factor.astype(np.float32)


def _tile_sizes(n_queries: int, n_keys: int, width: int, memory_budget: int) -> tuple[int, int]:
    """Rows of queries and of keys in a tile: products, converted rows and their norms fit."""
    query_step, key_step = max(1, min(n_queries, _QUERY_TILE)), min(n_keys, _KEY_TILE)
    row = 16 * width + 48

    def needed() -> int:
        return 4 * query_step * key_step + row * (query_step + key_step)

    while needed() > memory_budget and max(query_step, key_step) > 1:
        if query_step >= key_step:
            query_step = (query_step + 1) // 2
        else:
            key_step = (key_step + 1) // 2
    return query_step, key_step
