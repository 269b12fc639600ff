"""Inputs of a pretrained head: features of a query's neighbors that are comparable across tables.

`RememberedSpace` summarizes the remembered rows of one key space; `RememberedSpace.describe` turns
search results of queries into a `NeighborSet`. Training and prediction both use them.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.cached import cached_property
from nearwise.functional import Metric, Neighbors, topk_neighbors
from nearwise.functional.set_attention import HAS_BASE, LEAST

N_SUMMARY = 16
OWN_NEIGHBORS = 17  # stored per row; the last replaces a neighbor that is left out
_JUDGED = 2_000  # remembered rows used to measure the accuracy of votes
_SHARPNESS = (0.0, 2.0, 4.0, 8.0, 16.0)
_SMOOTHING = 0.5  # pseudo-count per class


class NeighborSet(NamedTuple):
    """Neighbors of B queries in one key space, with their features.

    Attributes
    ----------
    distances : Tensor of shape (B, K)
        In units of the space's typical neighbor distance; ascending.
    labels : int64 Tensor of shape (B, K)
        Class positions, below C.
    own_distance : Tensor of shape (B, K)
        Mean distance of each neighbor to its own neighbors, in the same unit.
    reliability : Tensor of shape (B, K)
        Share of each neighbor's own neighbors with the same label, in [0, 1].
    opinion : Tensor of shape (B, K)
        The base's log-probability of the neighbor's label for the query; 0 without a base.
    own_opinion : Tensor of shape (B, K)
        The base's out-of-bag or out-of-fold log-probability of the neighbor's own label; 0
        without a base.
    likeness : Tensor of shape (B, K)
        Bhattacharyya coefficient of the base's predictions for query and neighbor, in [0, 1]; 0
        without a base.
    log_weight : Tensor of shape (B, K)
        Logarithm of sample weights; -inf for padding.
    summary : Tensor of shape (B, 16)
        Features of table, space and query. These are sizes, accuracy of plain votes on remembered
        rows, presence of a base and its confidence.
    log_prior : Tensor of shape (B, C)
        Logarithm of the class shares; -inf for padding.
    """

    distances: Tensor
    labels: Tensor
    own_distance: Tensor
    reliability: Tensor
    opinion: Tensor
    own_opinion: Tensor
    likeness: Tensor
    log_weight: Tensor
    summary: Tensor
    log_prior: Tensor

    def take(self, rows: Tensor) -> "NeighborSet":
        """Return the neighbor sets of some queries."""
        return NeighborSet(*(tensor[rows] for tensor in self))

    def nearest(self, k: int) -> "NeighborSet":
        """Return the nearest `k` neighbors; the summary is unchanged."""
        cut = {name: getattr(self, name)[:, :k] for name in self._fields[:8]}
        return self._replace(**cut)


@dataclass(frozen=True, eq=False)
class SpaceSummary:
    """Summary of all remembered rows of a key space.

    Attributes
    ----------
    n_rows, n_columns : int
        Number of rows, and of numeric and categorical columns.
    log_prior : Tensor of shape (C,)
        Logarithm of the class shares.
    votes : Tensor of shape (6,)
        Mean log shares of agreeing votes of own neighbors at five sharpnesses; mean plain share.
    unit : float
        Typical neighbor distance.
    own_opinion : float or None
        Mean log-probability of a row's own label by the base; None without a base.
    supervised : bool
        Whether the keys hold predictions of a base.
    metric : str
    """

    n_rows: int
    n_columns: int
    log_prior: Tensor
    votes: Tensor
    unit: float
    own_opinion: float | None
    supervised: bool = False
    metric: Metric = "euclidean"

    @cached_property
    def of_table(self) -> Tensor:
        """Sizes, entropy of the class shares, and accuracy of votes, (10,)."""
        sizes = (
            math.log(self.n_rows) / 8,
            math.log1p(self.n_columns) / 5,
            math.log(max(len(self.log_prior), 2)) / 4,
            float(torch.special.entr(self.log_prior.exp()).sum()),
        )
        return torch.cat([self.votes.new_tensor(sizes), self.votes])


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Features of each remembered row of a key space that do not depend on a query.

    Attributes
    ----------
    labels : int64 Tensor of shape (n,)
        Class positions.
    own_distance : Tensor of shape (n,)
        Mean distance to its own nearest rows, itself left out.
    reliability : Tensor of shape (n,)
        Share of these rows with the same label, in [0, 1].
    base_log_proba : Tensor of shape (n, C), optional
        Out-of-sample log-probabilities by the base.
    """

    labels: Tensor
    own_distance: Tensor
    reliability: Tensor
    base_log_proba: Tensor | None = None

    @cached_property
    def own_opinion(self) -> Tensor:
        """The base's log-probability of each row's own label, (n,)."""
        assert self.base_log_proba is not None  # given together with those of the queries
        return self.base_log_proba.float().gather(1, self.labels[:, None])[:, 0]

    @cached_property
    def _root_proba(self) -> Tensor:
        assert self.base_log_proba is not None
        return (0.5 * self.base_log_proba.float()).exp()

    def describe(
        self,
        found: Neighbors,
        summary: SpaceSummary,
        base_log_proba: Tensor | None = None,
        log_weight: Tensor | None = None,
    ) -> NeighborSet:
        """Return the features of the neighbors of new queries.

        Parameters and result are as in `RememberedSpace.describe`.
        """
        if (base_log_proba is None) != (self.base_log_proba is None):
            raise ValueError(
                "The base's log-probabilities are given for the queries or the remembered rows "
                "only. Give both, or neither."
            )
        at, (n_queries, k) = found.indices, found.indices.shape
        distances = from_zero(found.distances, summary.metric).float() / summary.unit
        labels = self.labels[at]
        nothing = torch.zeros_like(distances)
        of_query = distances.new_zeros(n_queries, N_SUMMARY)
        of_query[:, :10] = summary.of_table
        of_query[:, 14], of_query[:, 15] = math.log(max(k, 1)) / 4, float(summary.supervised)
        opinion = own_opinion = likeness = nothing
        if base_log_proba is not None:
            proba = base_log_proba.float().exp()
            opinion = base_log_proba.float().gather(1, labels)
            own_opinion = self.own_opinion[at]
            likeness = torch.einsum("bkc,bc->bk", self._root_proba[at], proba.sqrt())
            assert summary.own_opinion is not None  # set if the rows have a base
            of_query[:, HAS_BASE], of_query[:, 11] = 1.0, summary.own_opinion
            of_query[:, 12] = proba.amax(1)
            of_query[:, 13] = torch.special.entr(proba).sum(1)
        return NeighborSet(
            distances,
            labels,
            self.own_distance[at] / summary.unit,
            self.reliability[at],
            opinion,
            own_opinion,
            likeness,
            nothing if log_weight is None else log_weight,
            of_query,
            summary.log_prior.expand(n_queries, -1),
        )


