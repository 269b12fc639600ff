"""What a head sees of a query's neighbors: distances, labels, features and a summary."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

N_NEIGHBOR_FEATURES = 7
N_SUMMARY_FEATURES = 8
_LOG_CLIP = -6.0  # log-probabilities below this look alike to the head


class Neighborhood(NamedTuple):
    """What a head sees of the k nearest rows of each query, in one key space.

    Attributes
    ----------
    distances : Tensor of shape (B, K)
        In units of the space's typical neighbor distance; ascending.
    labels : int64 Tensor of shape (B, K)
    features : Tensor of shape (B, K, 7)
        Gap to the nearest, gap to the mean, log rank, agreement, the base's log-probability of
        the neighbor's label for the query, the neighbor's own, reliability; each about [-1, 1].
    summary : Tensor of shape (B, 8)
        Nearest and mean distance, spread, vote entropy, top vote, mean reliability, and the
        base's confidence and entropy.
    log_weight : Tensor of shape (B, K)
        Logarithm of the neighbors' sample weights; -inf leaves a neighbor out.
    certainty : Tensor of shape (B, K) or (B, 0)
        How sure each neighbor's label is, in [0, 1]; the rest of its vote is spread evenly over
        the other known classes. Of no width where labels are taken as they are.
    """

    distances: Tensor
    labels: Tensor
    features: Tensor
    summary: Tensor
    log_weight: Tensor
    certainty: Tensor

    def take(self, rows: Tensor) -> "Neighborhood":
        """Return the neighborhoods of some queries."""
        return Neighborhood(*(tensor[rows] for tensor in self))

    def nearest(self, k: int) -> "Neighborhood":
        """Return the neighborhoods of the nearest `k` only; the summary stays that of all."""
        return Neighborhood(
            self.distances[:, :k],
            self.labels[:, :k],
            self.features[:, :k],
            self.summary,
            self.log_weight[:, :k],
            self.certainty[:, :k],
        )


def describe_neighborhood(
    distances: Tensor,
    labels: Tensor,
    reliability: Tensor,
    base_log_proba: Tensor,
    neighbor_log_proba: Tensor | None = None,
    log_weight: Tensor | None = None,
    certainty: Tensor | None = None,
) -> Neighborhood:
    """Compute what the head sees from distances, labels and the base's predictions.

    Nothing here may depend on the query's own label: leave the query out of `reliability` and of
    the neighbors by id.

    Parameters
    ----------
    distances : Tensor of shape (B, K)
        Ascending, divided by the space's typical neighbor distance.
    labels : int64 Tensor of shape (B, K)
        Class positions of the neighbors; those beyond the base's classes are new to it.
    reliability : Tensor of shape (B, K)
        Share of each neighbor's own neighbors that carry its label, in [0, 1].
    base_log_proba : Tensor of shape (B, C)
        The base's (or the prior's) log-probabilities for the query.
    neighbor_log_proba : Tensor of shape (B, K), optional
        The base's out-of-fold log-probability of each neighbor's own label.
    log_weight : Tensor of shape (B, K), optional
        Logarithm of sample weights; zeros by default.
    certainty : Tensor of shape (B, K), optional
        How sure each neighbor's label is; wholly by default.

    Returns
    -------
    neighborhood : Neighborhood
    """
    n_queries, k = distances.shape
    n_classes = base_log_proba.shape[1]
    log_weight = torch.zeros_like(distances) if log_weight is None else log_weight
    start = softmax_or_nothing(-distances + log_weight)
    n_voted = max(n_classes, int(labels.max()) + 1) if labels.numel() else n_classes
    vote = start.new_zeros(n_queries, n_voted).scatter_add_(1, labels, start)
    known = F.pad(base_log_proba, (0, n_voted - n_classes), value=-math.log(n_classes))
    ranks = torch.log(torch.arange(1, k + 1, dtype=distances.dtype, device=distances.device)) / 3
    own = (
        torch.zeros_like(distances) if neighbor_log_proba is None else _log_unit(neighbor_log_proba)
    )
    mean = distances.mean(1, keepdim=True)
    features = torch.stack(
        [
            distances - distances[:, :1],
            distances - mean,
            ranks.expand(n_queries, k),
            2 * vote.gather(1, labels) - 1,
            _log_unit(known.gather(1, labels)),
            own,
            2 * reliability - 1,
        ],
        dim=2,
    )
    proba = base_log_proba.exp()
    summary = torch.stack(
        [
            distances[:, 0] - 1,
            mean[:, 0] - 1,
            distances.std(1, unbiased=False),
            torch.special.entr(vote).sum(1),
            2 * vote.amax(1) - 1,
            2 * reliability.mean(1) - 1,
            2 * proba.amax(1) - 1,
            torch.special.entr(proba).sum(1),
        ],
        dim=1,
    )
    sure = distances.new_zeros(n_queries, 0) if certainty is None else certainty
    return Neighborhood(distances, labels, features, summary, log_weight, sure)


def pair_reliability(neighbors: Tensor, own: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """Reliability of neighbor j for query i, with i left out of j's own neighbors by position.

    The query's label must not reach its own prediction through its neighbors' reliability, so
    where i is among j's nearest m, the next one takes its place; where there is no next one, the
    reliability is unknown, 0.5.

    Parameters
    ----------
    neighbors : int64 Tensor of shape (B, K)
        Positions of each query's neighbors.
    own : int64 Tensor of shape (n, m + 1)
        Positions of each remembered row's own neighbors, itself left out; -1 where it has none.
    labels : int64 Tensor of shape (n,)
    query : int64 Tensor of shape (B,)
        Positions of the queries among the remembered rows.

    Returns
    -------
    reliability : Tensor of shape (B, K), in [0, 1].
    """
    m = max(own.shape[1] - 1, 1)
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


def softmax_or_nothing(scores: Tensor) -> Tensor:
    """Softmax over dim 1; zeros where every score is -inf, with gradients that stay finite."""
    none = torch.isneginf(scores).all(dim=1, keepdim=True)
    shares = torch.softmax(scores.masked_fill(none, 0.0), dim=1)
    return shares.masked_fill(none, 0.0)


def _log_unit(log_proba: Tensor) -> Tensor:
    return log_proba.clamp_min(_LOG_CLIP) / 3 + 1
