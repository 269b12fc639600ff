"""Exact nearest neighbors: the k nearest keys of every query, with exclusion by id."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearwise.functional.distances import METRICS, Metric, check_metric
from nearwise.functional.kernels import dot_products, norms_of, scan
from nearwise.functional.search_cpu import KeyNorms, Scores, Tile, refuse_not_finite, search_cpu
from nearwise.functional.search_torch import search_torch

DEFAULT_MEMORY_BUDGET = 256 * 2**20
_MIN_MEMORY_BUDGET = 2**20
# Measuring so few pairs takes less time than starting a matrix product.
_FEW_PAIRS = 2048
_FEW_NEIGHBORS = 1024
_NO_IDS = np.empty(0, dtype=np.int64)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Neighbors(NamedTuple):
    """The nearest keys of each query, nearest first.

    Attributes
    ----------
    distances : Tensor of shape (n_queries, n_neighbors)
        float32, ascending, in the unit of the metric.
    indices : Tensor of shape (n_queries, n_neighbors)
        int64 row positions in the keys. Among equal distances the lowest position comes first.
    """

    distances: Tensor
    indices: Tensor


@torch.no_grad()
def topk_neighbors(
    query: Tensor,
    keys: Tensor,
    n_neighbors: int,
    *,
    metric: Metric = "euclidean",
    query_ids: Tensor | None = None,
    key_ids: Tensor | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Neighbors:
    """Find the exact nearest keys of every query.

    Candidates come from matrix products over tiles of keys; every candidate that could be a
    neighbor within rounding is measured again directly in float64, so distances, order and ties are
    exact: rows identical to the query are at 0, and among equal (float32) distances the lowest row
    wins. A lower ``torch.set_float32_matmul_precision`` changes speed, never results.

    Parameters
    ----------
    query : Tensor of shape (n_queries, n_features)
        float32, float64, bfloat16 or float16, finite.
    keys : Tensor of shape (n_keys, n_features)
        Same dtypes as `query`, on the same device.
    n_neighbors : int
        Number of neighbors to return, at least 1.
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        Units as in `pairwise_distances`: L2 (default), squared L2, ``1 - cos`` in [0, 2], ``-q.k``,
        L1. No matrix product orders keys by "manhattan", so every pair is measured.
    query_ids : int64 Tensor of shape (n_queries,), optional
        A key with the id of the query is left out of that query's neighbors.
    key_ids : int64 Tensor of shape (n_keys,), optional
        Ids of the keys; their positions when only `query_ids` is given.
    memory_budget : int, default=256 MiB
        Bytes of working memory beyond inputs and results, at least 1 MiB; below about 8 MiB the
        search gets slower.

    Returns
    -------
    neighbors : Neighbors
        Distances (n_queries, n_neighbors) float32 and positions (n_queries, n_neighbors) int64.
        Carries no gradient; `paired_distances` recomputes distances with one.

    Raises
    ------
    ValueError
        If a value is NaN or infinite, shapes, dtypes, ids or devices do not fit, there are no
        keys, or `n_neighbors` exceeds the keys left for a query.
    """
    metric = check_metric(metric)
    check_rows("query", query)
    check_rows("keys", keys)
    if query.shape[1] != keys.shape[1]:
        raise ValueError(
            f"query has {query.shape[1]} features and keys have {keys.shape[1]}. "
            "Embed both in the same space."
        )
    if query.device != keys.device:
        raise ValueError(
            f"query is on {query.device} and keys are on {keys.device}. Move one with .to()."
        )
    check_n_neighbors(n_neighbors, len(keys))
    if memory_budget < _MIN_MEMORY_BUDGET:
        raise ValueError(
            f"memory_budget={memory_budget} bytes is too small to search in. Give at least "
            f"{_MIN_MEMORY_BUDGET} (1 MiB)."
        )
    ids = _check_ids(query_ids, key_ids, query, keys)
    return search_checked(query, keys, n_neighbors, metric, ids, memory_budget)


@torch.no_grad()
def search_checked(
    query: Tensor,
    keys: Tensor,
    n_neighbors: int,
    metric: Metric,
    ids: tuple[Tensor, Tensor] | None,
    memory_budget: int,
    norms: KeyNorms | None = None,
) -> Neighbors:
    """Search as `topk_neighbors`, without its argument checks.

    Finite values and enough keys for each query are checked here. `ids` are the ids of queries and
    keys; `norms` are the cached norms of the keys, if any.
    """
    if measured_at_once(query, keys, n_neighbors, memory_budget):
        found = _measure_all(query, keys, n_neighbors, metric, ids, norms)
    elif query.device.type == "cpu":
        found = search_cpu(query, keys, n_neighbors, metric, ids, memory_budget, norms)
    else:
        refuse_not_finite("query", query)
        refuse_not_finite("keys", keys)
        found = search_torch(query, keys, n_neighbors, metric, ids, memory_budget)
    distances, indices, counts = found
    _check_counts(counts, n_neighbors, len(keys))
    return Neighbors(distances, indices)


def measured_at_once(query: Tensor, keys: Tensor, n_neighbors: int, memory_budget: int) -> bool:
    """Whether measuring every pair is as fast as a matrix product with selection."""
    fits = n_neighbors <= _FEW_NEIGHBORS and 8 * keys.numel() <= memory_budget
    # One query reads every key once in either way.
    few = len(query) == 1 or len(query) * len(keys) <= _FEW_PAIRS
    return query.device.type == "cpu" and fits and few


def _measure_all(
    query: Tensor,
    keys: Tensor,
    n_neighbors: int,
    metric: Metric,
    ids: tuple[Tensor, Tensor] | None,
    known: KeyNorms | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Measure every pair, or only possible neighbors by compiled products; see `search_cpu`."""
    dtype = torch.float64 if torch.float64 in (query.dtype, keys.dtype) else torch.float32
    rows, others = (each.detach().to(dtype).contiguous() for each in (query, keys))
    sides = []
    for name, each, its in (("query", rows, None), ("keys", others, known)):
        norms, scale = its or norms_of(each.numpy())
        if not np.isfinite(norms).all():
            refuse_not_finite(name, each)
        sides.append(Tile(slice(0, len(each)), each.numpy(), each, norms, scale))
    part, tile = sides
    query_ids, key_ids = (each.numpy() for each in ids) if ids else (_NO_IDS, _NO_IDS)
    distances = np.full((len(rows), n_neighbors), np.inf, dtype=np.float32)
    indices = np.zeros((len(rows), n_neighbors), dtype=np.int64)
    counts = np.zeros(len(rows), dtype=np.int64)
    products, number = np.empty((len(rows), len(others)), np.float32), METRICS.index(metric)
    nothing = np.empty(0, dtype=np.float32)
    scores: tuple[Any, ...] = (nothing, nothing, 0.0, 0.0)
    many = dtype == torch.float32 and len(rows) and products.size > _FEW_PAIRS
    direct = not (many and part.is_safe(number) and tile.is_safe(number))
    if not direct:
        dot_products(part.rows, tile.rows, products)
        given = Scores.of(tile, number)
        scores = (given.bias, given.factor, float(tile.norms.max()), 0.0)
    queries = (part.rows, part.norms, part.scale, query_ids)
    among, found = (tile.rows, tile.scale, key_ids), (distances, indices, counts)
    scan(products, scores, 0, queries, among, number, direct, found)
    return torch.from_numpy(distances), torch.from_numpy(indices), torch.from_numpy(counts)


