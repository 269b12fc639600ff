"""`knn_attention`: attention of each query token to its k nearest key tokens."""

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
    """Attended values, positions of the attended keys, and their weights.

    Attributes
    ----------
    output : Tensor of shape (..., N, Dv)
    indices : int32 Tensor of shape (..., N, K)
        Positions of the attended keys, best first, ties by lowest index; -1 in empty slots.
    weights : Tensor of shape (..., N, K)
        Weights before dropout; each row sums to 1, or is 0 without an allowed key.
    """

    output: Tensor
    indices: Tensor
    weights: Tensor

    def dense_weights(self, n_keys: int) -> Tensor:
        """Return weights (..., N, n_keys) of all keys; 0 for keys that are not attended."""
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
        Same dtype, or half precision beside float32; also the dtype of the output.
    n_neighbors : int
        Number of attended keys per query, at least 1; all if there are fewer.
    metric : {"matmul", "cosine", "euclidean"}, default="matmul"
        Score of a pair: dot product, dot product of unit vectors, minus the Euclidean distance.
    scale : float, optional
        Positive factor of the scores. Default: 1 / sqrt(D) for "matmul", 1 for the others.
    attn_mask : Tensor broadcastable to (..., N, M), optional
        Boolean, True where a query may attend; or floating, added to the scaled scores before
        the selection. As in `torch.nn.functional.scaled_dot_product_attention`.
    key_padding_mask : bool Tensor of shape (batch, M) or (M,), optional
        True excludes a key, as in `torch.nn.MultiheadAttention`.
    is_causal : bool, default=False
        Whether a token attends only to itself and earlier tokens.
    include_self : {"candidate", "always", "never"}, default="candidate"
        Role of a token's own key: it competes like any other, always has a slot, or is excluded.
    candidates : int Tensor or array of shape (C,) or (batch, C), optional
        Positions of the allowed keys, each once; default all. With include_self="always" a token's
        own key need not be among them. Positions on the CPU are checked. Other devices, exported
        models and torch.func skip this check: there an invalid position fails as in torch's own
        indexing, and a repeated one counts once.
    dropout_p : float in [0, 1), default=0
        Share of the weights set to 0; the others are scaled up.
    generator : torch.Generator, optional
        Random generator of the dropout, on the device of the query.

    Returns
    -------
    output : Tensor of shape (..., N, Dv)
        Gradients reach query, key, value and a floating `attn_mask` through the selected pairs.
        For the backward pass O(N K) numbers are kept beside the arguments.

        A query without an allowed key gets zeros, with gradients of 0, as in
        `torch.nn.functional.scaled_dot_product_attention`.

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
    """Return the result of `knn_attention` with the attended positions and their weights.

    Arguments and options as there; the weights have gradients too. With the metric "euclidean",
    scores are multiplied by a positive `factor` (heads, 1, 1) with gradients: multiplying tokens
    instead would lose precision far from the origin.
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
    """Select keys without the factor, which keeps the order, and weight them with it."""
    asked = tokens._replace(value=tokens.value[..., :1], keep=None)
    if tokens.bias is not None:
        asked = asked._replace(bias=tokens.bias / factor)
    with torch.no_grad():
        indices = _found(asked).indices.long()
    # Plain operations accept a tensor in place of the float.
    return attend_selected(tokens._replace(scale=cast(float, factor)), indices)


def _attend_none(tokens: Tokens) -> Found:
    """Return zeros, with gradients of 0, for queries without any key."""
    slots = (*tokens.query.shape[:3], tokens.n_neighbors)
    key, value = tokens.key[:, :, :0], tokens.value[:, :, :0]
    output = (tokens.query @ key.mT).to(value.dtype) @ value
    indices = torch.full(slots, -1, dtype=torch.int32, device=output.device)
    return Found(output, indices, output.new_zeros(slots))
