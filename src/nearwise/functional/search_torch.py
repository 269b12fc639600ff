"""Exact search in plain torch, for devices other than the CPU."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from nearwise.functional.distances import (
    LARGEST_NORM,
    SMALLEST_NORM,
    Metric,
    center_of,
    paired_distances,
    product_error,
)

_KEY_TILE = 65536
_SPARE = 16
_UNIT32, _UNIT64 = 6.6e-8, 1.3e-16  # a little more than the rounding units

Ids = tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class PreparedKeys:
    """Keys with precomputed norms for repeated searches.

    Attributes
    ----------
    keys : Tensor of shape (n_keys, n_features)
    metric : Metric
    center : Tensor of shape (n_features,) or None
        Subtracted before the products.
    norms : Tensor of shape (n_keys,)
        L2 norms after centering, in the widest dtype of the device.
    longest, shortest : float
        Largest norm, and smallest nonzero norm.
    """

    keys: Tensor
    metric: Metric
    center: Tensor | None
    norms: Tensor
    longest: float
    shortest: float

    @classmethod
    def of(cls, keys: Tensor, metric: Metric) -> Self:
        """Prepare all keys once."""
        keys = keys.detach()
        with torch.autocast(keys.device.type, enabled=False):
            center = center_of(keys) if metric in ("euclidean", "sqeuclidean") else None
            wide = _widest(keys)
            parts = [
                factors_of(part, center, torch.float32).to(wide).norm(dim=1)
                for part in keys.split(_KEY_TILE)
            ]
            norms = torch.cat(parts)
            longest = float(norms.max()) if len(norms) else 0.0
            shortest = float(norms.masked_fill(norms == 0, torch.inf).min()) if longest else 1.0
        return cls(keys, metric, center, norms, longest, shortest)


def search_torch(
    query: Tensor,
    keys: Tensor,
    n_neighbors: int,
    metric: Metric,
    ids: Ids,
    memory_budget: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return distances (b, k), indices (b, k) and the number found (b,); arguments are checked."""
    return search_prepared(query, PreparedKeys.of(keys, metric), n_neighbors, ids, memory_budget)