@dataclass(frozen=True, eq=False)
class RememberedSpace:
    """Remembered rows of one key space and their own neighbors.

    Attributes
    ----------
    labels : int64 Tensor of shape (n,)
        Class positions.
    own : int64 Tensor of shape (n, m + 1)
        Positions of each row's own nearest rows, itself left out.
    own_distances : Tensor of shape (n, m + 1)
        Distances of these rows.
    unit : float
        Typical neighbor distance; divides all distances.
    n_classes, n_columns : int
        Number of classes, and of numeric and categorical columns.
    supervised : bool
        Whether the keys hold predictions of a base.
    base_log_proba : Tensor of shape (n, C), optional
        Each row's out-of-sample log-probabilities by the base.
    weight : Tensor of shape (n,), optional
        Weight of each row in the class shares; 1 by default.
    metric : str, default="euclidean"
        Metric of the distances. Distances of "inner_product" have no zero, so the one of the
        nearest row is subtracted for each row and query.
    groups : int64 Tensor of shape (n,), optional
        Group numbers from 0. Rows of a group are left out together, and are never own neighbors of
        each other. By default each row is its own group.
    """

    labels: Tensor
    own: Tensor
    own_distances: Tensor
    unit: float
    n_classes: int
    n_columns: int
    supervised: bool = False
    base_log_proba: Tensor | None = None
    weight: Tensor | None = None
    metric: Metric = "euclidean"
    groups: Tensor | None = None

    @classmethod
    def of(
        cls,
        keys: Tensor,
        labels: Tensor,
        *,
        n_classes: int,
        n_columns: int,
        supervised: bool = False,
        base_log_proba: Tensor | None = None,
        metric: Metric = "euclidean",
    ) -> Self:
        """Search the keys (n, width) of remembered rows among themselves and summarize them.

        The other parameters are as in the class. ValueError if labels are not positions of
        `n_classes` classes, one per key, or the base's log-probabilities have another shape.
        """
        n = len(keys)
        if (
            labels.shape != (n,)
            or not n
            or not 0 <= int(labels.min()) <= int(labels.max()) < n_classes
        ):
            raise ValueError(
                f"labels of shape {tuple(labels.shape)} do not fit: give {n} class positions, one "
                f"per key and at least one, each from 0 to n_classes - 1 = {n_classes - 1}."
            )
        if base_log_proba is not None and base_log_proba.shape != (n, n_classes):
            raise ValueError(
                f"base_log_proba has shape {tuple(base_log_proba.shape)}. Give {(n, n_classes)}."
            )
        ids = torch.arange(n, device=keys.device)
        k = min(OWN_NEIGHBORS, n - 1)
        found = Neighbors(keys.new_zeros(n, 0, dtype=torch.float32), ids[:, None][:, :0])
        if k:
            found = topk_neighbors(keys, keys, k, metric=metric, query_ids=ids, key_ids=ids)
        unit = typical_distance(from_zero(found.distances, metric))
        sizes = (unit, n_classes, n_columns, supervised, base_log_proba)
        return cls(labels, found.indices, found.distances, *sizes, metric=metric)

    def describe(
        self,
        found: Neighbors,
        base_log_proba: Tensor | None = None,
        left_out: Tensor | None = None,
        log_weight: Tensor | None = None,
    ) -> NeighborSet:
        """Return the features of the neighbors found for queries.

        No feature depends on the label of a left-out query, except through predictions of the base
        for its neighbors, if the base was fitted on the query.

        Parameters
        ----------
        found : Neighbors
            Distances in the unit of the keys, and positions, (B, K) each, K up to 64.
        base_log_proba : Tensor of shape (B, C), optional
            Log-probabilities of the queries by the base; required if the rows have them.
        left_out : int64 Tensor of shape (B,), optional
            Positions of the queries among the remembered rows; each is left out of `found`.
        log_weight : Tensor of shape (B, K), optional
            Logarithm of sample weights.

        Returns
        -------
        neighbors : NeighborSet
            float32.
        """
        rows, at = self.rows, found.indices
        seen = rows.describe(found, self.summary, base_log_proba, log_weight)
        if left_out is None:
            return seen
        reliability = torch.full_like(seen.distances, 0.5)
        if self.own.shape[1]:
            reliability = pair_reliability(at, self.own, self.labels, left_out, self.groups)
        log_prior, summary = log_shares(self._counts - self._own_counts(left_out)), seen.summary
        summary[:, 3] = torch.special.entr(log_prior.exp()).sum(1)
        summary[:, 4:10] = self._votes_without[left_out]
        return seen._replace(reliability=reliability, log_prior=log_prior, summary=summary)

    @cached_property
    def rows(self) -> "KnownRows":
        """Features of each row."""
        return KnownRows(self.labels, self._own_distance, self._reliability, self.base_log_proba)

    @cached_property
    def summary(self) -> "SpaceSummary":
        """Summary of all rows."""
        opinion = None
        if self.base_log_proba is not None:
            opinion = float(self.rows.own_opinion.clamp_min(LEAST).mean())
        return SpaceSummary(
            len(self.labels),
            self.n_columns,
            log_shares(self._counts),
            self._votes.mean(0),
            self.unit,
            opinion,
            self.supervised,
            self.metric,
        )

    @cached_property
    def _apart(self) -> Tensor:
        return from_zero(self.own_distances, self.metric)

    @property
    def _m(self) -> int:
        """Number of own neighbors per row, without the spare one."""
        return max(self.own.shape[1] - 1, 1)

    @cached_property
    def _counts(self) -> Tensor:
        return torch.bincount(self.labels, self.weight, self.n_classes).float()

    def _own_counts(self, rows: Tensor) -> Tensor:
        """Weighted class counts of the rows that are left out with each row, (B, C)."""
        if self.groups is not None:
            return self._counts_of_groups[self.groups[rows]]
        own = F.one_hot(self.labels[rows], self.n_classes)
        return own if self.weight is None else own * self.weight[rows, None]

    @cached_property
    def _counts_of_groups(self) -> Tensor:
        """Weighted class counts of each group, (n_groups, C)."""
        assert self.groups is not None  # checked by callers
        rows = F.one_hot(self.labels, self.n_classes).float()
        rows = rows if self.weight is None else rows * self.weight[:, None]
        n_groups = int(self.groups.max()) + 1
        return rows.new_zeros(n_groups, self.n_classes).index_add_(0, self.groups, rows)

    @cached_property
    def _agrees(self) -> Tensor:
        return (self.labels[self.own] == self.labels[:, None]).float()

    @cached_property
    def _reliability(self) -> Tensor:
        if not self.own.shape[1]:
            return torch.full((len(self.labels),), 0.5, device=self.labels.device)
        return self._agrees[:, : self._m].mean(1)

    @cached_property
    def _own_distance(self) -> Tensor:
        if not self.own.shape[1]:
            return torch.full((len(self.labels),), self.unit, device=self.labels.device)
        return self._apart[:, : self._m].float().mean(1)

    @cached_property
    def _judged(self) -> Tensor:
        """Positions of the evenly spread rows used to evaluate votes."""
        n = len(self.labels)
        if n <= _JUDGED:
            return torch.arange(n, device=self.labels.device)
        return torch.linspace(0, n - 1, _JUDGED, device=self.labels.device).long()

    @cached_property
    def _votes(self) -> Tensor:
        """Log shares and plain share of agreeing own neighbors, see `_judge`; (n_judged, 6)."""
        if self.own.shape[1] < 2:
            return torch.zeros(len(self._judged), len(_SHARPNESS) + 1, device=self.labels.device)
        at = self._judged
        return _judge(self._apart[at, : self._m], self._agrees[at, : self._m])

    def _votes_without_groups(self, groups: Tensor) -> Tensor:
        """Mean of `_votes` without each group in turn, (n_groups, 6)."""
        judged, n_groups = self._judged, int(groups.max()) + 1
        whole = F.pad(self._votes.float(), (0, 1), value=1.0)  # the last counts rows
        left = whole.sum(0) - whole.new_zeros(n_groups, whole.shape[1]).index_add_(
            0, groups[judged], whole
        )
        own = groups[self.own[judged]]
        for at in range(own.shape[1]):
            is_first = ~(own[:, :at] == own[:, at : at + 1]).any(1)
            rows = torch.nonzero(is_first)[:, 0]
            others = own[rows] != own[rows, at : at + 1]
            counted = others & (others.cumsum(1) <= self._m)
            apart, agrees = self._apart[judged[rows]], self._agrees[judged[rows]]
            votes = F.pad(_judge(apart, agrees, counted.float()), (0, 1), value=1.0)
            votes = votes * counted.any(1)[:, None]
            left.index_add_(0, own[rows, at], votes - whole[rows])
        return left[:, :-1] / left[:, -1:].clamp_min(1)

    @cached_property
    def _votes_without(self) -> Tensor:
        """Mean of `_votes` without each row in turn, (n, 6).

        The row's own votes are subtracted, and where it is an own neighbor of another row, the next
        one replaces it. A row of a group is left out with its whole group.
        """
        judged, n = self._judged, len(self.labels)
        if self.groups is not None:
            return self._votes_without_groups(self.groups)[self.groups]
        total = self._votes.sum(0).repeat(n, 1)
        total[judged] -= self._votes
        n_left = torch.full((n, 1), float(len(judged)), device=total.device)
        n_left[judged] -= 1
        width = self.own.shape[1]
        for gone in range(width - 1):
            others = [at for at in range(width) if at != gone]
            distances, agrees = self._apart[judged], self._agrees[judged]
            change = _judge(distances[:, others], agrees[:, others]) - self._votes
            total.index_add_(0, self.own[judged, gone], change)
        return total / n_left.clamp_min(1)


