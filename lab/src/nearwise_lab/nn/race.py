"""Attention to all keys, estimated without bias by lazy Gumbel sampling."""

from typing import NamedTuple

import torch
from torch import Tensor

from nearwise.functional.tokens.complement import Complement
from nearwise.functional.tokens.pairs import at_least_single, gather_tokens
from nearwise.functional.tokens.problem import TokenMetric, Tokens
from nearwise_lab.nn.chosen import Chosen, check_samples, choose

# Rounding may lift a score above the lowest of the nearest: the bound leaves room for it.
_ROOM, _ROOM_PER_UNIT = 1e-3, 1e-5
_PROBES_AT_ONCE = 2**16


class LazyGumbelOutput(NamedTuple):
    """An unbiased estimate of attention to all keys.

    Attributes
    ----------
    output : Tensor of shape (..., N, Dv)
        0 for a query all of whose keys are masked.
    n_probes : int64 Tensor of shape (..., N)
        Keys beyond the nearest that were read for each query, all draws together.
    """

    output: Tensor
    n_probes: Tensor


def lazy_gumbel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n_neighbors: int,
    n_samples: int,
    *,
    metric: TokenMetric = "matmul",
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    neighbors: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> LazyGumbelOutput:
    """Estimate softmax attention to all keys without bias, from draws of its own softmax.

    Attention is the expectation of v_j where j has the probability w_j / Z, w_j = exp(score_j).
    Such a j is the winner of a race of clocks that ring after exponential times of rate w_j (minus
    the logarithm of a time is the score plus Gumbel noise). The race needs few clocks:

    - Among the nearest, S, the first rings after an exponential time t of rate ``W = sum_S w_j``;
      who it is has the probabilities of the softmax over S and does not depend on t.
    - No key outside has a larger w than b, the least in S. Its clock is a Poisson process of rate b
      of which each ring counts with probability w_j / b. So all the T keys outside ring, together,
      ``Poisson(T b t)`` times until t, at even times, each time an even choice of the T. The first
      ring that counts wins over S; if none does, S has won.

    The number of keys read in a draw has the expectation ``T b / W <= T / n_neighbors``: with
    the root of M nearest, at most the root of M more. All are read together, so memory is
    in proportion to their number over all queries and draws.

    A draw that S wins is replaced by what it is expected to be, the softmax over S. With f the
    share of such draws, ``output = f * attention to S + mean of the other draws' values``.

    **Unbiased, exactly, for every number of draws**: the output, and the gradients of anything
    linear in it to query, key, value and a floating `attn_mask` (so of a loss whose slope does not
    depend on the same draws). The gradient of an expectation under a softmax is the covariance of
    the values with the gradients of the scores; it is estimated by the covariance of the draws
    with divisor ``n_samples - 1``, likewise with S at its expectation. Exact where all keys are
    nearest. **Assumed**: that S holds the keys with the largest scores. A key outside that is
    found to score higher raises; one that is never read stays unseen.

    Parameters
    ----------
    query : Tensor of shape (N, D), (batch, N, D) or (batch, heads, N, D)
    key : Tensor of shape (..., M, D)
    value : Tensor of shape (..., M, Dv)
    n_neighbors : int
        Keys in S, at least 1; all where there are fewer.
    n_samples : int
        Draws of each query, at least 2; the standard error falls with the root.
    metric, scale, attn_mask, key_padding_mask, is_causal
        As in `knn_attention`.
    neighbors : int Tensor of shape (..., N, n_neighbors), optional
        The sets S, from an exact index for example. Default: an exact search over all pairs.
    generator : torch.Generator, optional
        Of the draws, on the device of the query.

    Returns
    -------
    estimate : LazyGumbelOutput

    Raises
    ------
    ValueError
        If shapes, dtypes or options do not fit, all neighbors of a query are masked while other
        keys are not, or a key outside `neighbors` scores higher than one inside.

    References
    ----------
    Haris, "kNN Attention Demystified", ICLR 2025 (arXiv 2411.04013); Mussmann, Levy, Ermon, "Fast
    Amortized Inference and Learning in Log-linear Models with Randomly Perturbed Nearest Neighbor
    Search", UAI 2017, whose binomial number of lazily drawn Gumbel variables at distinct keys is a
    Poisson number of rings here, at keys that may repeat.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(2, 3, 64, 8)
    >>> lazy_gumbel_attention(x, x, x, 8, 16).output.shape
    torch.Size([2, 3, 64, 8])
    """
    check_samples(n_samples, 2, "gradients are a covariance of draws")
    chosen = choose(
        query,
        key,
        value,
        n_neighbors,
        neighbors,
        metric=metric,
        scale=scale,
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        is_causal=is_causal,
    )
    with torch.no_grad():
        drawn, n_probes = _race(chosen, n_samples, generator)
    output = _expectation(chosen, drawn).to(value.dtype)
    lead = query.shape[:-1]
    return LazyGumbelOutput(output.reshape(*lead, value.shape[-1]), n_probes.reshape(lead))


