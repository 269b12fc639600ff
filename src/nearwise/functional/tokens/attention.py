"""`knn_attention`: every query token attends to its k nearest key tokens."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from nearwise.functional.tokens.fused import attend_fused
from nearwise.functional.tokens.implementation import implementation_for
from nearwise.functional.tokens.plain import attend_plain, attend_selected
from nearwise.functional.tokens.problem import (
    Found,
    IncludeSelf,
    KeyPositions,
    TokenMetric,
    Tokens,
    make_problem,
)


class KNNAttentionOutput(NamedTuple):
    """The attended values, and the attended keys with their weights.

    Attributes
    ----------
    output : Tensor of shape (..., N, Dv)
    indices : int32 Tensor of shape (..., N, K)
        Positions of the attended keys, best first, ties by lowest index; -1 in slots that a mask
        leaves empty.
    weights : Tensor of shape (..., N, K)
        Their weights before dropout; each row sums to 1, or is 0 where no key may be attended.
    """

    output: Tensor
    indices: Tensor
    weights: Tensor

    def dense_weights(self, n_keys: int) -> Tensor:
        """Weights (..., N, n_keys) of all keys; 0 for those that are not attended."""
        dense = self.weights.new_zeros(*self.weights.shape[:-1], n_keys)
        if n_keys == 0:
            return dense
        # Empty slots add their weight 0 to the first key.
        return dense.scatter_add(-1, self.indices.clamp_min(0).long(), self.weights)


def knn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n_neighbors: int,
    *,
    metric: TokenMetric = "matmul",
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    include_self: IncludeSelf = "candidate",
    candidates: KeyPositions | None = None,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attend from every query token to its k nearest key tokens, exactly.

    The `n_neighbors` keys with the largest scores are selected, ties by lowest index; the softmax
    of their scores weighs their values. With all keys it is scaled dot-product attention.

    Parameters
    ----------
    query : Tensor of shape (N, D), (batch, N, D) or (batch, heads, N, D)
        float16, bfloat16, float32 or float64.
    key : Tensor of shape (..., M, D)
    value : Tensor of shape (..., M, Dv)
        Of the same dtype, or of half precision beside float32; so is the output.
    n_neighbors : int
        Keys a query attends to, at least 1; all where there are fewer.
    metric : {"matmul", "cosine", "euclidean"}, default="matmul"
        Score of a pair: dot product, dot product of unit vectors, minus the Euclidean distance.
    scale : float, optional
        Positive factor of the scores. Default: 1 / sqrt(D) for "matmul", 1 for the others.
    attn_mask : Tensor broadcastable to (..., N, M), optional
        Boolean, True where a query may attend; or floating, added to the scaled scores before
        the selection. As in `torch.nn.functional.scaled_dot_product_attention`.
    key_padding_mask : bool Tensor of shape (batch, M) or (M,), optional
        True leaves a key out, as in `torch.nn.MultiheadAttention`.
    is_causal : bool, default=False
        Whether a token attends only to itself and tokens before it.
    include_self : {"candidate", "always", "never"}, default="candidate"
        Whether a token's own key competes like any other, always has a slot, or never.
    candidates : int Tensor or array of shape (C,) or (batch, C), optional
        Positions of the keys that may be attended, each once; default all. With
        include_self="always" a token's own key need not be among them. They are checked where they
        lie on the CPU; on another device, where that would wait for it, a position that does not
        exist fails as torch's own indexing does, and one named twice counts once, as both do in
        exported models and under torch.func.
    dropout_p : float in [0, 1), default=0
        Share of the weights that are set to 0, the others being scaled up.
    generator : torch.Generator, optional
        Of the dropout; on the device of the query.

    Returns
    -------
    output : Tensor of shape (..., N, Dv)
        Gradients reach query, key, value and a floating `attn_mask` through the selected pairs.
        For the backward pass O(N K) numbers are kept beside the arguments.

        A query all of whose keys are masked, or that has none, gets zeros, and sends gradients of
        0, as in `torch.nn.functional.scaled_dot_product_attention`.

    Raises
    ------
    ValueError
        If shapes, dtypes or options do not fit.

    References
    ----------
    Wang et al., "KVT: k-NN Attention for Boosting Vision Transformers", ECCV 2022, sec. 3.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(2, 3, 16, 8)
    >>> knn_attention(x, x, x, 4).shape
    torch.Size([2, 3, 16, 8])
    """
    return attend(
        query,
        key,
        value,
        n_neighbors,
        metric=metric,
        scale=scale,
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        is_causal=is_causal,
        include_self=include_self,
        candidates=candidates,
        dropout_p=dropout_p,
        generator=generator,
    ).output


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n_neighbors: int,
    *,
    factor: Tensor | None = None,
    **options: Any,
) -> KNNAttentionOutput:
    """`knn_attention` that also returns the attended positions and their weights.

    Arguments and options as there; the weights have gradients too. Where the metric is
    "euclidean", scores are multiplied by a positive `factor` (heads, 1, 1), which gets gradients:
    tokens that are multiplied by it would lose digits far from the origin.
    """
    tokens = make_problem(query, key, value, n_neighbors, **options)
    found = _found(tokens) if factor is None else _found_by_factor(tokens, factor)
    lead = query.shape[:-1]
    return KNNAttentionOutput(*(part.reshape(*lead, part.shape[-1]) for part in found))


def _found(tokens: Tokens) -> Found:
    by = implementation_for(tokens.query)
    n_keys = tokens.key.shape[2] - (tokens.include_self == "never")
    if n_keys < 1 or 0 in tokens.query.shape:
        return _attend_none(tokens)
    return attend_plain(tokens) if by == "plain" else attend_fused(tokens)


def _found_by_factor(tokens: Tokens, factor: Tensor) -> Found:
    """Select without the factor, which changes no order of distances, and weigh with it."""
    asked = tokens._replace(value=tokens.value[..., :1], keep=None)
    if tokens.bias is not None:
        asked = asked._replace(bias=tokens.bias / factor)
    with torch.no_grad():
        indices = _found(asked).indices.long()
    # A tensor multiplies as a float does in plain operations.
    return attend_selected(tokens._replace(scale=cast(float, factor)), indices)


def _attend_none(tokens: Tokens) -> Found:
    """Attend where no query has a key at all: zeros, which gradients of 0 pass."""
    slots = (*tokens.query.shape[:3], tokens.n_neighbors)
    key, value = tokens.key[:, :, :0], tokens.value[:, :, :0]
    output = (tokens.query @ key.mT).to(value.dtype) @ value
    indices = torch.full(slots, -1, dtype=torch.int32, device=output.device)
    return Found(output, indices, output.new_zeros(slots))