def check_query(query: Tensor, n_neighbors: int, n_keys: int, what: str = "keys") -> None:
    """Raise ValueError unless `query` (n_queries, n_features) can have this many neighbors."""
    check_n_neighbors(n_neighbors, n_keys, what)
    check_rows("query", query)


def check_n_neighbors(n_neighbors: int, n_keys: int, what: str = "keys") -> None:
    """Raise a ValueError unless ``1 <= n_neighbors <= n_keys``, or if there are no keys."""
    if isinstance(n_neighbors, bool) or int(n_neighbors) != n_neighbors or n_neighbors < 1:
        raise ValueError(f"n_neighbors={n_neighbors!r} is not a positive integer. Give at least 1.")
    if n_keys == 0:
        raise ValueError(f"There are no {what} to search in: 0 rows. Add samples first.")
    if n_neighbors > n_keys:
        raise ValueError(
            f"n_neighbors={n_neighbors} exceeds the {n_keys} {what}. "
            "Lower n_neighbors or add samples."
        )


def check_rows(name: str, rows: Tensor) -> None:
    """Raise unless `rows` is a floating point tensor (n_rows, n_features)."""
    if not isinstance(rows, Tensor):
        raise TypeError(f"{name} is a {type(rows).__name__}. Pass a torch tensor.")
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(rows.shape)}. Pass (n_rows, n_features) with at least one "
            "feature."
        )
    if rows.dtype not in _DTYPES:
        raise ValueError(
            f"{name} has dtype {rows.dtype}. Use float32, float64, bfloat16 or float16."
        )


def _check_ids(
    query_ids: Tensor | None, key_ids: Tensor | None, query: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor] | None:
    if query_ids is None:
        return None
    if key_ids is None:
        key_ids = torch.arange(len(keys), device=keys.device)
    for name, ids, rows in (("query_ids", query_ids, query), ("key_ids", key_ids, keys)):
        if ids.dtype != torch.int64 or ids.shape != (len(rows),):
            raise ValueError(
                f"{name} has dtype {ids.dtype} and shape {tuple(ids.shape)}. "
                f"Pass int64 of shape ({len(rows)},), one id per row."
            )
    return query_ids.to(query.device).contiguous(), key_ids.to(keys.device).contiguous()


def _check_counts(counts: Tensor, n_neighbors: int, n_keys: int) -> None:
    if len(counts):
        check_left(int(counts.min()), n_neighbors, n_keys)


def check_left(n_left: int, n_neighbors: int, n_keys: int) -> None:
    """Raise a ValueError if fewer than `n_neighbors` keys are left for a query."""
    if n_left < n_neighbors:
        raise ValueError(
            f"n_neighbors={n_neighbors} exceeds what is left of the {n_keys} keys "
            f"({n_left} after leaving out the query). Lower n_neighbors or add samples."
        )
