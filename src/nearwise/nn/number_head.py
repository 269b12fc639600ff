"""Pretrained regression head: trained on many tables, applied to new tables without training."""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.nn.neighbor_trunk import Described, NeighborTrunk, Read, softmax_or_nothing
from nearwise.nn.number_set import HAS_BASE, N_SUMMARY, NumberSet

N_FEATURES, N_OF_NEIGHBORS = 14, 7
_CHUNK = 1024  # rows predicted at once
_LEAST_BANDWIDTH = 0.01  # in units
_SOFT = 0.05  # added to numbers in units before logarithms


class NumberOutput(NamedTuple):
    """Predicted mixture of a head for B queries, in units around the location.

    Attributes
    ----------
    atoms : Tensor of shape (B, N)
        Centers of the components: one per neighbor and space, then those of the null.
    of_neighbors : tuple of Tensor of shape (B, K)
        Attention weights of the neighbors per space; they sum to 1 with `null_mass`.
    bandwidth : Tensor of shape (B,)
        Scale of the logistic distribution around every center, positive.
    null_mass : Tensor of shape (B,)
        Share of the null, in [0, 1].
    """

    atoms: Tensor
    of_neighbors: tuple[Tensor, ...]
    bandwidth: Tensor
    null_mass: Tensor

    @property
    def weights(self) -> Tensor:
        """Weights of the components, (B, N); each row sums to 1."""
        near = torch.cat(self.of_neighbors, dim=1)
        n_null = self.atoms.shape[1] - near.shape[1]
        of_null = (self.null_mass / n_null)[:, None].expand(-1, n_null)
        return torch.cat([near, of_null], dim=1)

    @classmethod
    def joined(cls, parts: "list[NumberOutput]") -> "NumberOutput":
        """Concatenate the predictions of chunks of queries."""
        return cls(
            torch.cat([part.atoms for part in parts]),
            tuple(map(torch.cat, zip(*(part.of_neighbors for part in parts), strict=True))),
            torch.cat([part.bandwidth for part in parts]),
            torch.cat([part.null_mass for part in parts]),
        )

    def log_density(self, y: Tensor) -> Tensor:
        """Logarithm of the density at `y` (B,), in units."""
        z = (y[:, None] - self.atoms) / self.bandwidth[:, None]
        parts = F.logsigmoid(z) + F.logsigmoid(-z) + torch.log(self.weights + 1e-12)
        return torch.logsumexp(parts, dim=1) - torch.log(self.bandwidth)

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score at `y` (B,), in units; see `logistic_crps`."""
        return logistic_crps(self.atoms, self.weights, self.bandwidth, y)


def logistic_crps(atoms: Tensor, weights: Tensor, bandwidth: Tensor, y: Tensor) -> Tensor:
    """Continuous ranked probability score of mixtures of logistic distributions.

    ``E|X - y| - E|X - X'| / 2`` in closed form: with a common scale s and a distance d,
    ``E|X - y| = d + 2 s log(1 + exp(-d / s))`` and ``E|X - X'| = d coth(d / 2 s)``.

    Parameters
    ----------
    atoms, weights : Tensor of shape (B, N)
        Centers, and weights that sum to 1.
    bandwidth, y : Tensor of shape (B,)
        Common scale of the components, and observed targets.

    Returns
    -------
    score : Tensor of shape (B,)
        In the unit of `y`; 0 is the best.

    References
    ----------
    Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", 2007,
    sec. 4.2.
    """
    scale = bandwidth[:, None]
    away = ((atoms - y[:, None]) / scale).abs()
    first = (weights * (away + 2 * F.softplus(-away))).sum(1)
    apart = ((atoms[:, :, None] - atoms[:, None]) / scale[:, :, None]).abs().clamp_min(1e-3)
    pairs = apart / torch.tanh(apart / 2)
    second = torch.einsum("bi,bij,bj->b", weights, pairs, weights)
    return bandwidth * (first - second / 2)


class PretrainedNumberHead(NeighborTrunk):
    """Pretrained attention over the neighbors of a row, for numeric targets of any table.

    Each neighbor carries its residual: its target minus the base's out-of-sample prediction. A
    null neighbor carries the quantiles of all residuals. The prediction is a mixture of logistic
    distributions around them; scales, shift and bandwidth depend on the query.
    Parameters are as in `NeighborTrunk`.
    """

    n_features, n_of_query = N_FEATURES, N_OF_NEIGHBORS + N_SUMMARY
    starts_per_space = (-2.0, 0.0, 0.0, 0.0, -3.0)
    starts_per_query = (-1.5, 0.0, 0.0)
    file, version = "number_head.safetensors", "1"

    def forward(self, spaces: list[NumberSet]) -> NumberOutput:
        """Predict from the neighbors in each space."""
        return self.pool(self.attend(spaces), spaces)

    def attend(self, spaces: list[NumberSet]) -> Read:
        """Compute scores of the neighbors and mixture parameters: the first half of `forward`."""
        log_weight = torch.cat([one.log_weight for one in spaces], dim=1)
        seen = [_describe(one) for one in spaces]
        nothing = torch.zeros_like(log_weight, dtype=torch.int64)
        return self.read(seen, nothing, log_weight, log_weight.new_zeros(len(log_weight), 1))

    def pool(self, read: Read, spaces: list[NumberSet]) -> NumberOutput:
        """Predict from the result of `attend`: the second half of `forward`."""
        null, share, scale, mean_share, gate = read.of_spaces.unbind(1)
        null, gate = torch.sigmoid(null), torch.sigmoid(gate)
        scale, mean_share = scale.clamp(-3, 3).exp(), 2 * torch.sigmoid(mean_share)
        share = torch.softmax(share, dim=1)
        bandwidth, null_scale, null_shift = read.of_query.unbind(1)
        atoms, weights, null_mass = [], [], torch.zeros_like(bandwidth)
        for at, (one, scores) in enumerate(zip(spaces, read.scores, strict=True)):
            alpha = softmax_or_nothing(scores)
            of_null = torch.where(alpha.sum(1) == 0, 1.0, null[:, at])
            carried = one.residuals + gate[:, at, None] * one.gaps
            mean = (alpha * carried).sum(1, keepdim=True)
            spread = scale[:, at, None] * (carried - mean)
            atoms.append(mean_share[:, at, None] * mean + spread)
            weights.append(alpha * (share[:, at] * (1 - of_null))[:, None])
            null_mass = null_mass + share[:, at] * of_null
        of_all = spaces[0].atoms
        atoms.append(of_all * null_scale.clamp(-3, 3).exp()[:, None] + null_shift[:, None])
        return NumberOutput(
            torch.cat(atoms, dim=1),
            tuple(weights),
            bandwidth.clamp(-6, 3).exp() + _LEAST_BANDWIDTH,
            null_mass,
        )

    @torch.no_grad()
    def predict_without(
        self, read: Read, spaces: list[NumberSet], rows: Tensor, gone: Tensor, found: list[Tensor]
    ) -> NumberOutput:
        """Predict queries without one of their neighbors; the others get its weight.

        `read` and `spaces` as in `pool`, of B queries; the others as in `Read.without`.
        """
        return self.pool(read.without(rows, gone, found), [one.take(rows) for one in spaces])

    @torch.no_grad()
    def predict(self, spaces: list[NumberSet]) -> NumberOutput:
        """Predict as `forward`, in chunks and without gradient."""
        rows = torch.arange(len(spaces[0].location)).split(_CHUNK)
        parts = [self([one.take(some) for one in spaces]) for some in rows]
        return NumberOutput.joined(parts)


@cache
@torch.inference_mode(False)
def shared_number_head() -> PretrainedNumberHead:
    """Return the packaged head, loaded once; do not change its weights."""
    return PretrainedNumberHead.load()


def _describe(space: NumberSet) -> Described:
    there = ~torch.isneginf(space.log_weight)
    mean = (space.distances * there).sum(1) / there.sum(1).clamp_min(1)
    relative = space.distances / mean.clamp_min(1e-6)[:, None] - 1
    gap = relative.clamp(-1, 3)
    far = torch.log(space.distances + 0.01)
    rank = torch.log(torch.arange(1, gap.shape[1] + 1, dtype=gap.dtype)) / 3
    own_mean, own_spread = torch.asinh(space.own_mean), torch.log(space.own_spread + _SOFT)
    residual, size = torch.asinh(space.residuals), torch.log(space.residuals.abs() + _SOFT)
    base, supervised = space.summary[:, HAS_BASE, None], space.summary[:, 11, None]
    neighbors = torch.stack(
        [
            gap,
            (gap - gap[:, :1]) / 2,
            far / 2,
            rank.expand_as(gap),
            far - torch.log(space.own_distance + 0.01),
            residual / 2,
            size / 2,
            (residual - own_mean) / 2,
            own_spread / 2,
            torch.asinh(space.gaps) / 2,
            torch.log(space.gaps.abs() + _SOFT) / 2 * base,
            torch.asinh(space.residuals + space.gaps) / 2,
            base.expand_as(gap),
            supervised.expand_as(gap),
        ],
        dim=2,
    )
    near = softmax_or_nothing(space.log_weight - 4 * gap)
    of_neighbors = [
        torch.log(mean + 0.01) / 2,
        far[:, 0] / 2,
        ((near * gap**2).sum(1)).sqrt(),
        torch.asinh((near * space.residuals).sum(1)) / 2,
        torch.log((near * space.residuals.abs()).sum(1) + _SOFT) / 2,
        torch.log((near * space.own_spread).sum(1) + _SOFT) / 2,
        torch.asinh((near * space.gaps).sum(1)) / 2,
    ]
    query = torch.cat([torch.stack(of_neighbors, dim=1), space.summary], dim=1)
    return Described(neighbors, query, relative)
