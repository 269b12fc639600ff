"""Stratified sampling among the keys outside a query's selection."""

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
    """Draw one key outside the selection from each of `n_samples` strata of equal length.

    The remaining keys are split, in order of positions, into strata of lengths that differ by at
    most one; a key of a stratum of c is drawn with probability 1 / c and represents all c. So the
    sum of ``count * f(position)`` is an unbiased estimate of the sum of f over all remaining keys
    (Horvitz and Thompson). It is that sum if every stratum has one key.

    `chosen` (..., K) holds distinct positions, -1 in empty slots. ``jitter=False`` takes the middle
    of every stratum: the same at every call, no longer unbiased. Returns positions and counts (...,
    n_samples); surplus samples have count 0 and position 0.
    """
    empty = chosen < 0
    n_left = torch.as_tensor(n_keys, device=chosen.device) - (~empty).sum(-1)
    steps = torch.arange(n_samples + 1, device=chosen.device)
    edges = steps * n_left[..., None] // max(n_samples, 1)
    counts = edges.diff(dim=-1)
    share = torch.full(counts.shape, 0.5, device=chosen.device)
    if jitter:
        share = torch.rand(counts.shape, generator=generator, device=chosen.device)
    # share * count may round up to count.
    within = torch.minimum((share * counts).long(), counts - 1).clamp_min(0)
    # Keys outside the selection are not listed: a number among them is converted to a position by
    # counting the chosen keys before it.
    numbers = edges[..., :-1] + within
    in_order = chosen.long().masked_fill(empty, torch.iinfo(torch.int64).max).sort(-1).values
    before = in_order - torch.arange(chosen.shape[-1], device=chosen.device)
    positions = numbers + torch.searchsorted(before, numbers, right=True)
    return positions.masked_fill(counts == 0, 0), counts
