"""Variants of the attention head that showed no gain, kept beside their measurement.

`benchmarks/ablation_attention.py` fits each of them, and the study's replay two:

    settings = Settings(head=VariantConfig(clusters="label"))
    AttnKNNClassifier(cv=0.2, settings=settings)

Such a head is trained from scratch, so that it needs rows that are held out. The classifier then
fits and predicts like any other, and is not saved.
"""

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from nearwise.lab.nn.calibration_losses import brier_loss, soft_binned_ece
from nearwise.nn import HeadOutput, NeighborAttention, NeighborHead, Neighborhood
from nearwise.nn.neighbor_head import Logits, softmax_or_nothing
from nearwise.training import HeadConfig, HeadRows

Clusters = Literal["label", "band"]
AdaptiveK = Literal["entropy"]
N_CLUSTER_FEATURES = 5
_BASE, _RELIABILITY = 4, 6  # columns of `Neighborhood.features`


def cluster_ids(seen: Neighborhood, kind: Clusters) -> Tensor:
    """Cluster of every neighbor, int64 (B, K).

    "label": neighbors of one label. "band": shells of ranks that double in width (the nearest; the
    next 2; the next 4; ...).
    """
    if kind == "label":
        return seen.labels
    n_queries, k = seen.distances.shape
    ranks = torch.arange(1, k + 1, device=seen.distances.device)
    return torch.floor(torch.log2(ranks.double())).long().expand(n_queries, k)


