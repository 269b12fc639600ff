"""MixUp: a query between two rows, with the labels between theirs."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearwise.nn import soft_targets


class Mix(NamedTuple):
    """Partner of each row, int64 (B,), and the share of the row itself in [0.5, 1], (B, 1)."""

    partner: Tensor
    share: Tensor


def draw_mix(n_rows: int, alpha: float, generator: torch.Generator) -> Mix:
    """Draw partners and shares for a batch of `n_rows`.

    Shares follow Beta(alpha, alpha), folded to the larger part so that a row stays nearer to
    itself than to its partner.

    Parameters
    ----------
    n_rows : int
    alpha : float
        Positive parameter of the Beta distribution.
    generator : torch.Generator
        On the CPU; its state alone decides the draw.

    References
    ----------
    Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018.
    """
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, got {alpha}.")
    partner = torch.randperm(n_rows, generator=generator)
    # torch draws no Beta variates from a generator of one's own; numpy does, seeded from it.
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    drawn = np.random.default_rng(seed).beta(alpha, alpha, size=(n_rows, 1))
    share = torch.from_numpy(np.maximum(drawn, 1 - drawn).astype(np.float32))
    return Mix(partner, share)


def draw_batch_mix(
    alpha: float,
    probability: float,
    n_rows: int,
    generator: torch.Generator,
    device: torch.device,
) -> Mix | None:
    """Draw whether a batch is mixed, and how; None where it is not, or `alpha` is 0.

    Parameters
    ----------
    alpha : float
        As for `draw_mix`; 0 draws nothing.
    probability : float
        Share of the batches that are mixed, in [0, 1].
    n_rows : int
    generator : torch.Generator
        On the CPU.
    device : torch.device
        Where the result is wanted.
    """
    if not alpha:
        return None
    if float(torch.rand((), generator=generator)) >= probability:
        return None
    mix = draw_mix(n_rows, alpha, generator)
    return Mix(mix.partner.to(device), mix.share.to(device))


def mix_labels(labels: Tensor, mix: Mix, n_classes: int) -> Tensor:
    """Class probabilities (B, n_classes) of mixed rows from hard or soft `labels` (B,)."""
    targets = soft_targets(labels, n_classes)
    return mix.share * targets + (1 - mix.share) * targets[mix.partner]


def mix_ids(ids: Tensor, mix: Mix) -> Tensor:
    """Both source ids of each mixed row, shape (B, 2): neither may vote for it."""
    return torch.stack([ids, ids[mix.partner]], dim=1)