def pair_reliability(
    neighbors: Tensor, own: Tensor, labels: Tensor, query: Tensor, groups: Tensor | None = None
) -> Tensor:
    """Reliability of each query's neighbors, with the query left out of their own neighbors.

    The query's label must not reach its own prediction through its neighbors' reliability. So if
    query i is among the nearest m of neighbor j, the next one replaces it; without a next one the
    reliability is 0.5 (unknown). With `groups` all rows of the query's group are left out.

    Parameters
    ----------
    neighbors : int64 Tensor of shape (B, K)
        Positions of each query's neighbors.
    own : int64 Tensor of shape (n, m + 1)
        Positions of each remembered row's own neighbors, itself left out; -1 for padding.
    labels : int64 Tensor of shape (n,)
    query : int64 Tensor of shape (B,)
        Positions of the queries among the remembered rows.
    groups : int64 Tensor of shape (n,), optional

    Returns
    -------
    reliability : Tensor of shape (B, K), in [0, 1].
    """
    m = max(own.shape[1] - 1, 1)
    if groups is not None:
        return _reliability_of_others(neighbors, own, labels, groups[query], groups, m)
    agrees = (labels[own.clamp_min(0)] == labels[:, None]).float()
    plain = agrees[:, :m].sum(1)
    shares = []
    for rows in torch.arange(len(neighbors)).split(2048):
        j, i = neighbors[rows], query[rows]
        is_in = (own[:, :m][j] == i[:, None, None]).any(2)
        if own.shape[1] > 1:
            without = plain[j] - (labels[j] == labels[i][:, None]).float() + agrees[:, m][j]
        else:
            without = torch.full_like(plain[j], 0.5)
        shares.append(torch.where(is_in, without, plain[j]) / m)
    return torch.cat(shares)


