"""Inputs of the regression head: residuals of neighbors, in units comparable across tables.

`RememberedNumbers` summarizes the remembered rows of one key space; `RememberedNumbers.describe`
turns search results of queries into a `NumberSet`. Training and prediction both use them.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.cached import cached_property
from nearwise.functional import Metric, Neighbors
from nearwise.nn.neighbor_set import from_zero

N_ATOMS = 32  # quantiles of the residuals of all rows, for the null neighbor
N_SUMMARY = 13
HAS_BASE = 2
_SHAPE = (1, 8, 16, 24, 30)  # atoms that describe the distribution of all residuals
_AT_ONCE = 2048  # queries per block


class NumberSet(NamedTuple):
    """Neighbors of B queries in one key space, with their features.

    Attributes
    ----------
    location : float64 Tensor of shape (B,)
        The base's prediction for the query; the mean of the remembered targets without a base.
    unit : float64 Tensor of shape (B,)
        Typical residual; divides all values in the unit of the target.
    distances : Tensor of shape (B, K)
        In units of the space's typical neighbor distance; ascending.
    residuals : Tensor of shape (B, K)
        Target of each neighbor minus its out-of-sample prediction by the base, in units.
    gaps : Tensor of shape (B, K)
        The base's prediction of each neighbor minus that of the query, in units; 0 without a base.
    own_distance : Tensor of shape (B, K)
        Mean distance of each neighbor to its own neighbors.
    own_mean, own_spread : Tensor of shape (B, K)
        Mean and mean absolute deviation of the residuals of the own neighbors, in units.
    log_weight : Tensor of shape (B, K)
        Logarithm of sample weights; -inf for padding.
    summary : Tensor of shape (B, 13)
        Features of table, space and query: sizes, distribution of residuals, presence of a base.
    atoms : Tensor of shape (B, 32)
        Quantiles of the residuals of all remembered rows, in units; ascending.
    """

    location: Tensor
    unit: Tensor
    distances: Tensor
    residuals: Tensor
    gaps: Tensor
    own_distance: Tensor
    own_mean: Tensor
    own_spread: Tensor
    log_weight: Tensor
    summary: Tensor
    atoms: Tensor

    def take(self, rows: Tensor) -> "NumberSet":
        """Return the neighbor sets of some queries."""
        return NumberSet(*(tensor[rows] for tensor in self))

    def nearest(self, k: int) -> "NumberSet":
        """Return the nearest `k` neighbors; the summary is unchanged."""
        return self._replace(**{name: getattr(self, name)[:, :k] for name in self._fields[2:9]})


@dataclass(frozen=True, eq=False)
class RememberedNumbers:
    """Summary of the remembered rows in one key space.

    Attributes
    ----------
    targets : float64 Tensor of shape (n,)
    own : int64 Tensor of shape (n, m + 1)
        Positions of each row's own nearest rows, itself left out.
    own_distances : Tensor of shape (n, m + 1)
    distance : float
        Typical neighbor distance; divides all distances.
    n_columns : int
        Number of numeric and categorical columns.
    supervised : bool
        Whether the keys hold predictions of a base.
    locations : float64 Tensor of shape (n,), optional
        Each row's out-of-sample prediction by the base.
    weight : Tensor of shape (n,), optional
        Weight of each row; 1 by default.
    metric : str, default="euclidean"
    groups : int64 Tensor of shape (n,), optional
        Group numbers from 0. Rows of a group are left out together; by default each row is its own.
    """

    targets: Tensor
    own: Tensor
    own_distances: Tensor
    distance: float
    n_columns: int
    supervised: bool = False
    locations: Tensor | None = None
    weight: Tensor | None = None
    metric: Metric = "euclidean"
    groups: Tensor | None = None

    def describe(
        self,
        found: Neighbors,
        location: Tensor | None = None,
        left_out: Tensor | None = None,
        log_weight: Tensor | None = None,
    ) -> NumberSet:
        """Return the features of the neighbors found for queries.

        No feature depends on the target of a left-out query, except through predictions of the
        base for its neighbors, if the base was fitted on the query.

        Parameters
        ----------
        found : Neighbors
            Distances in the unit of the keys, and positions, (B, K) each.
        location : float64 Tensor of shape (B,), optional
            The base's predictions of the queries; required if the rows have locations.
        left_out : int64 Tensor of shape (B,), optional
            Positions of the queries among the remembered rows; each is left out of `found`.
        log_weight : Tensor of shape (B, K), optional
        """
        at, (n_queries, k) = found.indices, found.indices.shape
        has_base = location is not None
        center = self._center(left_out, n_queries)
        atoms = self._atoms(left_out, n_queries)
        if location is None:
            location, gaps = center, torch.zeros(n_queries, k, dtype=torch.float64)
        else:
            assert self.locations is not None  # the caller gave both
            gaps = self.locations[at] - location[:, None]
        shift = location if not has_base else torch.zeros_like(location)
        atoms = atoms - shift[:, None]
        middle = atoms[:, N_ATOMS // 2 - 1 : N_ATOMS // 2 + 1].mean(1, keepdim=True)
        unit = (atoms - middle).abs().mean(1).clamp_min(1e-9 * float(self._unit_of_targets))
        usual = self._unit_of_targets if has_base else unit
        mean, spread = self._own(at, left_out)
        distances = from_zero(found.distances, self.metric).float() / self.distance
        atoms = (atoms / unit[:, None]).float()
        summary = distances.new_zeros(n_queries, N_SUMMARY)
        summary[:, 0] = math.log(len(self.targets)) / 8
        summary[:, 1] = math.log1p(self.n_columns) / 5
        summary[:, HAS_BASE] = float(has_base)
        summary[:, 3] = torch.log(unit / usual).float()
        summary[:, 4:9] = atoms[:, _SHAPE] / 3
        summary[:, 9] = (atoms.diff(dim=1) == 0).float().mean(1)
        summary[:, 10], summary[:, 11] = math.log(max(k, 1)) / 4, float(self.supervised)
        summary[:, 12] = torch.asinh((location - center) / self._unit_of_targets).float()

        def in_units(values: Tensor) -> Tensor:
            return (values / unit[:, None]).clamp(-1e4, 1e4).float()

        return NumberSet(
            location,
            unit,
            distances,
            in_units(self._residuals[at] - shift[:, None]),
            in_units(gaps),
            self._own_distance[at] / self.distance,
            in_units(mean - shift[:, None]),
            in_units(spread),
            torch.zeros_like(distances) if log_weight is None else log_weight,
            summary,
            atoms.clamp(-1e4, 1e4),
        )

    @cached_property
    def _residuals(self) -> Tensor:
        return self.targets if self.locations is None else self.targets - self.locations

    @cached_property
    def _weight(self) -> Tensor:
        return torch.ones_like(self.targets) if self.weight is None else self.weight.double()

    @cached_property
    def _unit_of_targets(self) -> Tensor:
        """Mean absolute deviation of the targets; else the largest absolute target or 1."""
        away = (self.targets - self._center(None, 1)).abs()
        mean = (away * self._weight).sum() / self._weight.sum()
        largest = self.targets.abs().max()
        return mean if float(mean) > 1e-12 * float(largest) else largest.clamp_min(1.0)

    @cached_property
    def _members(self) -> Tensor:
        """Sorted positions of the rows left out with each row, (n, largest group); padded."""
        rank = torch.empty_like(self._order)
        rank[self._order] = torch.arange(len(rank))
        if self.groups is None:
            return rank[:, None]
        order = torch.argsort(self.groups * len(rank) + rank)
        counts = torch.bincount(self.groups)
        starts = counts.cumsum(0) - counts
        nth = torch.arange(len(rank)) - starts[self.groups[order]]
        table = torch.full((len(counts), int(counts.max())), len(rank))
        table[self.groups[order], nth] = rank[order]
        return table[self.groups]

    @cached_property
    def _order(self) -> Tensor:
        return torch.argsort(self._residuals, stable=True)

    def _center(self, left_out: Tensor | None, n_queries: int) -> Tensor:
        """Weighted mean of the targets without the rows left out with a query; (B,)."""
        weighted = self.targets * self._weight
        total, count = weighted.sum(), self._weight.sum()
        if left_out is None:
            return (total / count).expand(n_queries)
        if self.groups is None:
            own, of_own = weighted[left_out], self._weight[left_out]
        else:
            n_groups = int(self.groups.max()) + 1
            sums = [
                one.new_zeros(n_groups).index_add_(0, self.groups, one)
                for one in (weighted, self._weight)
            ]
            own, of_own = (one[self.groups[left_out]] for one in sums)
        rest = count - of_own
        return torch.where(rest > 0, (total - own) / rest.clamp_min(1e-30), total / count)

    def _atoms(self, left_out: Tensor | None, n_queries: int) -> Tensor:
        """Weighted quantiles of the residuals without the left-out rows, (B, 32)."""
        weight, values = self._weight[self._order], self._residuals[self._order]
        cumulative = weight.cumsum(0)
        levels = (torch.arange(N_ATOMS, dtype=torch.float64) + 0.5) / N_ATOMS
        if left_out is None:
            at = torch.searchsorted(cumulative, levels * cumulative[-1], right=True)
            return values[at.clamp_max(len(values) - 1)].expand(n_queries, -1)
        members = self._members[left_out]
        padded, before = F.pad(weight, (0, 1)), F.pad(cumulative - weight, (0, 1))
        own = padded[members]
        wanted = levels * (cumulative[-1] - own.sum(1, keepdim=True))
        for nth in range(members.shape[1]):  # ascending: skip the weight of each
            is_above = wanted >= before[members[:, nth], None] - 1e-9
            wanted = wanted + own[:, nth, None] * is_above
        at = torch.searchsorted(cumulative, wanted.contiguous(), right=True)
        return values[at.clamp_max(len(values) - 1)]

    @property
    def _m(self) -> int:
        """Number of own neighbors per row, without the spare one."""
        return max(self.own.shape[1] - 1, 1)

    @cached_property
    def _own_distance(self) -> Tensor:
        if not self.own.shape[1]:
            return torch.full((len(self.targets),), self.distance)
        return from_zero(self.own_distances, self.metric)[:, : self._m].float().mean(1)

    @cached_property
    def _own_numbers(self) -> tuple[Tensor, Tensor]:
        """Mean and spread of the residuals of each row's own neighbors, (n,)."""
        return _mean_and_spread(self._residuals[self.own[:, : self._m]])

    def _own(self, at: Tensor, left_out: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and spread as in `_own_numbers`, for neighbors `at` (B, K) without left-out rows."""
        if not self.own.shape[1]:
            nothing = self._center(None, 1) if self.locations is None else torch.zeros(1).double()
            usual = self._unit_of_targets.expand(at.shape)
            return nothing.expand(at.shape), usual
        if left_out is None:
            mean, spread = self._own_numbers
            return mean[at], spread[at]
        found = []
        groups = torch.arange(len(self.targets)) if self.groups is None else self.groups
        for rows in torch.arange(len(at)).split(_AT_ONCE):
            own = self.own[at[rows]]
            others = groups[own] != groups[left_out[rows], None, None]
            counted = others & (others.cumsum(2) <= self._m)
            found.append(_mean_and_spread(self._residuals[own], counted))
        mean, spread = map(torch.cat, zip(*found, strict=True))
        return mean, spread


def _mean_and_spread(values: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and mean absolute deviation over the last dimension, of the counted values."""
    if counted is None:
        mean = values.mean(-1)
        return mean, (values - mean[..., None]).abs().mean(-1)
    count = counted.sum(-1).clamp_min(1)
    mean = (values * counted).sum(-1) / count
    return mean, ((values - mean[..., None]).abs() * counted).sum(-1) / count
