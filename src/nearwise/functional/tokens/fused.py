"""Fused k-NN attention as torch operators, with gradients and for torch.compile."""

from typing import Any

import torch
from torch import Tensor

from nearwise.functional.operators import operator
from nearwise.functional.tokens.cpu import attend_cpu, backward_cpu, interleaved
from nearwise.functional.tokens.plain_backward import backward_plain
from nearwise.functional.tokens.problem import Found, Tokens


def attend_fused(tokens: Tokens) -> Found:
    """Attend by compiled loops; O(N K) numbers are kept for the backward pass."""
    return Found(*_forward(*tokens))


@operator("knn_attention")
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n_neighbors: int,
    euclidean: bool,
    scale: float,
    bias: Tensor | None,
    padding: Tensor | None,
    is_causal: bool,
    include_self: str,
    candidates: Tensor | None,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    masks = (bias, padding, is_causal, include_self, candidates, keep)
    tokens = Tokens(query, key, value, n_neighbors, euclidean, scale, *masks)
    found = attend_cpu(tokens)
    return found.output, found.indices, found.weights


@torch.library.register_fake("nearwise::knn_attention")
def _(query: Tensor, key: Tensor, value: Tensor, n_neighbors: int, *_: Any) -> tuple[Tensor, ...]:
    slots = (*query.shape[:-1], n_neighbors)
    return (
        interleaved(value.new_empty((*query.shape[:-1], value.shape[-1]))),
        query.new_empty(slots, dtype=torch.int32),
        value.new_empty(slots),
    )


@operator("knn_attention_backward")
def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    euclidean: bool,
    scale: float,
    keep: Tensor | None,
    indices: Tensor,
    weights: Tensor,
    grad_output: Tensor,
    grad_weights: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens = Tokens(query, key, value, indices.shape[-1], euclidean, scale, keep=keep)
    return backward_cpu(tokens, indices, weights, grad_output, grad_weights)


@torch.library.register_fake("nearwise::knn_attention_backward")
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    euclidean: bool,
    scale: float,
    keep: Tensor | None,
    indices: Tensor,
    weights: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = (interleaved(query), interleaved(key), interleaved(value))
    return *grads, weights.new_empty(weights.shape)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, _, euclidean, scale, bias, *_, keep = inputs
    _, indices, weights = output
    ctx.save_for_backward(query, key, value, keep, indices, weights)
    ctx.euclidean, ctx.scale = euclidean, scale
    ctx.bias_shape = None if bias is None or not bias.requires_grad else bias.shape


def _gradients(ctx: Any, grad_output: Tensor, _: Tensor, grad_weights: Tensor) -> tuple[Any, ...]:
    query, key, value, keep, indices, weights = ctx.saved_tensors
    slots = (indices, weights, grad_output, grad_weights)
    if torch.is_grad_enabled():  # the gradients will be differentiated
        n_slots = indices.shape[-1]
        tokens = Tokens(query, key, value, n_slots, ctx.euclidean, ctx.scale, keep=keep)
        *grads, grad_scores = backward_plain(tokens, *slots)
    else:
        tensors = (query, key, value)
        *grads, grad_scores = _backward(*tensors, ctx.euclidean, ctx.scale, keep, *slots)
    grad_bias = None
    if ctx.bias_shape is not None:
        # Empty slots add a gradient of 0.
        at = indices.clamp_min(0).long()
        grad_bias = grad_scores.new_zeros(ctx.bias_shape).scatter_add_(-1, at, grad_scores)
    return *grads, None, None, None, grad_bias, *(None,) * 5


torch.library.register_autograd(
    "nearwise::knn_attention", _gradients, setup_context=_keep_for_backward
)
