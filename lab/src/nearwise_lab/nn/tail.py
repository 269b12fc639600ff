"""Attention to all keys, estimated from the k nearest and a sample of the others."""

from typing import NamedTuple

import torch
from torch import Tensor

from nearwise.functional.tokens.complement import stratified_sample
from nearwise.functional.tokens.pairs import gather_tokens
from nearwise.functional.tokens.problem import TokenMetric
from nearwise_lab.nn.chosen import check_samples, choose


class TailCorrectedOutput(NamedTuple):
    """An estimate of attention to all keys.

    Attributes
    ----------
    output : Tensor of shape (..., N, Dv)
        The ratio of both estimates.
    log_normalizer : Tensor of shape (..., N)
        Logarithm of the estimated sum of exp(score) over all keys; float32 at least. -inf for a
        query all of whose keys are masked; its output is 0.
    """

    output: Tensor
    log_normalizer: Tensor


def tail_corrected_attention(
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
) -> TailCorrectedOutput:
    r"""Estimate softmax attention to all keys from the k nearest and `n_samples` others.

    With w_j = exp(score_j), attention is the ratio of ``A = sum_j w_j v_j`` and ``Z = sum_j w_j``.
    The chosen set S enters both sums as it is. The keys outside are cut, in the order of positions,
    into `n_samples` stretches of c_1, c_2, ... keys; from the i-th one key t_i is drawn evenly::

        A' = sum_{j in S} w_j v_j + sum_i c_i w_{t_i} v_{t_i}
        Z' = sum_{j in S} w_j     + sum_i c_i w_{t_i}

    Each key outside S is drawn with probability 1 / c_i and then counts c_i times, so E A' = A and
    E Z' = Z for every number of samples, **exactly and for any S** that does not depend on the
    draws: S nearest makes the variance small, nothing else, so an approximate index may choose it.
    Gradients of A' and Z' are unbiased as well, for S and the draws do not depend on the values
    that are differentiated.

    The output A' / Z' is **not** unbiased: the error of a ratio has the expectation
    ``-(Cov(A', Z') - (A / Z) Var Z') / Z^2`` up to terms of higher order, which falls as
    1 / n_samples while the standard error falls as its root. It is exact where nothing is left to
    chance: all keys in S, or a sample of every key outside.

    Parameters
    ----------
    query : Tensor of shape (N, D), (batch, N, D) or (batch, heads, N, D)
    key : Tensor of shape (..., M, D)
    value : Tensor of shape (..., M, Dv)
    n_neighbors : int
        Keys in S, at least 1; all where there are fewer.
    n_samples : int
        Keys drawn outside S, at least 0; with 0 it is `knn_attention`. More than there are take
        all of them.
    metric, scale, attn_mask, key_padding_mask, is_causal
        As in `knn_attention`. A masked key that is drawn counts as 0, which costs variance; the
        future of `is_causal` is never drawn.
    neighbors : int Tensor of shape (..., N, n_neighbors), optional
        The sets S, distinct positions with -1 in empty slots, from an index for example. Default:
        the nearest keys, by an exact search over all pairs.
    generator : torch.Generator, optional
        Of the draws, on the device of the query.

    Returns
    -------
    estimate : TailCorrectedOutput
        ``output * log_normalizer.exp()[..., None]`` is A'. Gradients reach query, key, value and
        a floating `attn_mask`; O(N (n_neighbors + n_samples) D) numbers are kept for them.

    Raises
    ------
    ValueError
        If shapes, dtypes or options do not fit, `neighbors` names a key twice or one that does not
        exist, or every key of a query that was chosen or drawn is masked while others are not.

    References
    ----------
    Haris, "kNN Attention Demystified", ICLR 2025 (arXiv 2411.04013): attention as an expectation
    under a softmax, of which the nearest keys are summed and the others sampled. Horvitz and
    Thompson, "A Generalization of Sampling Without Replacement From a Finite Universe", JASA 1952.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(2, 3, 64, 8)
    >>> tail_corrected_attention(x, x, x, 8, 8).output.shape
    torch.Size([2, 3, 64, 8])
    """
    check_samples(n_samples, 0, "0 leaves the tail out")
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
        drawn, counts = stratified_sample(
            chosen.indices, chosen.n_keys, n_samples, generator=generator
        )
        at = torch.cat([chosen.indices, drawn], dim=-1)
        stands_for = torch.cat([(chosen.indices >= 0).long(), counts], dim=-1)
    empty = stands_for == 0
    at = at.clamp_min(0)
    scores = chosen.scores(at, empty) + stands_for.clamp_min(1).log()
    lonely = torch.isneginf(scores).all(dim=-1, keepdim=True)
    unlucky = lonely.flatten().nonzero()[:, 0]
    if not bool(chosen.has_nobody(unlucky).all()):
        raise ValueError(
            f"All keys that {len(unlucky)} of {lonely.numel()} queries chose or drew are masked, "
            "and others are not. Let neighbors name a key that the query may attend."
        )
    scores = scores.masked_fill(lonely, 0.0)
    weights = torch.softmax(scores, dim=-1).masked_fill(lonely, 0.0).to(value.dtype)
    output = (weights[..., None, :] @ gather_tokens(chosen.tokens.value, at))[..., 0, :]
    total = scores.logsumexp(-1).masked_fill(lonely[..., 0], -torch.inf)
    lead = query.shape[:-1]
    return TailCorrectedOutput(output.reshape(*lead, value.shape[-1]), total.reshape(lead))
