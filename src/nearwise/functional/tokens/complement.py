"""Sampling among the keys that a query has not chosen."""

import torch
from torch import Tensor


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
    empty = chosen < 0
    n_left = torch.as_tensor(n_keys, device=chosen.device) - (~empty).sum(-1)
    steps = torch.arange(n_samples + 1, device=chosen.device)
    edges = steps * n_left[..., None] // max(n_samples, 1)
    counts = edges.diff(dim=-1)
    share = torch.full(counts.shape, 0.5, device=chosen.device)
    if jitter:
        share = torch.rand(counts.shape, generator=generator, device=chosen.device)
    # Rounding may bring share * count to count.
    within = torch.minimum((share * counts).long(), counts - 1).clamp_min(0)
    # Keys not chosen are never listed: a number among them becomes a position by how many chosen
    # keys have no more of the others before them.
    numbers = edges[..., :-1] + within
    in_order = chosen.long().masked_fill(empty, torch.iinfo(torch.int64).max).sort(-1).values
    before = in_order - torch.arange(chosen.shape[-1], device=chosen.device)
    positions = numbers + torch.searchsorted(before, numbers, right=True)
    return positions.masked_fill(counts == 0, 0), counts
