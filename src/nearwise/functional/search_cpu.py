"""Exact search on the CPU: matrix products in tiles, selection in compiled loops."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.functional import kernels
from nearwise.functional.distances import (
    LARGEST_NORM,
    METRICS,
    SMALLEST_NORM,
    Metric,
    center_of,
    product_error,
)
from nearwise.functional.threads import Threads

Array = NDArray[Any]

_KEY_TILE = 4096
# Keys per tile of bfloat16 products; a first tile without them fills the lists of neighbors.
_FIRST_TILE, _SIFTED_TILE = 1024, 4096
_FIRST_PER_NEIGHBOR = 32  # so that few later keys are nearer than the present last neighbor
_SIFTED_QUERIES = 256  # at least; for fewer, rounding all keys takes too long
_SIFTED_NUMBERS = 2**19  # per tile of keys, so that it stays in the cache
_QUERY_TILE = 1024
# From here on sorting whole rows is cheaper than keeping a sorted list up to date.
_MANY_NEIGHBORS = 1024
_NO_IDS: Array = np.empty(0, dtype=np.int64)
_MANY_NEAR = 0.05  # share of keys; measuring so many takes as long as float32 products
_FASTER = 0.9  # required time relative to float32 products, whose scan takes twice as long
_ROUNDED_TWICE = 1.02  # exceeds the error of three roundings to bfloat16


class KeyNorms(NamedTuple):
    """Cached norms of keys for repeated searches.

    Attributes
    ----------
    norms : float64 array of shape (n_keys,)
        L2 norms.
    scale : float64 array of shape (n_keys,)
        One over the norm; 0 for a row of zeros.
    """

    norms: Array
    scale: Array

    @classmethod
    def of(cls, keys: Tensor, is_euclidean: bool, name: str = "keys") -> Self | None:
        """Return the norms, or None if a search would not use them."""
        ready = keys.device.type == "cpu" and keys.dtype == torch.float32 and keys.is_contiguous()
        if not ready or (is_euclidean and center_of(keys) is not None):
            return None
        return cls(*_norms(name, keys, 0))


@dataclass
class Tile:
    """Rows prepared for the kernels."""

    span: slice  # positions among all rows
    rows: Array  # (n, d) original values, float32 or float64
    factors: Tensor  # (n, d) float32, the operand of the matrix product
    norms: Array  # (n,) L2 norms of `factors`
    scale: Array  # (n,) one over the L2 norm of `rows`, 0 for a row of zeros

    def is_safe(self, metric: int) -> bool:
        """Return whether float32 products order these rows with the promised precision."""
        if metric == 4:  # "manhattan" has no product form
            return False
        if metric == 2 and float(self.scale.max()) > 1.0 / SMALLEST_NORM:
            return False
        return float(self.norms.max()) < LARGEST_NORM


def tiles_of(
    name: str,
    rows: Tensor,
    span: slice,
    dtype: torch.dtype,
    step: int,
    center: Tensor | None,
    known: KeyNorms | None = None,
) -> Iterator[Tile]:
    """Yield the rows of `span` in tiles of `step`; see `tile_of`."""
    for start in range(span.start, span.stop, step):
        here = slice(start, min(start + step, span.stop))
        yield tile_of(name, rows, here, dtype, center, known)


def tile_of(
    name: str,
    rows: Tensor,
    here: slice,
    dtype: torch.dtype,
    center: Tensor | None,
    known: KeyNorms | None = None,
) -> Tile:
    """Return one tile of `rows` as `dtype`, its factors minus `center`.

    Raises ValueError if a value is NaN or infinite; `name` is the argument in the message.
    """
    tile = rows[here].to(dtype).contiguous()
    if known is not None:
        return Tile(here, tile.numpy(), tile.float(), known.norms[here], known.scale[here])
    norms, scale = _norms(name, tile, here.start)
    factors = tile.float() if center is None else (tile - center).float()
    if factors is not tile:
        norms, _ = kernels.norms_of(factors.numpy())
    return Tile(here, tile.numpy(), factors, norms, scale)


def refuse_not_finite(name: str, rows: Tensor, first: int = 0) -> None:
    """Raise a ValueError that names the first row with NaN or infinity, counted from `first`."""
    if rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.is_contiguous():
        norms, _ = kernels.norms_of(rows.detach().numpy())  # one pass, where torch needs several
        if np.isfinite(norms).all():
            return
    if bool(torch.isfinite(rows).all()):
        return
    row = first + int((~torch.isfinite(rows)).any(1).nonzero()[0])
    raise ValueError(
        f"{name} holds NaN or infinity, first in row {row}. "
        "Impute or drop such rows before searching."
    )


def _norms(name: str, rows: Tensor, first: int) -> tuple[Array, Array]:
    norms, scale = kernels.norms_of(rows.numpy())
    # Sums of squares in float64 reveal NaN and infinity without another pass over the rows.
    if not np.isfinite(norms).all():
        refuse_not_finite(name, rows, first)
    return norms, scale


def search_cpu(
    query: Tensor,
    keys: Tensor,
    n_neighbors: int,
    metric: Metric,
    ids: tuple[Tensor, Tensor] | None,
    memory_budget: int,
    norms: KeyNorms | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return distances (b, k), indices (b, k) and the number found (b,).

    Arguments are checked by the caller, except for finite values, which are checked here.
    """
    work = len(query) * len(keys) * keys.shape[1]
    with torch.autocast("cpu", enabled=False), Threads(work) as threads:
        search = _Search(query.detach(), keys.detach(), n_neighbors, metric, ids, threads)
        if n_neighbors > _MANY_NEIGHBORS:
            search.sort_rows(memory_budget)
        else:
            search.scan_tiles(memory_budget, norms)
    results = (search.distances, search.indices, search.counts)
    return tuple(map(torch.from_numpy, results))  # type: ignore[return-value]


