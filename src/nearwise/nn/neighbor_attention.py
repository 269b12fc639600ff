"""Neighbor attention with a null neighbor: weights from what a query sees of its neighborhood."""

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.functional import entropy_adaptive_k, nearest_mask

Pooling = Literal["log-linear", "mixture"]
AdaptiveK = Literal["entropy"]

N_NEIGHBOR_FEATURES = 7
N_SUMMARY_FEATURES = 8
_FLOOR = 1e-9
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


def describe_neighborhood(
    distances: Tensor,
    labels: Tensor,
    reliability: Tensor,
    base_log_proba: Tensor,
    neighbor_log_proba: Tensor | None = None,
    log_weight: Tensor | None = None,
    certainty: Tensor | None = None,
) -> Neighborhood:
    """Compute what the head sees from distances, labels and the base's opinions.

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
    start = _softmax_or_nothing(-distances + log_weight)
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


def _softmax_or_nothing(scores: Tensor) -> Tensor:
    """Softmax over dim 1; zeros where every score is -inf, with gradients that stay finite."""
    none = torch.isneginf(scores).all(dim=1, keepdim=True)
    shares = torch.softmax(scores.masked_fill(none, 0.0), dim=1)
    return shares.masked_fill(none, 0.0)


def _log_unit(log_proba: Tensor) -> Tensor:
    return log_proba.clamp_min(_LOG_CLIP) / 3 + 1


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
        logits = (
            self.score(F.gelu(self.features(seen.features)))
            - seen.distances[:, :, None] * self.log_scale.exp()
        )
        logits = logits + seen.log_weight[:, :, None]
        # Relative to the neighbors' total, so that the null starts with the same share everywhere.
        none = torch.isneginf(logits).all(dim=1, keepdim=True)
        total = torch.logsumexp(logits.masked_fill(none, 0.0), dim=1, keepdim=True)
        total = total.masked_fill(none, -1e4)
        return logits, self.null(seen.summary)[:, :, None] + total


class HeadOutput(NamedTuple):
    """Prediction of a head and what lies behind it.

    Attributes
    ----------
    log_proba : Tensor of shape (B, C)
        Neighbors and base together.
    neighbor_log_proba : Tensor of shape (B, C)
        Neighbors alone, the null carrying the class prior.
    weights : tuple of Tensor of shape (B, K)
        For each space the neighbors' shares of the attention; with `null_mass` they sum to 1.
    null_mass : Tensor of shape (B,)
        Share of the null, in [0, 1].
    """

    log_proba: Tensor
    neighbor_log_proba: Tensor
    weights: tuple[Tensor, ...]
    null_mass: Tensor


class NeighborHead(nn.Module):
    """Attention over the neighbors of one or more key spaces, pooled with a base prediction.

    "log-linear": each space weighs its own neighbors beside a null that carries the class prior,
    and ``log p = a log p_base + sum_s b_s log p_s + const`` with learned positive gates.
    "mixture": one softmax over the neighbors of all spaces and a null that carries the base.
    New classes, which the base does not know, take the mass of the neighbors that carry them.

    Parameters
    ----------
    n_spaces : int
        Key spaces, at least 1.
    prior : Tensor of shape (C,)
        Class shares; positive, sums to 1.
    has_base : bool
        Whether a base prediction takes part; without, the prior stands in for it.
    pooling : {"log-linear", "mixture"}
    num_heads, hidden : int
        Of each space's `NeighborAttention`.
    null : bool, default=True
        False switches the null neighbor off.
    k_ensemble : tuple of int, optional
        Average the weights of these neighborhood sizes.
    adaptive_k : {"entropy"}, optional
        Choose each query's neighborhood size by the entropy of its weights.
    """

    prior: Tensor

    def __init__(
        self,
        n_spaces: int,
        prior: Tensor,
        *,
        has_base: bool,
        pooling: Pooling = "log-linear",
        num_heads: int = 4,
        hidden: int = 16,
        null: bool = True,
        k_ensemble: tuple[int, ...] | None = None,
        adaptive_k: AdaptiveK | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("prior", prior.to(torch.float32))
        self.has_base, self.pooling, self.null = has_base, pooling, null
        self.k_ensemble, self.adaptive_k = k_ensemble, adaptive_k
        self.config = {
            "n_spaces": n_spaces,
            "has_base": has_base,
            "pooling": pooling,
            "num_heads": num_heads,
            "hidden": hidden,
            "null": null,
            "k_ensemble": k_ensemble,
            "adaptive_k": adaptive_k,
        }
        self.attention = nn.ModuleList(
            NeighborAttention(num_heads, hidden) for _ in range(n_spaces)
        )
        self.smoothing = nn.Parameter(torch.tensor(-4.0))
        self.base_gate = nn.Parameter(torch.tensor(_inverse_softplus(1.0)))
        start = 0.2 if has_base else 1.0
        self.space_gate = nn.Parameter(torch.full((n_spaces,), _inverse_softplus(start / n_spaces)))

    @property
    def gates(self) -> tuple[float, list[float]]:
        """The positive gates of the base and of each space, as used by "log-linear"."""
        base = float(F.softplus(self.base_gate.detach())) if self.has_base else 0.0
        return base, F.softplus(self.space_gate).tolist()

    def forward(self, spaces: list[Neighborhood], base_log_proba: Tensor) -> HeadOutput:
        """Predict from the neighborhoods of each space and the base's (B, C) log-probabilities."""
        if self.pooling == "mixture":
            return self._mixture(spaces, base_log_proba)
        return self._log_linear(spaces, base_log_proba)

    def _log_linear(self, spaces: list[Neighborhood], base_log_proba: Tensor) -> HeadOutput:
        gates = F.softplus(self.space_gate)
        shares = gates / gates.sum()
        width, n_known = self._width(spaces), len(self.prior)
        votes, weights, nulls, opinions = [], [], [], []
        for share, attention, seen in zip(shares, self.attention, spaces, strict=True):
            (alpha,), empty = self._weights([attention(seen)])
            vote = self._votes(alpha, seen, width)
            old = self._smooth(vote[:, :n_known]) + empty[:, None] * self.prior
            opinions.append(torch.log(_shares(old)))
            votes.append(share * vote)
            weights.append(share * alpha)
            nulls.append(share * empty)
        neighbors = (shares[:, None, None] * torch.stack(opinions)).sum(0)
        both = gates.sum() * neighbors
        if self.has_base:
            both = both + F.softplus(self.base_gate) * base_log_proba
        fresh = torch.stack(votes).sum(0)[:, n_known:]
        return HeadOutput(
            _with_new_classes(torch.log_softmax(both, dim=1), fresh),
            _with_new_classes(torch.log_softmax(neighbors, dim=1), fresh),
            tuple(weights),
            torch.stack(nulls).sum(0),
        )

    def _mixture(self, spaces: list[Neighborhood], base_log_proba: Tensor) -> HeadOutput:
        logits = [attention(seen) for attention, seen in zip(self.attention, spaces, strict=True)]
        weights, empty = self._weights(logits)
        width, n_known = self._width(spaces), len(self.prior)
        each = [
            self._votes(alpha, seen, width) for alpha, seen in zip(weights, spaces, strict=True)
        ]
        votes = torch.stack(each).sum(0)
        fresh = votes[:, n_known:]
        old = self._smooth(votes[:, :n_known])
        carried = base_log_proba.exp() if self.has_base else self.prior
        both = torch.log(_shares(old + empty[:, None] * carried))
        alone = torch.log(_shares(old + empty[:, None] * self.prior))
        return HeadOutput(
            _with_new_classes(both, fresh), _with_new_classes(alone, fresh), tuple(weights), empty
        )

    def _weights(self, logits: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], Tensor]:
        """Weights of the neighbors of each list (B, K) and of the null (B,); they sum to 1."""
        sizes = [neighbors.shape[1] for neighbors, _ in logits]
        scores = torch.cat([neighbors for neighbors, _ in logits], dim=1)
        null = torch.logsumexp(torch.stack([null for _, null in logits]), dim=0)
        null = null - math.log(len(logits))
        if not self.null:
            null = torch.full_like(null, -math.inf)
        ranks = torch.cat([torch.arange(size, device=scores.device) for size in sizes])
        if self.k_ensemble:
            parts = [
                self._softmax(scores, null, (ranks < k).expand(scores.shape[:2]))
                for k in self.k_ensemble
            ]
            alpha = torch.stack(parts).mean(0)
        else:
            alpha = self._softmax(scores, null, None)
        if self.adaptive_k == "entropy":
            keep = [_nearest_by_entropy(part) for part in alpha[:, :-1].split(sizes, dim=1)]
            alpha = self._softmax(scores, null, torch.cat(keep, dim=1))
        # Where neither neighbors nor a null can be asked, the prior or the base has to answer; a
        # size that finds nobody leaves it to the others.
        total = alpha.sum(dim=1, keepdim=True)
        alpha = alpha / torch.where(total > 0, total, 1.0)
        nobody = (total[:, 0] == 0).to(alpha)
        return list(alpha[:, :-1].split(sizes, dim=1)), alpha[:, -1] + nobody

    @staticmethod
    def _softmax(scores: Tensor, null: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            scores = scores.masked_fill(~keep[:, :, None], -math.inf)
        return _softmax_or_nothing(torch.cat([scores, null], dim=1)).mean(dim=2)

    def _width(self, spaces: list[Neighborhood]) -> int:
        return max(len(self.prior), *(int(seen.labels.max()) + 1 for seen in spaces))

    def _votes(self, weights: Tensor, seen: Neighborhood, width: int) -> Tensor:
        votes = weights.new_zeros(len(weights), width)
        if not seen.certainty.shape[1]:
            return votes.scatter_add_(1, seen.labels, weights)
        n_known = len(self.prior)
        doubt = weights * (1 - seen.certainty) / max(n_known - 1, 1)
        votes = votes.scatter_add_(1, seen.labels, weights * seen.certainty - doubt)
        return votes + F.pad(doubt.sum(1, keepdim=True).expand(-1, n_known), (0, width - n_known))

    def _smooth(self, votes: Tensor) -> Tensor:
        eps = torch.sigmoid(self.smoothing)
        return (1 - eps) * votes + eps * votes.sum(1, keepdim=True) / votes.shape[1]


def _nearest_by_entropy(weights: Tensor) -> Tensor:
    """Keep as many of the nearest (B, K) as the entropy of their weights asks for."""
    total = weights.detach().sum(1, keepdim=True)
    even = torch.full_like(weights, 1 / weights.shape[1])
    share = torch.where(total > _FLOOR, weights.detach() / total.clamp_min(_FLOOR), even)
    return nearest_mask(entropy_adaptive_k(share), weights.shape[1])


def _shares(mass: Tensor) -> Tensor:
    mass = mass.clamp_min(_FLOOR)
    return mass / mass.sum(1, keepdim=True)


def _with_new_classes(log_proba: Tensor, fresh: Tensor) -> Tensor:
    """Give new classes the mass of their neighbors; the known ones share the rest."""
    if not fresh.shape[1]:
        return log_proba
    fresh = fresh.clamp(0, 1 - 1e-6)
    rest = torch.log1p(-fresh.sum(1, keepdim=True).clamp_max(1 - 1e-6))
    return torch.cat([log_proba + rest, torch.log(fresh.clamp_min(_FLOOR))], dim=1)


def _inverse_softplus(value: float) -> float:
    return math.log(math.expm1(value))