def search_prepared(
    query: Tensor, prepared: PreparedKeys, n_neighbors: int, ids: Ids, memory_budget: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Search as `search_torch`, in prepared keys."""
    search = _Search(prepared, n_neighbors, memory_budget, with_ids=ids is not None)
    empty = torch.empty(0, n_neighbors, device=query.device)
    found = [(empty, empty.long(), torch.empty(0, dtype=torch.int64, device=query.device))]
    with torch.autocast(query.device.type, enabled=False):
        step = search.query_step(torch.float32)
        for start in range(0, len(query), step):
            here = slice(start, start + step)
            own = (ids[0][here], ids[1]) if ids else None
            found.append(search.rows(query[here].detach(), own))
    if len(found) == 2:
        return found[1]
    distances, indices, counts = (torch.cat(parts) for parts in zip(*found, strict=True))
    return distances, indices, counts


def factors_of(rows: Tensor, center: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Operands of the matrix product: centered rows in `dtype`."""
    if center is None:
        return rows.to(dtype)
    if dtype == torch.float64:
        rows = rows.to(dtype)
    return (rows - center).to(dtype)


class _Search:
    """One search: select candidates by score, then compute their exact distances.

    Scores are float32 products. If rounding may hide a neighbor of a query, the query is scored
    again in float64 if the device supports it. If a neighbor may still be hidden, for example among
    many copies of a row, the distances to all keys are computed.
    """

    def __init__(
        self, prepared: PreparedKeys, n_neighbors: int, memory_budget: int, *, with_ids: bool
    ) -> None:
        self.prepared, self.keys, self.metric = prepared, prepared.keys, prepared.metric
        self.n_neighbors, self.budget = n_neighbors, memory_budget
        self.n_kept = min(len(self.keys), n_neighbors + _SPARE)
        self.bytes_a_pair = 8 if not with_ids else 16
        # Apple's GPUs have no float64; distances are then exact to float32.
        self.wide = _widest(self.keys)

    def key_step(self, dtype: torch.dtype) -> int:
        """Return the number of keys per block."""
        width = self.keys.shape[1]
        copied = self.prepared.center is not None or self.keys.dtype != dtype
        per_key = (24 * width if copied else 0) + 64
        return max(1, min(len(self.keys), _KEY_TILE, self.budget // 4 // per_key))

    def query_step(self, dtype: torch.dtype) -> int:
        """Return the number of queries per block."""
        size = 2 if dtype == torch.float64 else 1
        per_query = size * self.bytes_a_pair * (self.key_step(dtype) + self.n_kept)
        per_query += 24 * self.keys.shape[1] + 64 * self.n_kept
        return max(1, self.budget // 2 // per_query)

    def rows(self, query: Tensor, ids: Ids) -> tuple[Tensor, Tensor, Tensor]:
        """Search for one tile of queries."""
        if self.metric == "manhattan":
            return self._all_measured(query, ids)
        distances, indices, left, unsure = self._by_scores(query, ids, torch.float32)
        if self.wide == torch.float64 and len(unsure):
            # The product was too coarse, for example with many equal keys.
            for some in unsure.split(self.query_step(torch.float64)):
                own = (ids[0][some], ids[1]) if ids else None
                *found, _, again = self._by_scores(query[some], own, torch.float64)
                distances[some], indices[some] = found
                self._measure_all(query, ids, some[again], distances, indices)
        elif len(unsure):
            self._measure_all(query, ids, unsure, distances, indices)
        return distances, indices, left

    def _by_scores(
        self, query: Tensor, ids: Ids, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Distances, indices and keys left of each query, and the unsettled queries."""
        factors = factors_of(query, self.prepared.center, dtype)
        norms = factors.to(self.wide).norm(dim=1)
        score, kept, left = self._candidates(factors, ids, dtype)
        exact = self._measure_kept(query, kept)
        if ids:
            exact = exact.masked_fill(ids[1][kept] == ids[0][:, None], torch.inf)
        distances, indices = nearest_first(exact, kept, self.n_neighbors)
        if self.n_kept == len(self.keys):
            return distances, indices, left, left[:0]
        # Dropped keys score at least as much as the last one kept. Unless that exceeds the largest
        # score of a neighbor including rounding, a dropped key may be nearer.
        unsure = ~(score[:, -1] > self._limit(distances[:, -1], norms, dtype))
        return distances, indices, left, unsure.nonzero()[:, 0]

    def _candidates(
        self, query: Tensor, ids: Ids, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_keys, device = len(self.keys), query.device
        score = torch.empty(len(query), 0, device=device, dtype=dtype)
        kept = torch.empty(len(query), 0, dtype=torch.int64, device=device)
        left = torch.full((len(query),), n_keys, device=device)
        step = self.key_step(dtype)
        for start in range(0, n_keys, step):
            keys = factors_of(self.keys[start : start + step], self.prepared.center, dtype)
            wide = dtype == torch.float64
            norms = keys.norm(dim=1) if wide else self.prepared.norms[start : start + step]
            tile = self._scores(query @ keys.T, norms)
            if ids:
                own = ids[1][start : start + len(keys)] == ids[0][:, None]
                left = left - own.sum(1)
                tile.masked_fill_(own, torch.inf)
            near = tile.topk(min(self.n_kept, len(keys)), largest=False)
            if step >= n_keys:
                return near.values, near.indices, left
            score = torch.cat([score, near.values], 1)
            kept = torch.cat([kept, near.indices + start], 1)
            best = score.topk(min(self.n_kept, score.shape[1]), largest=False)
            score, kept = best.values, kept.gather(1, best.indices)
        return score, kept, left

    def _scores(self, products: Tensor, norms: Tensor) -> Tensor:
        """Turn products in place into scores with the order of the distances."""
        if self.metric in ("euclidean", "sqeuclidean"):
            return products.mul_(-2.0).add_(norms.square().to(products.dtype))
        if self.metric == "cosine":
            lengths = norms.clamp_min(torch.finfo(torch.float32).tiny).to(products.dtype)
            return products.neg_().div_(lengths)
        return products.neg_()

    def _limit(self, worst: Tensor, q_norm: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the largest possible score of a row at distance `worst` or less; see `kernels`."""
        wide = dtype == torch.float64
        unit, k_max = _UNIT64 if wide else _UNIT32, self.prepared.longest
        width = self.keys.shape[1]
        relative = (width + 16) * unit + (0.0 if wide else product_error(self.keys.device))
        worst = worst.to(self.wide)
        if self.metric == "inner_product":
            bound = worst + relative * q_norm * k_max + 8 * _UNIT32 * worst.abs()
        elif self.metric == "cosine":
            bound = q_norm * (worst - 1) + (relative + 8 * unit + 8 * _UNIT32 * worst) * q_norm
        else:
            squared = worst.square() if self.metric == "euclidean" else worst
            slack = 2 * relative * q_norm * k_max
            slack = slack + 8 * unit * (k_max**2 + q_norm**2) + 8 * _UNIT32 * squared
            bound = squared - q_norm**2 + slack
        bound = bound + bound.abs() * unit + (width + 1) * 1e-37 * (1 + q_norm + k_max)
        if wide:
            return bound
        # Products in float32 may overflow or vanish.
        is_unsafe = q_norm.clamp_min(k_max) >= LARGEST_NORM
        if self.metric == "cosine":
            is_unsafe |= q_norm.clamp_max(self.prepared.shortest) < SMALLEST_NORM
        return bound.masked_fill(is_unsafe, torch.inf)

    def _measure(self, query: Tensor, near: Tensor) -> Tensor:
        exact = paired_distances(query.to(self.wide), near.to(self.wide), self.metric).float()
        return exact.masked_fill(exact < 1e-30, 0.0) if self.metric == "cosine" else exact

    def _measure_kept(self, query: Tensor, kept: Tensor) -> Tensor:
        step = max(1, self.budget // 4 // (40 * kept.shape[1] * query.shape[1]))
        places = range(0, max(1, len(query)), step)
        parts = [self._measure(query[i : i + step], self.keys[kept[i : i + step]]) for i in places]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _all_measured(self, query: Tensor, ids: Ids) -> tuple[Tensor, Tensor, Tensor]:
        """Search without scores, by the distances of every pair."""
        distances = torch.empty(len(query), self.n_neighbors, device=query.device)
        indices = torch.empty_like(distances, dtype=torch.int64)
        left = torch.full((len(query),), len(self.keys), device=query.device)
        if ids:
            left = left - torch.stack([(ids[1] == own).sum() for own in ids[0]])
        everyone = torch.arange(len(query), device=query.device)
        self._measure_all(query, ids, everyone, distances, indices)
        return distances, indices, left

    def _measure_all(
        self, query: Tensor, ids: Ids, rows: Tensor, distances: Tensor, indices: Tensor
    ) -> None:
        """Compute the distances of some queries to every key, and write the smallest."""
        if not len(rows):
            return
        together = max(1, self.budget // 4 // (32 * len(self.keys)))
        for some in rows.split(together):
            step = max(1, self.budget // 4 // (40 * self.keys.shape[1] * len(some)))
            parts = [
                self._measure(query[some], part.expand(len(some), *part.shape))
                for part in self.keys.split(step)
            ]
            exact = torch.cat(parts, 1)
            if ids:
                exact = exact.masked_fill(ids[1] == ids[0][some][:, None], torch.inf)
            order = torch.arange(len(self.keys), device=query.device).expand(exact.shape)
            distances[some], indices[some] = nearest_first(exact, order, self.n_neighbors)


def _widest(keys: Tensor) -> torch.dtype:
    return torch.float32 if keys.device.type == "mps" else torch.float64


def nearest_first(exact: Tensor, positions: Tensor, n_neighbors: int) -> tuple[Tensor, Tensor]:
    """Return the first `n_neighbors` by distance, then position; both (b, n_neighbors)."""
    positions, order = positions.sort(dim=1)
    distances, order = exact.gather(1, order).sort(dim=1, stable=True)
    return distances[:, :n_neighbors], positions.gather(1, order)[:, :n_neighbors]