def measure_candidates(
    query: Tensor, keys: Tensor, candidates: Array, metric: Metric, memory_budget: int
) -> Array:
    """Return exact distances (b, m) float32 of each query to its candidates.

    `query` (b, d) and `keys` (n, d) lie on the CPU; `candidates` (b, m) int64 are row positions.
    """
    query, keys = query.detach(), keys.detach()
    dtype = _common_dtype(query, keys)
    n_queries, n_candidates = candidates.shape
    out = np.empty(candidates.shape, dtype=np.float32)
    step = max(1, memory_budget // 2 // (max(1, n_candidates) * (16 * query.shape[1] + 32)))
    with Threads(candidates.size * query.shape[1]) as threads:
        for part in tiles_of("query", query, slice(0, n_queries), dtype, step, None):
            at = torch.from_numpy(candidates[part.span].ravel())
            near = tile_of("keys", keys[at], slice(0, len(at)), dtype, None)
            measure = partial(_measure_near, part, near, METRICS.index(metric), out[part.span])
            threads.run(measure, len(part.rows))
    return out


def _measure_near(part: Tile, near: Tile, metric: int, out: Array, here: slice) -> None:
    rows = near.rows.reshape(*out.shape, -1)[here]
    scale = near.scale.reshape(out.shape)[here]
    kernels.measure_near(part.rows[here], rows, part.scale[here], scale, metric, out[here])


def _common_dtype(query: Tensor, keys: Tensor) -> torch.dtype:
    return torch.float64 if torch.float64 in (query.dtype, keys.dtype) else torch.float32


@dataclass
class Scores:
    """A tile of keys, with bias and factor to turn products into the scores of `kernels.scan`."""

    tile: Tile
    bias: Array
    factor: Array

    @classmethod
    def of(cls, tile: Tile, metric: int) -> "Scores":
        """Make the scores of a metric."""
        n = len(tile.norms)
        with np.errstate(over="ignore"):  # tiles that overflow are measured directly
            if metric <= 1:
                bias, factor = tile.norms**2, np.full(n, -2.0)
            else:
                bias, factor = np.zeros(n), -tile.scale if metric == 2 else np.full(n, -1.0)
            return cls(tile, bias.astype(np.float32), factor.astype(np.float32))


@cache
def _halves_win(width: int) -> bool:
    """Whether bfloat16 products of this width are faster here; measured within milliseconds."""
    taken, n_threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # as in the workers of a search
    try:
        for dtype in (torch.float32, torch.bfloat16):
            rows, keys = (torch.zeros(n, width, dtype=dtype) for n in (256, 1024))
            out, least = torch.empty(256, 1024, dtype=dtype), math.inf
            for _ in range(4):
                start = time.thread_time()
                torch.mm(rows, keys.T, out=out)
                least = min(least, time.thread_time() - start)
            taken.append(least)
    finally:
        torch.set_num_threads(n_threads)
    return taken[1] < _FASTER * taken[0]


def _halved(rows: Tensor, factor: Array, values: Tensor, *, is_query: bool) -> Tensor:
    """Operand (n, d + 8) of a bfloat16 product that is negative for possible neighbors.

    `values` are the biases of the scores for keys, and the negative limits of the scores for
    queries. The product is ``q.k + bias - limit`` minus the largest error of rounding q and k to q'
    and k', ``|q - q'| |k| + |q'| |k - k'|``. Keys are padded to a multiple of four.
    """
    n, width = rows.shape
    half = torch.empty(n if is_query else n + -n % 4, width + 8, dtype=torch.bfloat16)
    half[n:], half[:n, width:] = 0.0, 1.0
    norms = np.empty((n, 2), dtype=np.float32)
    kernels.halve(rows.numpy(), factor, half.view(torch.uint16).numpy(), norms)
    for at in range(width, width + 3):  # three bfloat16 add up to a float32
        half[:n, at + 3 * is_query] = values
        values = values - half[:n, at + 3 * is_query]
    # This rounds the norms of queries and of keys once more.
    half[:n, -2:] = torch.from_numpy(norms[:, [1, 0]] if is_query else norms * -_ROUNDED_TWICE)
    return half


class _Search:
    """Arguments and results of one search."""

    def __init__(
        self,
        query: Tensor,
        keys: Tensor,
        n_neighbors: int,
        metric: Metric,
        ids: tuple[Tensor, Tensor] | None,
        threads: Threads,
    ) -> None:
        self.query, self.keys, self._threads = query, keys, threads
        self.metric = METRICS.index(metric)
        self.dtype = _common_dtype(query, keys)
        self.rough = product_error(query.device)
        self.query_ids, self.key_ids = (i.numpy() for i in ids) if ids else (_NO_IDS, _NO_IDS)
        self.distances: Array = np.full((len(query), n_neighbors), np.inf, dtype=np.float32)
        self.indices: Array = np.zeros((len(query), n_neighbors), dtype=np.int64)
        self.counts: Array = np.zeros(len(query), dtype=np.int64)
        self._query_norms: KeyNorms | None = None
        self._sifts = False

    def scan_tiles(self, memory_budget: int, norms: KeyNorms | None) -> None:
        """Update the nearest neighbors of every query tile by tile."""
        n_keys, width = self.keys.shape
        first = max(_FIRST_TILE, _FIRST_PER_NEIGHBOR * self.distances.shape[1])
        many = len(self.query) >= _SIFTED_QUERIES and n_keys >= 4 * first and self.metric < 4
        self._sifts = many and _halves_win(width)
        if not self._sifts:
            first, most = 0, (_QUERY_TILE, _KEY_TILE)
        else:
            most = (2 * _QUERY_TILE, min(_SIFTED_TILE, max(2048, _SIFTED_NUMBERS // width)))
        sizes = (min(len(self.query), most[0]), min(n_keys, most[1]))
        query_step, key_step = _tile_sizes(*sizes, width, memory_budget, self._threads.n)
        center = center_of(self.keys) if self.metric <= 1 and norms is None else None
        if center is None and self.dtype == torch.float32:
            self._query_norms = KeyNorms.of(self.query, False, "query")
        buffers: dict[int, Tensor] = {}
        for span, step in ((slice(0, first), key_step), (slice(first, n_keys), key_step)):
            for tile in tiles_of("keys", self.keys, span, self.dtype, step, center, norms):
                scores = Scores.of(tile, self.metric)
                halved = None
                if self._sifts and span.start and tile.is_safe(self.metric):
                    bias = torch.from_numpy(scores.bias)
                    halved = _halved(tile.factors, scores.factor, bias, is_query=False)
                scan = partial(self._scan, scores, halved, query_step, center, buffers)
                self._threads.run(scan, len(self.query))

    def _sift(self, scores: Scores, halved: Tensor, part: Tile, buffer: Tensor) -> None:
        """Compare queries with full lists of neighbors only with possible neighbors."""
        tile, distances = scores.tile, self.distances[part.span]
        q, k_max, width = torch.from_numpy(part.norms), tile.norms.max(), part.rows.shape[1]
        limit = torch.empty(len(part.rows), dtype=torch.float64)
        given = (distances[:, -1], self.metric, part.norms, k_max, width, self.rough)
        kernels.limits(*given, limit.numpy())
        # Error bound of float32 sums of this length and size in any order.
        size = limit.abs() + np.abs(scores.bias).max() + q * np.abs(scores.factor).max() * k_max
        limit += (width + 32) * kernels.UNIT * size + 1e-36
        one = np.ones(len(limit), dtype=np.float32)
        query = _halved(part.factors, one, -limit.float(), is_query=True)
        words = buffer.view(torch.bfloat16)[: len(query) * len(halved)].view(len(query), -1)
        torch.mm(query, halved.T, out=words)
        sides, found = self._sides(part, tile), (distances, self.indices[part.span])
        signs = words.view(torch.uint64).numpy()
        n_near = kernels.sift(signs, tile.span.start, *sides, self.metric, *found)
        if n_near > _MANY_NEAR * len(query) * len(tile.rows):  # for example with many equal keys
            self._sifts = False

    def _scan(
        self,
        scores: Scores,
        halved: Tensor | None,
        query_step: int,
        center: Tensor | None,
        buffers: dict[int, Tensor],
        here: slice,
    ) -> None:
        """Compare one tile of keys with some of the queries."""
        tile = scores.tile
        rows = min(query_step, here.stop - here.start)
        if len(buffers.get(here.start, ())) < rows * len(tile.rows):  # the first may be smaller
            buffers[here.start] = torch.empty(rows * (len(tile.rows) + 3))
        given = (self.query, here, self.dtype, query_step, center, self._query_norms)
        for part in tiles_of("query", *given):
            direct = not (tile.is_safe(self.metric) and part.is_safe(self.metric))
            full = self.counts[part.span].min() == self.distances.shape[1]
            if halved is not None and full and not direct:
                self._sift(scores, halved, part, buffers[here.start])
                continue
            size = len(part.rows) * len(tile.rows)
            products = buffers[here.start][:size].view(len(part.rows), -1)
            if not direct:
                torch.mm(part.factors, tile.factors.T, out=products)
            at, known = part.span, (scores.bias, scores.factor, tile.norms.max(), self.rough)
            found = (self.distances[at], self.indices[at], self.counts[at])
            tiles = (products.numpy(), known, tile.span.start, *self._sides(part, tile))
            kernels.scan(*tiles, self.metric, direct, found)

    def _sides(self, part: Tile, tile: Tile) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return queries and keys as arguments of the kernels."""
        queries = (part.rows, part.norms, part.scale, self.query_ids[part.span])
        return queries, (tile.rows, tile.scale, self.key_ids[tile.span])

    def sort_rows(self, memory_budget: int) -> None:
        """Measure every pair directly and sort."""
        n_queries, n_keys = len(self.query), len(self.keys)
        # Distances, order and copies of a sort: about 24 bytes per key.
        query_step = max(1, min(_QUERY_TILE, memory_budget // 2 // (24 * n_keys)))
        key_step = max(1, memory_budget // 4 // (16 * self.keys.shape[1] + 32))
        for part in tiles_of(
            "query", self.query, slice(0, n_queries), self.dtype, query_step, None
        ):
            measured = np.empty((len(part.rows), n_keys), dtype=np.float32)
            for tile in tiles_of("keys", self.keys, slice(0, n_keys), self.dtype, key_step, None):
                measure = partial(self._measure, part, tile, measured[:, tile.span])
                self._threads.run(measure, len(part.rows))
            for i, row in enumerate(measured, start=part.span.start):
                self._sort_row(i, row)

    def _measure(self, part: Tile, tile: Tile, out: Array, here: slice) -> None:
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


def _tile_sizes(
    query_step: int, key_step: int, width: int, memory_budget: int, n_threads: int
) -> tuple[int, int]:
    """Rows of queries and keys per tile, so that products and converted rows fit."""
    query_step = max(1, query_step)
    row = 16 * width + 48

    def needed() -> int:
        return n_threads * query_step * (4 * key_step + row) + row * key_step

    while needed() > memory_budget and max(query_step, key_step) > 1:
        if query_step >= key_step:
            query_step = (query_step + 1) // 2
        else:
            key_step = (key_step + 1) // 2
    return query_step, key_step