def cluster_features(seen: Neighborhood, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Describe each neighbor's cluster.

    Neighbors that `log_weight` leaves out count for nothing.

    Parameters
    ----------
    seen : Neighborhood
    ids : int64 Tensor of shape (B, K)

    Returns
    -------
    log_size : Tensor of shape (B, K)
        Logarithm of the size of the neighbor's cluster, 0 for one that is left out.
    features : Tensor of shape (B, K, 5)
        Log size over 3; the cluster's smallest and mean gap to the nearest neighbor; its mean
        reliability, and the base's mean log-probability of its labels.
    """
    alive = torch.isfinite(seen.log_weight).to(seen.distances)
    same = (ids[:, :, None] == ids[:, None, :]).to(seen.distances) * alive[:, None, :]
    size = same.sum(2).clamp_min(1.0)

    def mean(values: Tensor) -> Tensor:
        return torch.einsum("bij,bj->bi", same, values) / size

    gap = seen.distances - seen.distances[:, :1]
    nearest = gap[:, None, :].masked_fill(same == 0, float("inf")).amin(2)
    nearest = torch.where(torch.isfinite(nearest), nearest, gap)
    log_size = torch.log(size)
    columns = [
        log_size / 3,
        nearest,
        mean(gap),
        mean(seen.features[:, :, _RELIABILITY]),
        mean(seen.features[:, :, _BASE]),
    ]
    return log_size, torch.stack(columns, dim=2)


class ClusterAttention(nn.Module):
    """What the level of the clusters adds to the logits of their members.

    A softmax over clusters whose score is ``logsumexp of the members' logits + (b_h - 1) log n +
    g_h(cluster)``, times a softmax within each cluster, is one softmax over all neighbors whose
    logits carry ``(b_h - 1) log n + g_h(cluster)`` besides. b starts at 1 and g at 0: plain
    attention. With b = 0 a cluster counts by its mean instead of its sum, whatever its size.

    Parameters
    ----------
    kind : {"label", "band"}
    num_heads : int
    """

    def __init__(self, kind: Clusters, num_heads: int) -> None:
        super().__init__()
        self.kind: Clusters = kind
        self.size_power = nn.Parameter(torch.ones(num_heads))
        self.score = nn.Linear(N_CLUSTER_FEATURES, num_heads, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, seen: Neighborhood) -> Tensor:
        """Additional logits, (B, K, H)."""
        log_size, features = cluster_features(seen, cluster_ids(seen, self.kind))
        result: Tensor = (self.size_power - 1) * log_size[:, :, None] + self.score(features)
        return result


class ClusteredNeighborAttention(NeighborAttention):
    """`NeighborAttention` over clusters of the neighbors, then within; see `ClusterAttention`.

    Parameters
    ----------
    num_heads, hidden : int
        As in `NeighborAttention`.
    clusters : {"label", "band"}
    """

    def __init__(self, num_heads: int = 4, hidden: int = 16, *, clusters: Clusters) -> None:
        super().__init__(num_heads, hidden)
        self.clusters = ClusterAttention(clusters, num_heads)

    def _scores(self, seen: Neighborhood) -> Tensor:
        clusters: Tensor = self.clusters(seen)
        return super()._scores(seen) + clusters


def entropy_adaptive_k(weights: Tensor) -> Tensor:
    """Choose a neighborhood size for each query from how spread its weights are.

    The study's rule: with the entropy of the weights divided by ``log k_max``, under 0.5 take 30 %
    of k_max (at least 5), under 1.0 take 60 % (at least 10), else all.

    Parameters
    ----------
    weights : Tensor of shape (n_queries, k_max)
        Non-negative, each row sums to 1. The study used k_max = 50.

    Returns
    -------
    n_neighbors : int64 Tensor of shape (n_queries,)
        In [1, k_max]. Use it with `nearest_mask`.
    """
    k_max = weights.shape[-1]
    precise = weights if weights.dtype == torch.float64 else weights.float()
    entropy = torch.special.entr(precise).sum(-1)
    # One neighbor has nothing to spread over; 1e-6 forgives the rounding of uniform weights.
    spread = entropy / torch.log(torch.tensor(float(max(k_max, 2)))) + 1e-6
    sizes = torch.full(spread.shape, k_max, dtype=torch.int64, device=weights.device)
    sizes[spread < 1.0] = min(k_max, max(10, 6 * k_max // 10))
    sizes[spread < 0.5] = min(k_max, max(5, 3 * k_max // 10))
    return sizes


def nearest_mask(n_neighbors: Tensor, k_max: int) -> Tensor:
    """Return a mask (n_queries, k_max) that keeps the first ``n_neighbors[i]`` of row i."""
    return torch.arange(k_max, device=n_neighbors.device) < n_neighbors[:, None]


class VariantHead(NeighborHead):
    """`NeighborHead` with other neighborhood sizes or clusters.

    Parameters
    ----------
    n_spaces : int
    prior : Tensor of shape (n_classes,)
    k_ensemble : sequence of int, optional
        Average the weights of these neighborhood sizes, each from a softmax of its own.
    adaptive_k : {"entropy"}, optional
        Choose each query's neighborhood size by the entropy of its weights.
    k_temperature : bool, default=False
        Learn a temperature of the logits for each size of `k_ensemble`.
    clusters : {"label", "band"}, optional
        Attend over clusters of the neighbors, then within; see `ClusterAttention`.
    temperature : bool, default=False
        Learn a temperature of the pooled prediction together with the rest.
    options
        As in `NeighborHead`.
    """

    def __init__(
        self,
        n_spaces: int,
        prior: Tensor,
        *,
        k_ensemble: tuple[int, ...] | None = None,
        adaptive_k: AdaptiveK | None = None,
        k_temperature: bool = False,
        clusters: Clusters | None = None,
        temperature: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(n_spaces, prior, **options)
        self.k_ensemble, self.adaptive_k = k_ensemble, adaptive_k
        variant = {"k_ensemble": k_ensemble, "adaptive_k": adaptive_k, "clusters": clusters}
        self.config |= variant | {"k_temperature": k_temperature, "temperature": temperature}
        if clusters is not None:
            shape = (self.config["num_heads"], self.config["hidden"])
            self.attention = nn.ModuleList(
                ClusteredNeighborAttention(*shape, clusters=clusters) for _ in range(n_spaces)
            )
        self.log_k_temperature: nn.Parameter | None = None
        if k_temperature and k_ensemble:
            self.log_k_temperature = nn.Parameter(torch.zeros(len(k_ensemble)))
        self.log_temperature = nn.Parameter(torch.zeros(())) if temperature else None

    @property
    def pool_parameters(self) -> list[nn.Parameter]:
        """As in `NeighborHead`, with the temperatures."""
        own = (self.log_temperature, self.log_k_temperature)
        return [*super().pool_parameters, *(one for one in own if one is not None)]

    def _pooled(
        self, votes: Tensor, empty: Tensor, base_log_proba: Tensor
    ) -> tuple[Tensor, Tensor]:
        log_proba, alone = super()._pooled(votes, empty, base_log_proba)
        if self.log_temperature is not None:
            log_proba = torch.log_softmax(log_proba * torch.exp(-self.log_temperature), dim=1)
        return log_proba, alone

    def _attended(
        self, logits: list[Logits], spaces: list[Neighborhood]
    ) -> tuple[Tensor, Tensor, Tensor]:
        width = max(len(self.prior), *(int(one.labels.max()) + 1 for one in spaces))
        each = [[one] for one in logits]
        found = [
            self._weights_of(group) for group in ([logits] if self.pooling == "mixture" else each)
        ]
        alphas = [alpha for group, _ in found for alpha in group]
        votes = [
            self._votes(
                alpha,
                one.labels,
                one.certainty if one.certainty.shape[1] else torch.ones_like(alpha),
                width,
            )
            for alpha, one in zip(alphas, spaces, strict=True)
        ]
        if self.pooling == "mixture":
            votes = [torch.stack(votes).sum(0)]
        empty = torch.stack([one for _, one in found], dim=1)
        return torch.stack(votes, dim=1), empty, torch.cat(alphas, dim=1)

    def _weights_of(self, logits: list[Logits]) -> tuple[list[Tensor], Tensor]:
        sizes = [one.neighbors.shape[1] for one in logits]
        scores = torch.cat([one.neighbors for one in logits], dim=1)
        null = torch.logsumexp(torch.stack([_null_logits(one) for one in logits]), dim=0)
        null = null - math.log(len(logits))
        if self.null is None:
            null = torch.full_like(null, -math.inf)
        alpha = self._alpha(scores, null, sizes)
        # Where there are neither neighbors nor a null, the prior or the base predicts.
        total = alpha.sum(dim=1, keepdim=True)
        alpha = alpha / torch.where(total > 0, total, 1.0)
        nobody = (total[:, 0] == 0).to(alpha)
        return list(alpha[:, :-1].split(sizes, dim=1)), alpha[:, -1] + nobody

    def _alpha(self, scores: Tensor, null: Tensor, sizes: list[int]) -> Tensor:
        """Attention to the neighbors of all lists, `sizes` long, and to the null, (B, K + 1)."""
        ranks = torch.cat([torch.arange(size, device=scores.device) for size in sizes])
        alpha = self._of_ensemble(scores, null, ranks)
        if self.adaptive_k == "entropy":
            few = [_nearest_by_entropy(part) for part in alpha[:, :-1].split(sizes, dim=1)]
            alpha = _masked_softmax(scores, null, torch.cat(few, dim=1))
        return alpha

    def _of_ensemble(self, scores: Tensor, null: Tensor, ranks: Tensor) -> Tensor:
        """Weights of all neighbors, or the mean of those of each size; the rest has none."""
        if not self.k_ensemble:
            return _masked_softmax(scores, null, None)
        parts = []
        for position, k in enumerate(self.k_ensemble):
            keep = (ranks < k).expand(scores.shape[:2])
            if self.log_k_temperature is None:
                parts.append(_masked_softmax(scores, null, keep))
                continue
            sharp = torch.exp(-self.log_k_temperature[position])
            parts.append(_masked_softmax(scores * sharp, null * sharp, keep))
        return torch.stack(parts).mean(0)


def _null_logits(logits: Logits) -> Tensor:
    """Logits of the null, to append to the neighbors', (B, 1, H)."""
    none = torch.isneginf(logits.neighbors).all(dim=1, keepdim=True)
    total = torch.logsumexp(logits.neighbors.masked_fill(none, 0.0), dim=1, keepdim=True)
    return logits.null[:, :, None] + total.masked_fill(none, -1e4)


def _masked_softmax(scores: Tensor, null: Tensor, keep: Tensor | None) -> Tensor:
    if keep is not None:
        scores = scores.masked_fill(~keep[:, :, None], -math.inf)
    return softmax_or_nothing(torch.cat([scores, null], dim=1)).mean(dim=2)


def _nearest_by_entropy(weights: Tensor) -> Tensor:
    """Keep as many of the nearest (B, K) as the entropy of their weights requires."""
    total = weights.detach().sum(1, keepdim=True)
    even = torch.full_like(weights, 1 / weights.shape[1])
    share = torch.where(total > 1e-9, weights.detach() / total.clamp_min(1e-9), even)
    return nearest_mask(entropy_adaptive_k(share), weights.shape[1])


class VariantConfig(HeadConfig):
    """Settings of a head's training, with the parts of `VariantHead` and calibration terms.

    Parameters
    ----------
    k_ensemble, adaptive_k, k_temperature, clusters
        Of `VariantHead`.
    temperature : bool, default=False
        A temperature of the pooled prediction that is learned with the rest.
    ece_weight, brier_weight : float, default=0.0
        Weights of the soft-binned calibration error and of the Brier score of the pooled
        prediction, beside its NLL.
    ece_bins : int, default=15
    ece_width : float, default=0.01
        Softness of the bins; see `soft_binned_ece`.
    """

    k_ensemble: tuple[int, ...] | None = None
    adaptive_k: AdaptiveK | None = None
    k_temperature: bool = False
    clusters: Clusters | None = None
    temperature: bool = False
    ece_weight: float = Field(0.0, ge=0)
    brier_weight: float = Field(0.0, ge=0)
    ece_bins: int = Field(15, ge=1)
    ece_width: float = Field(0.01, gt=0)

    def make_head(self, n_spaces: int, prior: Tensor, **options: Any) -> NeighborHead:
        """Make the untrained head with the parts that are switched on."""
        return VariantHead(
            n_spaces,
            prior,
            k_ensemble=self.k_ensemble,
            adaptive_k=self.adaptive_k,
            k_temperature=self.k_temperature,
            clusters=self.clusters,
            temperature=self.temperature,
            **options,
        )

    def loss(self, output: HeadOutput, rows: HeadRows) -> Tensor:
        """Return the loss of `HeadConfig` and calibration terms, all of the given labels."""
        loss = super().loss(output, rows)
        log_proba = rows.given_log_proba(output.log_proba)
        given = (log_proba, rows.labels, rows.weight)
        if self.ece_weight:
            error = soft_binned_ece(*given, n_bins=self.ece_bins, width=self.ece_width)
            loss = loss + self.ece_weight * error
        if self.brier_weight:
            loss = loss + self.brier_weight * brier_loss(*given)
        return loss