def _race(
    chosen: Chosen, n_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Run the races: winners outside S (B, H, N, L), -1 where S wins; and keys read."""
    empty = chosen.indices < 0
    near = chosen.scores(chosen.indices.clamp_min(0), empty)
    lonely = torch.isneginf(near).all(-1)
    without = lonely.flatten().nonzero()[:, 0]
    if not bool(chosen.has_nobody(without).all()):
        raise ValueError(
            f"All neighbors of {len(without)} of {lonely.numel()} queries are empty or masked, and "
            "other keys are not. Name the nearest that each may attend, or leave neighbors out."
        )
    near = near.masked_fill(lonely[..., None], 0.0)  # these race with nobody: their rate is 0
    least = near.masked_fill(torch.isneginf(near), torch.inf).amin(-1)
    room = _ROOM + _ROOM_PER_UNIT * least.abs()
    left = Complement.of(chosen.indices, chosen.n_keys)
    # T b / W: rings that are expected until S rings.
    rate = (least + room - near.logsumexp(-1)).exp() * left.n_left.masked_fill(lonely, 0)
    shape, device = (*rate.shape, n_samples), rate.device
    waited = -torch.log1p(-torch.rand(shape, generator=generator, device=device))
    counts = torch.poisson(rate[..., None] * waited, generator=generator).long()
    race = torch.arange(counts.numel(), device=device).repeat_interleave(counts.flatten())
    row = race // n_samples
    number = torch.rand(race.shape, generator=generator, device=device, dtype=torch.float64)
    n_left = left.n_left.flatten()[row]
    number = torch.minimum((number * n_left).long(), n_left - 1)
    position = left.position(number, row)
    height = _scores_of_pairs(chosen.tokens, row, position) - least.flatten()[row]
    _refuse_higher(height, room.flatten()[row])
    draws = torch.rand((2, len(race)), generator=generator, device=device, dtype=torch.float64)
    counted = draws[0].log() < height - room.flatten()[row]
    time = draws[1].masked_fill(~counted, torch.inf)
    first = torch.full((counts.numel(),), torch.inf, device=device, dtype=time.dtype)
    first = first.scatter_reduce(0, race, time, "amin")
    wins = counted & (time == first[race])
    winner = torch.full((counts.numel(),), -1, device=device)
    winner[race[wins]] = position[wins]
    return winner.view(shape), counts.sum(-1)


def _scores_of_pairs(tokens: Tokens, row: Tensor, position: Tensor) -> Tensor:
    """Scores (R,) of queries, by their row among all of batch and heads, with keys."""
    n_heads, n_queries, n_keys = *tokens.query.shape[1:3], tokens.key.shape[2]
    query, key = tokens.query.flatten(0, 2), tokens.key.flatten(0, 2)
    scores = [torch.empty(0, device=row.device, dtype=at_least_single(query[:0]).dtype)]
    for rows, at in zip(row.split(_PROBES_AT_ONCE), position.split(_PROBES_AT_ONCE), strict=True):
        q = at_least_single(query[rows])
        k = at_least_single(key[rows // n_queries * n_keys + at])
        pairs = -(q - k).norm(dim=-1) if tokens.euclidean else (q * k).sum(-1)
        scores.append(pairs * tokens.scale)
    flat = torch.cat(scores)
    batch = row // (n_heads * n_queries)
    if tokens.bias is not None:
        head, at = row // n_queries % n_heads, row % n_queries
        flat = flat + tokens.bias[batch, head, at, position]
    if tokens.padding is not None:
        flat = flat.masked_fill(tokens.padding[batch, position], -torch.inf)
    return flat


def _refuse_higher(height: Tensor, room: Tensor) -> None:
    if bool((height > room).any()):
        raise ValueError(
            f"A key outside neighbors scores {float(height.max()):.3g} higher than the least of "
            "those inside, so draws would be biased. Take the neighbors of an exact index, or "
            "tail_corrected_attention, which any set serves."
        )


def _expectation(chosen: Chosen, drawn: Tensor) -> Tensor:
    """Mean of the draws with S at its expectation, with the gradients of the docstring."""
    n_samples = drawn.shape[-1]
    lost = drawn < 0
    at = torch.cat([chosen.indices, drawn], dim=-1)
    empty, at = at < 0, at.clamp_min(0)
    scores = chosen.scores(at, empty)
    n_near = chosen.indices.shape[-1]
    nobody = torch.isneginf(scores).all(-1, keepdim=True)
    scores = scores.masked_fill(nobody, 0.0)
    near = scores[..., :n_near]
    share = lost.to(scores.dtype).mean(-1, keepdim=True)
    within = torch.softmax(near, dim=-1)
    each = (~lost).to(scores.dtype) / n_samples
    weights = torch.cat([share * within.detach(), each], dim=-1)
    # Of value `weights`; its slope is that of a softmax.
    shift = scores.masked_fill(torch.isneginf(scores), 0.0)
    moving = torch.softmax(weights.log() + (shift - shift.detach()), dim=-1)
    values = at_least_single(gather_tokens(chosen.tokens.value, at))
    output = _sum(moving, values)
    fixed = values.detach()
    all_of_it, in_nearest = _sum(moving, fixed), _sum(within, fixed[..., :n_near, :])
    slope = (all_of_it - all_of_it.detach()) - share * (in_nearest - in_nearest.detach())
    return (output + slope / (n_samples - 1)).masked_fill(nobody, 0.0)


def _sum(weights: Tensor, values: Tensor) -> Tensor:
    summed: Tensor = (weights[..., None, :] @ values)[..., 0, :]
    return summed
