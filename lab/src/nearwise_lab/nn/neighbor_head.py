"""A head that is trained from scratch, as the study and few-shot classifier use it.

Its inputs from the neighbors (`Neighborhood`), the attention within one space
(`NeighborAttention`), and the head itself (`NeighborHead`). The library's head is
`nearwise.nn.PretrainedNeighborHead`.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.nn.pretrained_head import NEGLIGIBLE, HeadOutput, softmax_or_nothing

Pooling = Literal["log-linear", "mixture"]
Null = Literal["auto", "prior", "parametric"]

N_NEIGHBOR_FEATURES = 7
N_SUMMARY_FEATURES = 8
_LOG_CLIP = -6.0  # log-probabilities below this look alike to the head
_FLOOR = 1e-9
_CHUNK = 4096  # rows predicted at once
_LARGEST_NULL = 60.0  # logit of a null that leaves the neighbors nothing


class Neighborhood(NamedTuple):
    """Inputs of a head: the k nearest rows of each query, in one key space.

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
        the other known classes. Width 0 where labels are taken as they are.
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
    """Compute the head's inputs from distances, labels and the base's predictions.

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
        How sure each neighbor's label is; fully by default.

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


def _log_unit(log_proba: Tensor) -> Tensor:
    return log_proba.clamp_min(_LOG_CLIP) / 3 + 1


class Logits(NamedTuple):
    """Attention logits over the neighbors of one key space.

    Attributes
    ----------
    neighbors : Tensor of shape (B, K, H)
        -inf leaves a neighbor out.
    null : Tensor of shape (B, 1)
        Relative to the neighbors' logsumexp, in every head.
    """

    neighbors: Tensor
    null: Tensor


class NeighborAttention(nn.Module):
    """Attention logits of neighbors and of the null neighbor, for one key space.

    The logit of neighbor j in head h is ``-s_h d_j + f_h(features_j) + log w_j``; the null's is
    learned from the neighborhood's summary, relative to the neighbors' total, so that the null
    starts with the same share everywhere. ``f`` starts at zero and the null small, so the head
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

    def forward(self, space: Neighborhood) -> Logits:
        """Logits of the neighbors, and of the null relative to their total."""
        return Logits(self._scores(space) + space.log_weight[:, :, None], self.null(space.summary))

    def _scores(self, space: Neighborhood) -> Tensor:
        """Logits of the neighbors before their sample weights, (B, K, H)."""
        features: Tensor = self.score(F.gelu(self.features(space.features)))
        return features - space.distances[:, :, None] * self.log_scale.exp()


