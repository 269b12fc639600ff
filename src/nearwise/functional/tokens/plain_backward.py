"""Backward pass of token k-NN attention in plain torch operations."""

import torch
from torch import Tensor

from nearwise.functional.tokens.pairs import at_least_single, gather_slots, rows_of
from nearwise.functional.tokens.problem import Tokens


def backward_plain(
    tokens: Tokens, indices: Tensor, weights: Tensor, grad_output: Tensor, grad_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of query, key and value, and of the selected scores (B, H, N, K).

    They are differentiable again; through the weights, an output of the forward pass, these
    derivatives reach its masks. Works inside operators too, where autograd records nothing. The
    keys and values of all slots are in memory at once: O(N K D).
    """
    query, key, value = (at_least_single(x) for x in (tokens.query, tokens.key, tokens.value))
    weight, sent, from_weights = (at_least_single(x) for x in (weights, grad_output, grad_weights))
    keep = torch.ones_like(weight) if tokens.keep is None else at_least_single(tokens.keep)
    at = indices.long()  # empty slots have weight 0
    # Sums of products, since autocast would round the factors of matrix products.
    slopes = (gather_slots(value, at) * sent[..., None, :]).sum(-1) * keep + from_weights
    grad_scores = weight * (slopes - (weight * slopes).sum(-1, keepdim=True))
    pulls = grad_scores * tokens.scale
    keys, queries = gather_slots(key, at), query[..., None, :]
    if tokens.euclidean:
        gaps = queries - keys
        squares = gaps.square().sum(-1)
        same = squares == 0  # the root has no derivative at 0
        pulls = (pulls / squares.masked_fill(same, 1.0).sqrt()).masked_fill(same, 0.0)
        grad_query, to_keys = -(pulls[..., None] * gaps).sum(-2), pulls[..., None] * gaps
    else:
        grad_query, to_keys = (pulls[..., None] * keys).sum(-2), pulls[..., None] * queries
    to_values = (weight * keep)[..., None] * sent[..., None, :]
    return (
        grad_query.to(tokens.query.dtype),
        _added(to_keys, at, tokens.key),
        _added(to_values, at, tokens.value),
        grad_scores.to(weights.dtype),
    )


def _added(rows: Tensor, at: Tensor, like: Tensor) -> Tensor:
    """Add rows (B, H, N, K, D) to the tokens at positions (B, H, N, K); skip positions of -1."""
    batch, heads, n_tokens, width = like.shape
    total = rows.new_zeros(batch * heads * (n_tokens + 1), width)
    total.index_add_(0, rows_of(at + 1, n_tokens + 1), rows.reshape(-1, width))
    kept = total.view(batch, heads, n_tokens + 1, width)[:, :, 1:]
    return kept.to(like.dtype).contiguous()
