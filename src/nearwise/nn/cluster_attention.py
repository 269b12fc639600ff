"""Attention in two levels: over clusters of the neighbors, then within each cluster."""

from typing import Literal

import torch
from torch import Tensor, nn

from nearwise.nn.neighborhood import Neighborhood

Clusters = Literal["label", "band"]
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
        reliability, and the base's mean opinion of its labels.
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
