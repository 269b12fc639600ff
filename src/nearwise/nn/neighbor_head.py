"""The head: attention over the neighbors of several key spaces, pooled with a base prediction."""

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.nn.neighbor_attention import NeighborAttention
from nearwise.nn.neighborhood import Neighborhood, softmax_or_nothing

Pooling = Literal["log-linear", "mixture"]
Null = Literal["auto", "prior", "parametric"]

_FLOOR = 1e-9
NEGLIGIBLE = -20.0  # log-probability of a class that nothing speaks for


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
    null : {"auto", "prior", "parametric"} or None, default="auto"
        What the null neighbor carries: the class prior or the base's prediction. "auto" takes the
        prior in "log-linear", where the base has a gate of its own, and the base in "mixture".
        None switches the null off.
    temperature : bool, default=False
        Learn a temperature of the pooled prediction together with the rest.

    Raises
    ------
    ValueError
        If the null shall carry a base that is not there.
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
        temperature: bool = False,
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
            "temperature": temperature,
        }
        self.attention = nn.ModuleList(
            NeighborAttention(num_heads, hidden) for _ in range(n_spaces)
        )
        self.smoothing = nn.Parameter(torch.tensor(-4.0))
        self.base_gate = nn.Parameter(torch.tensor(_inverse_softplus(1.0)))
        start = 0.2 if has_base else 1.0
        self.space_gate = nn.Parameter(torch.full((n_spaces,), _inverse_softplus(start / n_spaces)))
        self.log_temperature: nn.Parameter | None = None
        if temperature:
            self.log_temperature = nn.Parameter(torch.zeros(()))

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
        learned = (self.base_gate, self.space_gate, self.log_temperature)
        return [parameter for parameter in learned if parameter is not None]

    def forward(self, spaces: list[Neighborhood], base_log_proba: Tensor) -> HeadOutput:
        """Predict from the neighborhoods of each space and the base's (B, C) log-probabilities."""
        if self.pooling == "mixture":
            return self._mixture(spaces, base_log_proba)
        return self._log_linear(spaces, base_log_proba)

    def _log_linear(self, spaces: list[Neighborhood], base_log_proba: Tensor) -> HeadOutput:
        gates = F.softplus(self.space_gate)
        shares = gates / gates.sum()
        width, n_known = self._width(spaces), len(self.prior)
        votes, weights, nulls, by_space, helped = [], [], [], [], []
        for share, attention, seen in zip(shares, self.attention, spaces, strict=True):
            (alpha,), empty = self._weights([attention(seen)])
            vote = self._votes(alpha, seen, width)
            old = self._smooth(vote[:, :n_known])
            by_space.append(torch.log(_shares(old + empty[:, None] * self.prior)))
            if self.null_carries_base:
                helped.append(torch.log(_shares(old + empty[:, None] * base_log_proba.exp())))
            votes.append(share * vote)
            weights.append(share * alpha)
            nulls.append(share * empty)
        neighbors = (shares[:, None, None] * torch.stack(by_space)).sum(0)
        pooled = (shares[:, None, None] * torch.stack(helped)).sum(0) if helped else neighbors
        both = gates.sum() * pooled
        if self.has_base:
            both = both + F.softplus(self.base_gate) * base_log_proba
        fresh = torch.stack(votes).sum(0)[:, n_known:]
        return HeadOutput(
            _with_new_classes(self._finished(both), fresh),
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
        carried = base_log_proba.exp() if self.null_carries_base else self.prior
        both = torch.log(_shares(old + empty[:, None] * carried))
        if self.log_temperature is not None:
            both = self._finished(both)
        alone = torch.log(_shares(old + empty[:, None] * self.prior))
        return HeadOutput(
            _with_new_classes(both, fresh), _with_new_classes(alone, fresh), tuple(weights), empty
        )

    def _finished(self, scores: Tensor) -> Tensor:
        """Log-probabilities at the learned temperature, where there is one."""
        if self.log_temperature is not None:
            scores = scores * torch.exp(-self.log_temperature)
        return torch.log_softmax(scores, dim=1)

    def _weights(self, logits: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], Tensor]:
        """Weights of the neighbors of each list (B, K) and of the null (B,); they sum to 1."""
        sizes = [neighbors.shape[1] for neighbors, _ in logits]
        scores = torch.cat([neighbors for neighbors, _ in logits], dim=1)
        null = torch.logsumexp(torch.stack([null for _, null in logits]), dim=0)
        null = null - math.log(len(logits))
        if self.null is None:
            null = torch.full_like(null, -math.inf)
        alpha = self._alpha(scores, null, sizes)
        # Where neither neighbors nor a null can be asked, the prior or the base has to answer.
        total = alpha.sum(dim=1, keepdim=True)
        alpha = alpha / torch.where(total > 0, total, 1.0)
        nobody = (total[:, 0] == 0).to(alpha)
        return list(alpha[:, :-1].split(sizes, dim=1)), alpha[:, -1] + nobody

    def _alpha(self, scores: Tensor, null: Tensor, sizes: list[int]) -> Tensor:
        """Attention to the neighbors of all lists, `sizes` long, and to the null, (B, K + 1)."""
        return softmax_or_nothing(torch.cat([scores, null], dim=1)).mean(dim=2)

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


def _shares(mass: Tensor) -> Tensor:
    mass = mass.clamp_min(_FLOOR)
    return mass / mass.sum(1, keepdim=True)


def widen(log_proba: Tensor, n_classes: int) -> Tensor:
    """Add classes that no neighbor carries to (B, C), at a negligible share."""
    missing = n_classes - log_proba.shape[1]
    return F.pad(log_proba, (0, missing), value=NEGLIGIBLE) if missing else log_proba


def _with_new_classes(log_proba: Tensor, fresh: Tensor) -> Tensor:
    """Give new classes the mass of their neighbors; the known ones share the rest."""
    if not fresh.shape[1]:
        return log_proba
    fresh = fresh.clamp(0, 1 - 1e-6)
    rest = torch.log1p(-fresh.sum(1, keepdim=True).clamp_max(1 - 1e-6))
    # As little as a class gets that no neighbor in the whole batch carries: a
    # row's prediction does not depend on the rows that are asked with it.
    return torch.cat([log_proba + rest, torch.log(fresh.clamp_min(math.exp(NEGLIGIBLE)))], dim=1)


def _inverse_softplus(value: float) -> float:
    return math.log(math.expm1(value))
