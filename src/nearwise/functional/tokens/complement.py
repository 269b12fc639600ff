"""The keys that a query has not chosen: counted, numbered and drawn from."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Complement:
    """For every query the keys it has not chosen, numbered 0, 1, ... in the order of positions.

    Never listed: a number becomes a position by a search among the chosen ones. `n_left` (...,)
    counts the keys that each query has not chosen; `skipped` (n_queries * K,) is ascending: of the
    i-th chosen key of a query the number of keys before it that are not chosen, plus `stride` times
    its row.
    """

    n_left: Tensor
    skipped: Tensor
    stride: int

    @classmethod
    def of(cls, chosen: Tensor, n_keys: Tensor | int) -> Self:
        """Count what distinct chosen positions (..., K) in [0, n_keys) leave; -1 in empty slots."""
        empty = chosen < 0
        n_left = torch.as_tensor(n_keys, device=chosen.device) - (~empty).sum(-1)
        farthest = int(chosen.max()) if chosen.numel() else -1
        most = max(int(n_left.max()), farthest + 1) + 1 if n_left.numel() else 1
        in_order = chosen.long().masked_fill(empty, most).sort(-1).values
        before = in_order - torch.arange(chosen.shape[-1], device=chosen.device)
        # Empty slots come after every number that is requested.
        before = before.masked_fill(in_order == most, most)
        stride = most + 1
        rows = torch.arange(n_left.numel(), device=chosen.device).view(*n_left.shape, 1)
        return cls(n_left, (before + rows * stride).flatten(), stride)

    def position(self, number: Tensor, row: Tensor) -> Tensor:
        """Positions (R,) of the keys with these numbers (R,) of the queries in these rows (R,)."""
        n_chosen = len(self.skipped) // max(self.n_left.numel(), 1)
        at = torch.searchsorted(self.skipped, number + row * self.stride, right=True)
        return number + at - row * n_chosen


def stratified_sample(
    chosen: Tensor,
    n_keys: Tensor | int,
    n_samples: int,
    *,
    jitter: bool = True,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw keys among those not chosen, one from each of `n_samples` stretches of equal length.

    The keys not chosen are cut, in the order of positions, into stretches whose lengths differ by
    one at most; a key of a stretch of c is drawn with probability 1 / c and represents all c. So
    for any numbers f, the sum of ``count * f(position)`` has the sum of f over all keys not chosen
    as its expectation (Horvitz and Thompson), and is that sum where every stretch has one key.

    `chosen` (..., K) holds distinct positions, -1 in empty slots. ``jitter=False`` takes the middle
    of every stretch: the same at every call, no longer unbiased. Returns positions and counts (...,
    n_samples); where fewer keys are left than samples, count 0 at position 0.
    """
    left = Complement.of(chosen, n_keys)
    steps = torch.arange(n_samples + 1, device=chosen.device)
    edges = steps * left.n_left[..., None] // max(n_samples, 1)
    counts = edges.diff(dim=-1)
    share = torch.full(counts.shape, 0.5, device=chosen.device)
    if jitter:
        share = torch.rand(counts.shape, generator=generator, device=chosen.device)
    # Rounding may bring share * count to count.
    within = torch.minimum((share * counts).long(), counts - 1).clamp_min(0)
    rows = torch.arange(left.n_left.numel(), device=chosen.device).repeat_interleave(n_samples)
    positions = left.position((edges[..., :-1] + within).flatten(), rows).view(counts.shape)
    return positions.masked_fill(counts == 0, 0), counts