def _reliability_of_others(
    neighbors: Tensor, own: Tensor, labels: Tensor, of_query: Tensor, groups: Tensor, m: int
) -> Tensor:
    """Compute `pair_reliability` by groups; `of_query` (B,) holds the groups of the queries.

    The first m own neighbors of other groups are used.
    """
    agrees = (labels[own] == labels[:, None]).float()
    shares = []
    for rows in torch.arange(len(neighbors)).split(2048):
        j = neighbors[rows]
        others = groups[own][j] != of_query[rows, None, None]
        counted = (others & (others.cumsum(2) <= m)).float()
        n_counted = counted.sum(2)
        share = (counted * agrees[j]).sum(2) / n_counted.clamp_min(1)
        shares.append(torch.where(n_counted > 0, share, 0.5))
    return torch.cat(shares)


def _judge(distances: Tensor, agrees: Tensor, counted: Tensor | None = None) -> Tensor:
    """Log share of agreeing votes at several sharpnesses, and the plain share; (rows, 6).

    `counted` is 1 for votes to include, else 0; by default all are included.
    """
    distances = distances.float()
    if counted is None:
        relative = distances / distances.mean(1, keepdim=True).clamp_min(1e-12)
        shares = [(torch.softmax(-s * relative, dim=1) * agrees).sum(1) for s in _SHARPNESS]
    else:
        n_counted = counted.sum(1, keepdim=True).clamp_min(1)
        usual = (distances * counted).sum(1, keepdim=True) / n_counted
        relative = distances / usual.clamp_min(1e-12)
        votes = [torch.exp(-s * relative) * counted for s in _SHARPNESS]
        shares = [(one * agrees).sum(1) / one.sum(1).clamp_min(1e-30) for one in votes]
    logs = [torch.log(0.98 * share + 0.01) for share in shares]
    return torch.stack([*logs, shares[0]], dim=1)


def from_zero(distances: Tensor, metric: Metric) -> Tensor:
    """Shift ascending distances (n, k) of "inner_product" so that none is negative."""
    if metric != "inner_product" or not distances.shape[1]:
        return distances
    return distances - distances[:, :1]


def typical_distance(distances: Tensor) -> float:
    """Median of the positive distances; 1 if there are none."""
    positive = distances[distances > 0]
    return float(positive.median()) if len(positive) else 1.0


def log_shares(counts: Tensor) -> Tensor:
    """Logarithm of class shares (..., C) from counts, with a pseudo-count of 0.5 per class."""
    smooth = counts + _SMOOTHING
    return torch.log(smooth / smooth.sum(-1, keepdim=True))
