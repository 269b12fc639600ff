"""Attention over the few labeled rows of an episode, beside their class means."""

import math

import torch
from torch import Tensor, nn

from nearwise.nn import HeadOutput
from nearwise_lab.nn.neighbor_head import NeighborHead, describe_neighborhood

_NEAREST = 64  # support rows that a query attends to at most


class EpisodeAttention(nn.Module):
    """A `NeighborHead` over an episode's support rows, whose base is the nearest class mean.

    Nothing in it belongs to a class, so what was learned on some classes serves others, and other
    numbers of classes and shots. It starts as prototypes beside distance weighting.

    Parameters
    ----------
    n_features : int
    learn_metric : bool, default=True
        Whether the rows go through a linear map, which starts as the identity.
    num_heads : int, default=4
    """

    def __init__(self, n_features: int, *, learn_metric: bool = True, num_heads: int = 4) -> None:
        super().__init__()
        self.config = {
            "n_features": n_features,
            "learn_metric": learn_metric,
            "num_heads": num_heads,
        }
        self.metric = nn.Linear(n_features, n_features, bias=False) if learn_metric else None
        if self.metric is not None:
            nn.init.eye_(self.metric.weight)
        self.head = NeighborHead(1, torch.tensor([0.5, 0.5]), has_base=True, num_heads=num_heads)
        self.log_scale = nn.Parameter(torch.tensor(math.log(8.0)))

    def forward(self, query: Tensor, support: Tensor, labels: Tensor) -> HeadOutput:
        """Log-probabilities of an episode's classes.

        Parameters
        ----------
        query : Tensor of shape (B, D)
        support : Tensor of shape (S, D)
        labels : int64 Tensor of shape (S,)
            0 to n_way - 1; every class at least once.
        """
        if self.metric is not None:
            query, support = self.metric(query), self.metric(support)
        n_way = int(labels.max()) + 1
        unit, reliability = _support_facts(support, labels)
        base = self.prototypes(query, support, labels, unit)
        distances = torch.cdist(query, support, compute_mode="donot_use_mm_for_euclid_dist") / unit
        nearest = distances.topk(min(_NEAREST, len(support)), dim=1, largest=False, sorted=True)
        seen = describe_neighborhood(
            nearest.values, labels[nearest.indices], reliability[nearest.indices], base
        )
        self.head.prior = torch.full((n_way,), 1.0 / n_way, device=query.device)
        output: HeadOutput = self.head([seen], base)
        return output

    def prototypes(self, query: Tensor, support: Tensor, labels: Tensor, unit: Tensor) -> Tensor:
        """Log-probabilities (B, n_way) by the distance to class means alone."""
        n_way = int(labels.max()) + 1
        counts = torch.bincount(labels, minlength=n_way)
        sums = support.new_zeros(n_way, support.shape[1]).index_add_(0, labels, support)
        means = sums / counts[:, None]
        squared = (query[:, None] - means[None]).square().sum(2) / unit.square()
        return torch.log_softmax(-self.log_scale.exp() * squared, dim=1)


def _support_facts(support: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean distance of two support rows, and every row's reliability among the others.

    Reliability is the share of a row's nearest rows that carry its label, as many as its class
    has others; 0.5 where it has none.
    """
    apart = torch.cdist(support, support, compute_mode="donot_use_mm_for_euclid_dist")
    n = len(support)
    unit = (apart.sum() / max(n * (n - 1), 1)).clamp_min(1e-6)
    others = torch.bincount(labels)[labels] - 1
    order = (apart.detach() + torch.diag(torch.full((n,), math.inf))).argsort(dim=1)
    same = (labels[order] == labels[:, None]).float().cumsum(1)
    share = same.gather(1, (others - 1).clamp_min(0)[:, None])[:, 0] / others.clamp_min(1)
    return unit, torch.where(others > 0, share, torch.tensor(0.5))
