"""The fused k-NN attention as operators of torch: with gradients, under torch.compile."""

from typing import Any

import torch
from torch import Tensor

from nearwise.functional.operators import operator
from nearwise.functional.tokens.cpu import attend_cpu, backward_cpu, interleaved
from nearwise.functional.tokens.implementation import registered
from nearwise.functional.tokens.pairs import at_least_single, gather_tokens, pair_scores
from nearwise.functional.tokens.problem import Found, Tokens


def attend_fused(tokens: Tokens, by: str) -> Found:
    """Attend by compiled loops ("cpu") or a registered implementation; what is kept is O(N K)."""
    return Found(*_forward(*tokens, by))


@operator("knn_attention")
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n_neighbors: int,
    squared: bool,
    scale: float,
    bias: Tensor | None,
    padding: Tensor | None,
    is_causal: bool,
    include_self: str,
    candidates: Tensor | None,
    keep: Tensor | None,
    by: str = "cpu",
) -> tuple[Tensor, Tensor, Tensor]:
    attend = attend_cpu if by == "cpu" else registered(by).attend
    masks = (bias, padding, is_causal, include_self, candidates, keep)
    found = attend(Tokens(query, key, value, n_neighbors, squared, scale, *masks))
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
    squared: bool,
    scale: float,
    keep: Tensor | None,
    indices: Tensor,
    weights: Tensor,
    grad_output: Tensor,
    grad_weights: Tensor,
    by: str = "cpu",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    no_masks = (None, None, False, "candidate", None)
    tokens = Tokens(query, key, value, indices.shape[-1], squared, scale, *no_masks, keep)
    backward = backward_cpu if by == "cpu" else registered(by).backward
    return backward(tokens, indices, weights, grad_output, grad_weights)


@torch.library.register_fake("nearwise::knn_attention_backward")
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    squared: bool,
    scale: float,
    keep: Tensor | None,
    indices: Tensor,
    weights: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = (interleaved(query), interleaved(key), interleaved(value))
    return *grads, weights.new_empty(weights.shape)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, _, squared, scale, bias, *_, keep, by = inputs
    _, indices, weights = output
    ctx.save_for_backward(query, key, value, keep, indices, weights)
    ctx.squared, ctx.scale, ctx.by = squared, scale, by
    ctx.bias_shape = None if bias is None or not bias.requires_grad else bias.shape


def _gradients(ctx: Any, grad_output: Tensor, _: Tensor, grad_weights: Tensor) -> tuple[Any, ...]:
    query, key, value, keep, indices, weights = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradients will be differentiated
        found = _differentiable_gradients(ctx, grad_output, grad_weights)
    else:
        arguments = (query, key, value, ctx.squared, ctx.scale, keep, indices, weights)
        found = _backward(*arguments, grad_output, grad_weights, ctx.by)
    *grads, grad_scores = found
    grad_bias = None
    if ctx.bias_shape is not None:
        # Empty slots have gradient 0, wherever it is added.
        at = indices.clamp_min(0).long()
        grad_bias = grad_scores.new_zeros(ctx.bias_shape).scatter_add_(-1, at, grad_scores)
    return *grads, None, None, None, grad_bias, *(None,) * 6


def _differentiable_gradients(
    ctx: Any, grad_output: Tensor, grad_weights: Tensor
) -> tuple[Tensor, ...]:
    """Gradients as of `_backward`, by torch operations, which have gradients themselves.

    The weights are an output of the forward pass: through them second derivatives reach its masks.
    """
    query, key, value, keep, indices, weights = ctx.saved_tensors
    at = indices.clamp_min(0).long()

    def attended(value: Tensor, weights: Tensor) -> Tensor:
        kept = weights if keep is None else weights * keep
        return (kept[..., None, :] @ gather_tokens(value, at))[..., 0, :]

    def scores(query: Tensor, key: Tensor) -> Tensor:
        return pair_scores(query, key, at, squared=ctx.squared, scale=ctx.scale)

    grad_value, slopes = torch.func.vjp(attended, value, weights)[1](grad_output)
    slopes = slopes + grad_weights
    grad_scores = weights * (slopes - (weights * slopes).sum(-1, keepdim=True))
    grad_query, grad_key = torch.func.vjp(scores, query, key)[1](at_least_single(grad_scores))
    return grad_query, grad_key, grad_value, grad_scores


torch.library.register_autograd(
    "nearwise::knn_attention", _gradients, setup_context=_keep_for_backward
)
