"""Neighbor attention: logits of a query's neighbors, and of the null neighbor beside them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.nn.cluster_attention import ClusterAttention, Clusters
from nearwise.nn.neighborhood import N_NEIGHBOR_FEATURES, N_SUMMARY_FEATURES, Neighborhood


class NeighborAttention(nn.Module):
    """Attention logits of neighbors and of the null neighbor, for one key space.

    The logit of neighbor j in head h is ``-s_h d_j + f_h(features_j) + log w_j``; the null's is
    learned from the neighborhood's summary. ``f`` starts at zero and the null small, so the head
    starts as distance weighting and training can only improve on it.

    Parameters
    ----------
    num_heads : int, default=4
        Heads with scales of their own, whose weights are averaged.
    hidden : int, default=16
        Width of the hidden layer over the features.
    clusters : {"label", "band"}, optional
        Attend over clusters of the neighbors first; see `ClusterAttention`.
    bilinear : int, default=0
        Rank a head of a term ``(W_q q) . (W_k n_j)`` on the keys, which starts at 0; 0 has none.
    key_width : int, default=0
        Width of the keys, where there is a bilinear term.
    """

    def __init__(
        self,
        num_heads: int = 4,
        hidden: int = 16,
        *,
        clusters: Clusters | None = None,
        bilinear: int = 0,
        key_width: int = 0,
    ) -> None:
        super().__init__()
        spread = 0.7 if num_heads > 1 else 0.0
        self.log_scale = nn.Parameter(torch.linspace(-spread, spread, num_heads))
        self.features = nn.Linear(N_NEIGHBOR_FEATURES, hidden)
        self.score = nn.Linear(hidden, num_heads)
        self.null = nn.Linear(N_SUMMARY_FEATURES, 1)
        for layer in (self.score, self.null):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.constant_(self.null.bias, -2.0)
        self.clusters = None if clusters is None else ClusterAttention(clusters, num_heads)
        self.bilinear = Bilinear(key_width, num_heads, bilinear) if bilinear else None

    def forward(self, seen: Neighborhood) -> tuple[Tensor, Tensor]:
        """Logits of the neighbors (B, K, H) and of the null (B, 1, H)."""
        logits = (
            self.score(F.gelu(self.features(seen.features)))
            - seen.distances[:, :, None] * self.log_scale.exp()
        )
        if self.clusters is not None:
            logits = logits + self.clusters(seen)
        if self.bilinear is not None:
            logits = logits + self.bilinear(seen.query, seen.keys)
        logits = logits + seen.log_weight[:, :, None]
        # Relative to the neighbors' total, so that the null starts with the same share everywhere.
        none = torch.isneginf(logits).all(dim=1, keepdim=True)
        total = torch.logsumexp(logits.masked_fill(none, 0.0), dim=1, keepdim=True)
        total = total.masked_fill(none, -1e4)
        return logits, self.null(seen.summary)[:, :, None] + total


class Bilinear(nn.Module):
    """A learned similarity of low rank between query and neighbors, one a head.

    ``(W_q q)_h . (W_k n_j)_h / sqrt(rank)``, the keys at unit length; W_k starts at 0, so the term
    does too.

    Parameters
    ----------
    width : int
        Of the keys.
    num_heads, rank : int
    """

    def __init__(self, width: int, num_heads: int, rank: int) -> None:
        super().__init__()
        self.num_heads, self.rank = num_heads, rank
        self.query = nn.Linear(width, num_heads * rank, bias=False)
        self.key = nn.Linear(width, num_heads * rank, bias=False)
        nn.init.zeros_(self.key.weight)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Additional logits (B, K, H) from keys (B, D) and (B, K, D)."""
        shape = (self.num_heads, self.rank)
        projected = self.query(F.normalize(query, dim=1)).unflatten(1, shape)
        answers = self.key(F.normalize(keys, dim=2)).unflatten(2, shape)
        return torch.einsum("bhr,bkhr->bkh", projected, answers) / self.rank**0.5
