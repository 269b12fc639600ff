"""Neighbor attention: logits of a query's neighbors, and of the null neighbor beside them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    """

    def __init__(self, num_heads: int = 4, hidden: int = 16) -> None:
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

    def forward(self, seen: Neighborhood) -> tuple[Tensor, Tensor]:
        """Logits of the neighbors (B, K, H) and of the null (B, 1, H)."""
        logits = self._scores(seen) + seen.log_weight[:, :, None]
        # Relative to the neighbors' total, so that the null starts with the same share everywhere.
        none = torch.isneginf(logits).all(dim=1, keepdim=True)
        total = torch.logsumexp(logits.masked_fill(none, 0.0), dim=1, keepdim=True)
        total = total.masked_fill(none, -1e4)
        return logits, self.null(seen.summary)[:, :, None] + total

    def _scores(self, seen: Neighborhood) -> Tensor:
        """Logits of the neighbors before their sample weights, (B, K, H)."""
        features: Tensor = self.score(F.gelu(self.features(seen.features)))
        return features - seen.distances[:, :, None] * self.log_scale.exp()
