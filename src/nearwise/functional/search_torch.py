"""Exact search in plain torch, for devices other than the CPU."""

import contextlib
import os

import torch
from torch import Tensor

from nearwise.functional.distances import Metric, paired_distances

_KEY_TILE = 65536
_SPARE = 16
# Subtract the mean of the keys when it is longer than this many standard deviations.
_LONG_MEAN = 2.0

# A little more than twice the rounding unit of what the two factors are rounded to.
_BFLOAT16, _TF32 = 1.01 * 2.0**-7, 1.01 * 2.0**-10
_PRODUCT_ERRORS = {
    "none": 0.0,
    "ieee": 0.0,
    "highest": 0.0,
    "strict": 0.0,
    "tf32": _TF32,
    "high": _TF32,
}

Ids = tuple[Tensor, Tensor] | None


def search_torch(
    query: Tensor,
    keys: Tensor,
    n_neighbors: int,
    metric: Metric,
    ids: Ids,
    memory_budget: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return distances (b, k), indices (b, k) and the number found (b,); arguments are checked."""
    device, width = query.device, query.shape[1]
    n_kept = min(len(keys), n_neighbors + _SPARE)
    key_step = max(1, min(len(keys), _KEY_TILE, memory_budget // 4 // (24 * width + 64)))
    per_query = 24 * (key_step + n_kept) + 40 * n_kept * width + 24 * width
    query_step = max(1, memory_budget // 2 // per_query)
    empty = torch.empty(0, n_neighbors, device=device)
    found = [(empty, empty.long(), torch.empty(0, dtype=torch.int64, device=device))]
    with torch.autocast(device.type, enabled=False):
        center = center_of(keys) if metric in ("euclidean", "sqeuclidean") else None
        search = _Search(keys.detach(), n_neighbors, n_kept, metric, center, key_step)
        for start in range(0, len(query), query_step):
            here = slice(start, start + query_step)
            own = (ids[0][here], ids[1]) if ids else None
            found.append(search.rows(query[here].detach(), own))
    distances, indices, counts = (torch.cat(parts) for parts in zip(*found, strict=True))
    return distances, indices, counts


def center_of(keys: Tensor) -> Tensor | None:
    """Return a mean to subtract where a far origin would cost float32 its digits, else None."""
    sample = keys.detach()[:: max(1, len(keys) // 512)].float()
    mean = sample.mean(0)
    if not bool(torch.isfinite(mean).all()):
        return None
    spread = (sample - mean).norm(dim=1).mean()
    return mean if float(mean.norm()) > _LONG_MEAN * float(spread) else None


class _Search:
    """One search: keep a few more than `n_neighbors` by score, then measure those directly."""

    def __init__(
        self,
        keys: Tensor,
        n_neighbors: int,
        n_kept: int,
        metric: Metric,
        center: Tensor | None,
        key_step: int,
    ) -> None:
        self.keys, self.metric, self.center = keys, metric, center
        self.n_neighbors, self.n_kept, self.key_step = n_neighbors, n_kept, key_step
        # Apple's GPUs have no float64; distances are then exact to float32.
        self.wide = torch.float32 if keys.device.type == "mps" else torch.float64

    def rows(self, query: Tensor, ids: Ids) -> tuple[Tensor, Tensor, Tensor]:
        """Search for one tile of queries."""
        factors = self._factors(query)
        norms = factors.to(self.wide).norm(dim=1)
        score, kept, k_max, left = self._candidates(factors, ids)
        exact = self._measure(query, self.keys[kept])
        if ids:
            exact = exact.masked_fill(ids[1][kept] == ids[0][:, None], torch.inf)
        distances, indices = _first(exact, kept, self.n_neighbors)
        if self.n_kept < len(self.keys):
            # A dropped key scores at least as much as the last one kept. Unless that is more than
            # rounding allows a neighbor to score, the whole row is measured.
            limit = self._limit(distances[:, -1], norms, k_max)
            unsure = ~(score[:, -1] > limit)
            for i in unsure.nonzero()[:, 0].tolist():
                own = (ids[0][i : i + 1], ids[1]) if ids else None
                distances[i], indices[i] = self._whole_row(query[i : i + 1], own)
        return distances, indices, left

    def _factors(self, rows: Tensor) -> Tensor:
        return rows.float() if self.center is None else (rows - self.center).float()

    def _candidates(self, query: Tensor, ids: Ids) -> tuple[Tensor, Tensor, float, Tensor]:
        n_keys, device = len(self.keys), query.device
        score = torch.empty(len(query), 0, device=device)
        kept = torch.empty(len(query), 0, dtype=torch.int64, device=device)
        left = torch.full((len(query),), n_keys, device=device)
        k_max = 0.0
        for start in range(0, n_keys, self.key_step):
            keys = self._factors(self.keys[start : start + self.key_step])
            norms = keys.to(self.wide).norm(dim=1)
            k_max = max(k_max, float(norms.max()))
            tile = query @ keys.T
            if self.metric in ("euclidean", "sqeuclidean"):
                tile = norms.square().float() - 2.0 * tile
            elif self.metric == "cosine":
                tile = -tile / norms.clamp_min(torch.finfo(torch.float32).tiny).float()
            else:
                tile = -tile
            if ids:
                own = ids[1][start : start + len(keys)] == ids[0][:, None]
                left = left - own.sum(1)
                tile = tile.masked_fill(own, torch.inf)
            near = tile.topk(min(self.n_kept, len(keys)), largest=False)
            score = torch.cat([score, near.values], 1)
            kept = torch.cat([kept, near.indices + start], 1)
            best = score.topk(min(self.n_kept, score.shape[1]), largest=False)
            score, kept = best.values, kept.gather(1, best.indices)
        return score, kept, k_max, left

    def _limit(self, worst: Tensor, q_norm: Tensor, k_max: float) -> Tensor:
        """Return the largest score a row no farther than `worst` can have; see `kernels`."""
        unit, width = 6.6e-8, self.keys.shape[1]
        relative = (width + 16) * unit + product_error(self.keys.device)
        worst = worst.to(self.wide)
        if self.metric == "inner_product":
            bound = worst + relative * q_norm * k_max + 8 * unit * worst.abs()
        elif self.metric == "cosine":
            bound = q_norm * (worst - 1) + (relative + 8 * unit) * q_norm
        else:
            squared = worst.square() if self.metric == "euclidean" else worst
            slack = 2 * relative * q_norm * k_max
            slack = slack + 8 * unit * (k_max**2 + q_norm**2 + squared)
            bound = squared - q_norm**2 + slack
        return bound + bound.abs() * unit + (width + 1) * 1e-37 * (1 + q_norm + k_max)

    def _measure(self, query: Tensor, near: Tensor) -> Tensor:
        exact = paired_distances(query.to(self.wide), near.to(self.wide), self.metric).float()
        return exact.masked_fill(exact < 1e-30, 0.0) if self.metric == "cosine" else exact

    def _whole_row(self, query: Tensor, ids: Ids) -> tuple[Tensor, Tensor]:
        parts = self.keys.split(self.key_step)
        exact = torch.cat([self._measure(query, part[None]) for part in parts], 1)
        if ids:
            exact = exact.masked_fill(ids[1] == ids[0][:, None], torch.inf)
        order = torch.arange(len(self.keys), device=query.device)[None]
        distances, indices = _first(exact, order, self.n_neighbors)
        return distances[0], indices[0]


def _first(exact: Tensor, positions: Tensor, n_neighbors: int) -> tuple[Tensor, Tensor]:
    """Return the smallest by (distance, position)."""
    positions, order = positions.sort(dim=1)
    distances, order = exact.gather(1, order).sort(dim=1, stable=True)
    return distances[:, :n_neighbors], positions.gather(1, order)[:, :n_neighbors]


def product_error(device: torch.device) -> float:
    """Bound the relative error of float32 products that torch's settings add to plain rounding.

    Torch may round the factors to tf32 or bfloat16; the roughest setting in sight counts.
    """
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    owners = (getattr(backend, "matmul", None), backend, torch.backends)
    names = {str(getattr(owner, "fp32_precision", "none")) for owner in owners}
    # torch refuses to name the setting where the backends have different ones.
    with contextlib.suppress(RuntimeError):
        names.add(torch.get_float32_matmul_precision())
    names.add(os.environ.get("DNNL_DEFAULT_FPMATH_MODE", "none").lower())
    names.add(os.environ.get("ONEDNN_DEFAULT_FPMATH_MODE", "none").lower())
    return max(_PRODUCT_ERRORS.get(name, _BFLOAT16) for name in names)