class NeighborHead(nn.Module):
    """Attention over the neighbors of one or more key spaces, pooled with a base prediction.

    "log-linear": each space weighs its own neighbors beside a null that carries the class prior,
    and ``log p = a log p_base + sum_s b_s log p_s + const`` with learned positive gates.
    "mixture": one softmax over the neighbors of all spaces and a null that carries the base.
    New classes, which the base lacks, take the mass of the neighbors that carry them.

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
    null : {"auto", "prior", "parametric"} or None, default="auto"
        What the null neighbor carries: the class prior or the base's prediction. "auto" takes the
        prior in "log-linear", where the base has a gate of its own, and the base in "mixture".
        None switches the null off.

    Raises
    ------
    ValueError
        If the null is to carry a base and there is none.
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
        null: Null | None = "auto",
    ) -> None:
        super().__init__()
        if null == "parametric" and not has_base:
            raise ValueError(
                'null="parametric" carries the prediction of a base, and there is none. Use '
                'null="prior", or give a base.'
            )
        self.register_buffer("prior", prior.to(torch.float32))
        self.has_base, self.pooling, self.null = has_base, pooling, null
        self.config: dict[str, Any] = {
            "n_spaces": n_spaces,
            "has_base": has_base,
            "pooling": pooling,
            "num_heads": num_heads,
            "hidden": hidden,
            "null": null,
        }
        self.attention = nn.ModuleList(
            NeighborAttention(num_heads, hidden) for _ in range(n_spaces)
        )
        self.smoothing = nn.Parameter(torch.tensor(-4.0))
        self.base_gate = nn.Parameter(torch.tensor(_inverse_softplus(1.0)))
        start = 0.2 if has_base else 1.0
        self.space_gate = nn.Parameter(torch.full((n_spaces,), _inverse_softplus(start / n_spaces)))

    @property
    def null_carries_base(self) -> bool:
        """Whether the mass that goes to no neighbor goes to the base's prediction."""
        if not self.has_base or self.null == "prior":
            return False
        return self.null == "parametric" or self.pooling == "mixture"

    @property
    def gates(self) -> tuple[float, list[float]]:
        """The positive gates of the base and of each space, as used by "log-linear"."""
        base = float(F.softplus(self.base_gate.detach())) if self.has_base else 0.0
        return base, F.softplus(self.space_gate).tolist()

    @property
    def pool_parameters(self) -> list[nn.Parameter]:
        """The few parameters that pool spaces and base, which learn at a rate of their own."""
        return [self.base_gate, self.space_gate]

    def forward(self, spaces: list[Neighborhood], base_log_proba: Tensor) -> HeadOutput:
        """Predict from the neighborhoods of each space and the base's (B, C) log-probabilities."""
        return self.pool(self.attend(spaces), spaces, base_log_proba)

    def attend(self, spaces: list[Neighborhood]) -> list[Logits]:
        """Attention logits in each space: the first half of `forward`."""
        return [attention(space) for attention, space in zip(self.attention, spaces, strict=True)]

    def pool(
        self, logits: list[Logits], spaces: list[Neighborhood], base_log_proba: Tensor
    ) -> HeadOutput:
        """Predict from attention logits: the second half of `forward`."""
        votes, empty, alpha = self._attended(logits, spaces)
        log_proba, alone = self._pooled(votes, empty, base_log_proba)
        weights = alpha.split([one.labels.shape[1] for one in spaces], dim=1)
        if self.pooling == "log-linear":
            gates = F.softplus(self.space_gate)
            shares = gates / gates.sum()
            weights = tuple(share * one for share, one in zip(shares, weights, strict=True))
            empty = empty * shares
        return HeadOutput(log_proba, alone, weights, empty.sum(1))

    @torch.no_grad()
    def predict(self, spaces: list[Neighborhood], base_log_proba: Tensor) -> HeadOutput:
        """Do what a call does, in chunks and without gradient."""
        rows = torch.arange(len(base_log_proba), device=base_log_proba.device)
        parts = [
            self([space.take(chunk) for space in spaces], base_log_proba[chunk])
            for chunk in rows.split(_CHUNK)
        ]
        return HeadOutput.joined(parts)

    @torch.no_grad()
    def predict_without(
        self,
        logits: list[Logits],
        spaces: list[Neighborhood],
        base_log_proba: Tensor,
        rows: Tensor,
        gone: Tensor,
        found: list[Tensor],
    ) -> Tensor:
        """Predict queries without one of their neighbors, from the logits of all.

        Parameters
        ----------
        logits, spaces, base_log_proba
            As in `pool`, of B queries.
        rows : int64 Tensor of shape (M,)
            The queries to predict; any of them any number of times.
        gone : int64 Tensor of shape (M,)
            Number of the row that is left out, wherever it is among the neighbors.
        found : list of int64 Tensor of shape (B, K)
            Numbers of the neighbors in each space.

        Returns
        -------
        log_proba : Tensor of shape (M, C)
            As in `HeadOutput`.
        """
        left = []
        for one, numbers in zip(logits, found, strict=True):
            is_gone = (numbers[rows] == gone[:, None])[:, :, None]
            left.append(Logits(one.neighbors[rows].masked_fill(is_gone, -math.inf), one.null[rows]))
        votes, empty, _ = self._attended(left, [space.take(rows) for space in spaces])
        return self._pooled(votes, empty, base_log_proba[rows])[0]

    def _pooled(
        self, votes: Tensor, empty: Tensor, base_log_proba: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities (B, C) of everything together, and of the neighbors alone."""
        n_known = len(self.prior)
        old, fresh = self._smooth(votes[:, :, :n_known]), votes[:, :, n_known:]
        both = neighbors = torch.log(_shares(old + empty[:, :, None] * self.prior))
        if self.null_carries_base:
            of_base = base_log_proba.exp()[:, None]
            both = torch.log(_shares(old + empty[:, :, None] * of_base))
        if self.pooling == "mixture":
            both, alone, fresh = both[:, 0], neighbors[:, 0], fresh[:, 0]
            return _with_new_classes(both, fresh), _with_new_classes(alone, fresh)
        gates = F.softplus(self.space_gate)[:, None]
        shares = gates / gates.sum()
        both, alone = (gates * both).sum(1), torch.log_softmax((shares * neighbors).sum(1), dim=1)
        if self.has_base:
            both = both + F.softplus(self.base_gate) * base_log_proba
        fresh = (shares * fresh).sum(1)
        both = torch.log_softmax(both, dim=1)
        return _with_new_classes(both, fresh), _with_new_classes(alone, fresh)

    def _attended(
        self, logits: list[Logits], spaces: list[Neighborhood]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Votes (B, G, C), the attention to the nulls (B, G) and to the neighbors (B, K).

        G is the number of nulls: one per space, or one for all in a mixture.
        """
        null = _joined([one.null for one in logits]).clamp_max(_LARGEST_NULL).exp()
        null = null * (self.null is not None)  # its mass over that of the neighbors of a space
        scores = _joined([one.neighbors for one in logits])
        labels = _joined([one.labels for one in spaces])
        certainty = _joined([one.certainty for one in spaces])
        n_groups = 1 if self.pooling == "mixture" else len(spaces)
        shape = (n_groups, max(len(self.prior), int(labels.max()) + 1))
        sizes = [one.labels.shape[1] for one in spaces]
        null = null * (n_groups / len(sizes))
        mass = torch.cat([null[:, [s]].expand(-1, k) for s, k in enumerate(sizes)], dim=1)
        sure = certainty if certainty.shape[1] else torch.ones_like(mass)
        widths = sizes if n_groups > 1 else [sum(sizes)]
        parts = (values.split(widths, dim=1) for values in (scores, mass, labels, sure))
        found = [self._attended_plainly(shape[1], *part) for part in zip(*parts, strict=True)]
        votes_of, empty_of, alpha_of = zip(*found, strict=True)
        return torch.stack(votes_of, 1), torch.stack(empty_of, 1), torch.cat(alpha_of, dim=1)

    def _attended_plainly(
        self, width: int, scores: Tensor, mass: Tensor, labels: Tensor, certainty: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Votes, the null's attention and the neighbors', of spaces that share a null."""
        shares = softmax_or_nothing(scores)
        beside = (shares * mass[:, :, None]).sum(1)
        alpha = (shares / (1 + beside[:, None])).mean(2)
        empty = (beside / (1 + beside)).mean(1) + (shares[:, :, 0].sum(1) == 0)
        return self._votes(alpha, labels, certainty, width), empty, alpha

    def _votes(self, weights: Tensor, labels: Tensor, certainty: Tensor, width: int) -> Tensor:
        """Sum the weights (B, K) of the neighbors by what they carry, (B, width)."""
        n_known = len(self.prior)
        doubt = weights * (1 - certainty) / max(n_known - 1, 1)
        votes = weights.new_zeros(len(weights), width)
        votes = votes.scatter_add_(1, labels, weights * certainty - doubt)
        return votes + F.pad(doubt.sum(1, keepdim=True).expand(-1, n_known), (0, width - n_known))

    def _smooth(self, votes: Tensor) -> Tensor:
        eps = torch.sigmoid(self.smoothing)
        return (1 - eps) * votes + eps * votes.mean(-1, keepdim=True)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Put parts (B, K, ...) side by side."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def _shares(mass: Tensor) -> Tensor:
    mass = mass.clamp_min(_FLOOR)
    return mass / mass.sum(-1, keepdim=True)


def _with_new_classes(log_proba: Tensor, fresh: Tensor) -> Tensor:
    """Give new classes the mass of their neighbors; the known ones share the rest."""
    if not fresh.shape[1]:
        return log_proba
    fresh = fresh.clamp(0, 1 - 1e-6)
    rest = torch.log1p(-fresh.sum(1, keepdim=True).clamp_max(1 - 1e-6))
    # As little as a class gets that no neighbor in the whole batch carries: a
    # row's prediction does not depend on the rows that are predicted with it.
    return torch.cat([log_proba + rest, torch.log(fresh.clamp_min(math.exp(NEGLIGIBLE)))], dim=1)


def _inverse_softplus(value: float) -> float:
    return math.log(math.expm1(value))
