"""Pretrained classification head: trained on many tables, applied to new ones without training."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.functional.set_attention import (
    HAS_BASE,
    N_FEATURES,
    N_OF_QUERY,
    describe_rows,
)
from nearwise.nn.neighbor_set import NeighborSet
from nearwise.nn.neighbor_trunk import Described, NeighborTrunk, Read, softmax_or_nothing

_CHUNK = 1024  # rows predicted at once
_OUT = -1e4  # score of a neighbor that is left out
_FLOOR = 1e-9
NEGLIGIBLE = -20.0  # log-probability of a class without evidence


class HeadOutput(NamedTuple):
    """Prediction of a head, with attention weights.

    Attributes
    ----------
    log_proba : Tensor of shape (B, C)
        Prediction from neighbors and base.
    neighbor_log_proba : Tensor of shape (B, C)
        Prediction from neighbors alone; the null carries the class prior.
    weights : tuple of Tensor of shape (B, K)
        Attention weights of the neighbors per space; they sum to 1 with `null_mass`.
    null_mass : Tensor of shape (B,)
        Share of the null, in [0, 1].
    """

    log_proba: Tensor
    neighbor_log_proba: Tensor
    weights: tuple[Tensor, ...]
    null_mass: Tensor

    @classmethod
    def joined(cls, parts: "list[HeadOutput]") -> "HeadOutput":
        """Concatenate the predictions of chunks of queries."""
        # Chunks may lack classes without a neighbor; their share is negligible.
        width = max(part.log_proba.shape[1] for part in parts)
        return cls(
            torch.cat([widen(part.log_proba, width) for part in parts]),
            torch.cat([widen(part.neighbor_log_proba, width) for part in parts]),
            tuple(map(torch.cat, zip(*(part.weights for part in parts), strict=True))),
            torch.cat([part.null_mass for part in parts]),
        )


class PretrainedNeighborHead(NeighborTrunk):
    """Pretrained attention over the neighbors of a row, for classes of any table.

    A small set transformer over the neighbors of one or more key spaces and a query token. It uses
    only the equality of labels and features of each label (class share, the base's probability),
    so any set of classes is possible. Each space's neighbors share the attention with a null that
    carries the class shares. Spaces, base and class shares are joined in a log-linear pool with
    powers that depend on the query:
    ``log p = sharpness (a log p_base + c log prior + sum_s b_s log p_s) + const``,
    ``a + c + sum_s b_s = 1``. Without a base `a` is 0.

    Parameters are as in `NeighborTrunk`.

    Examples
    --------
    >>> import torch
    >>> from nearwise.functional import topk_neighbors
    >>> from nearwise.nn import PretrainedNeighborHead, RememberedSpace
    >>> keys, labels = torch.randn(100, 4), torch.arange(100) % 3
    >>> space = RememberedSpace.of(keys, labels, n_classes=3, n_columns=4)
    >>> neighbors = space.describe(topk_neighbors(torch.randn(5, 4), keys, 32))
    >>> PretrainedNeighborHead.load().predict([neighbors]).log_proba.shape
    torch.Size([5, 3])
    """

    n_features, n_of_query = N_FEATURES, N_OF_QUERY
    starts_per_space, starts_per_query = (-2.0, 0.0), (1.0, -2.0, 0.2)
    file, version = "neighbor_head.safetensors", "1"

    def forward(
        self, spaces: list[NeighborSet], base_log_proba: Tensor | None = None
    ) -> HeadOutput:
        """Predict from the neighbors in each space and the base's log-probabilities (B, C)."""
        return self.pool(self.attend(spaces), spaces, base_log_proba)

    def attend(self, spaces: list[NeighborSet]) -> Read:
        """Compute scores of the neighbors and powers of the pool: the first half of `forward`.

        `of_spaces` holds the log-odds of each space's null against its neighbors, and the power of
        the space; `of_query` the powers of base and class shares, and the inverse temperature. All
        powers sum to 1.
        """
        labels = torch.cat([one.labels for one in spaces], dim=1)
        log_weight = torch.cat([one.log_weight for one in spaces], dim=1)
        seen = [_describe(one) for one in spaces]
        scores, of_spaces, of_query = self.read(seen, labels, log_weight, spaces[0].log_prior)
        null, gates = of_spaces.unbind(1)
        base, prior, sharpness = of_query.unbind(1)
        base = base.masked_fill(spaces[0].summary[:, HAS_BASE] == 0, -math.inf)
        powers = torch.softmax(torch.cat([base[:, None], prior[:, None], gates], dim=1), dim=1)
        of_query = torch.cat([powers[:, :2], sharpness.clamp(-3.0, 3.0).exp()[:, None]], dim=1)
        return Read(scores, torch.stack([null, powers[:, 2:]], dim=1), of_query)

    def pool(
        self, read: Read, spaces: list[NeighborSet], base_log_proba: Tensor | None
    ) -> HeadOutput:
        """Predict from the result of `attend`: the second half of `forward`.

        The output's weights include each space's share among the spaces.
        """
        nulls, b = read.of_spaces.unbind(1)
        a, c, sharpness = read.of_query[:, :, None].unbind(1)
        log_prior, nulls = spaces[0].log_prior, torch.sigmoid(nulls)
        prior, no_class = log_prior.exp(), torch.isneginf(log_prior)
        log_prior = log_prior.masked_fill(no_class, 0.0)
        among = b / b.sum(1, keepdim=True).clamp_min(_FLOOR)
        total, alone = c * log_prior, torch.zeros_like(prior)
        weights, null_mass = [], torch.zeros_like(nulls[:, 0])
        for at, (scores, space) in enumerate(zip(read.scores, spaces, strict=True)):
            alpha, null = softmax_or_nothing(scores), nulls[:, at]
            null = torch.where(alpha.sum(1) == 0, 1.0, null)
            alpha = alpha * (1 - null)[:, None]
            votes = torch.zeros_like(prior).scatter_add(1, space.labels, alpha)
            log_p = torch.log(votes + null[:, None] * prior + _FLOOR)
            total = total + b[:, at, None] * log_p
            alone = alone + among[:, at, None] * log_p
            weights.append(among[:, at, None] * alpha)
            null_mass = null_mass + among[:, at] * null
        if base_log_proba is not None:
            total = total + a * base_log_proba
        total = sharpness * total
        both = [torch.log_softmax(one.masked_fill(no_class, _OUT), dim=1) for one in (total, alone)]
        return HeadOutput(both[0], both[1], tuple(weights), null_mass)

    @torch.no_grad()
    def predict(
        self, spaces: list[NeighborSet], base_log_proba: Tensor | None = None
    ) -> HeadOutput:
        """Predict as `forward`, in chunks and without gradient."""
        if not spaces:
            raise ValueError("There are no spaces to predict from. Give at least one.")
        n_rows = len(spaces[0].labels)
        if n_rows <= _CHUNK:
            return self(spaces, base_log_proba)
        parts = []
        for start in range(0, n_rows, _CHUNK):
            at = slice(start, start + _CHUNK)
            some = [NeighborSet(*(tensor[at] for tensor in one)) for one in spaces]
            parts.append(self(some, None if base_log_proba is None else base_log_proba[at]))
        return HeadOutput.joined(parts)

    @torch.no_grad()
    def predict_without(
        self,
        read: Read,
        spaces: list[NeighborSet],
        base_log_proba: Tensor | None,
        rows: Tensor,
        gone: Tensor,
        found: list[Tensor],
    ) -> Tensor:
        """Predict queries without one of their neighbors; the others get its weight.

        Parameters
        ----------
        read, spaces, base_log_proba
            As in `pool`, of B queries.
        rows, gone, found
            As in `Read.without`.

        Returns
        -------
        log_proba : Tensor of shape (M, C)
            As in `HeadOutput`.
        """
        base = None if base_log_proba is None else base_log_proba[rows]
        rest = read.without(rows, gone, found)
        # Contiguous like the original: the memory layout affects rounding in the sigmoid.
        rest = rest._replace(of_spaces=rest.of_spaces.transpose(0, 1).contiguous().transpose(0, 1))
        return self.pool(rest, [one.take(rows) for one in spaces], base).log_proba


@cache
@torch.inference_mode(False)
def shared_head() -> PretrainedNeighborHead:
    """Return the packaged head, loaded once; do not change its weights."""
    return PretrainedNeighborHead.load()


def widen(log_proba: Tensor, n_classes: int) -> Tensor:
    """Pad (B, C) to `n_classes` with classes of negligible probability."""
    missing = n_classes - log_proba.shape[1]
    return F.pad(log_proba, (0, missing), value=NEGLIGIBLE) if missing else log_proba


def _describe(space: NeighborSet) -> Described:
    """Features of neighbors (17) and queries (22), on the space's device; without gradient."""
    (n_rows, k), device = space.labels.shape, space.labels.device
    made = [
        np.empty((n_rows, *more), np.float32) for more in ((k, N_FEATURES), (N_OF_QUERY,), (k,))
    ]
    given = [one.cpu().contiguous().numpy() for one in space]
    facts = (given[0], *given[2:8])
    describe_rows(facts, given[1], *given[8:], *made)
    return Described(*(torch.from_numpy(one).to(device) for one in made))
