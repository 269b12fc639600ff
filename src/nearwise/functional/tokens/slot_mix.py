"""Sums over the ranked neighbors of tokens, in which each rank has a matrix of its own."""

import torch
from torch import Tensor

from nearwise.functional.operators import operator
from nearwise.functional.tokens.implementation import only_plain
from nearwise.functional.tokens.pairs import gather_tokens
from nearwise.functional.tokens.slot_gradients import differentiate


def slot_mix(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    """Mix the values of ranked neighbors: ``sum_k weights[k] * value[indices[k]] @ kernel[k]``.

    Parameters
    ----------
    value : Tensor of shape (B, H, M, C)
    indices : int Tensor of shape (B, H, N, K)
        Position of the neighbor of each rank; -1 in empty slots.
    weights : Tensor of shape (B, H, N, K)
        Its factor; 0 in empty slots.
    kernel : Tensor of shape (K, C, D)
        A matrix for each rank.

    Returns
    -------
    output : Tensor of shape (B, H, N, D)
        One rank's values live at a time, and what is kept for the backward pass is O(N K); while
        a model is exported, and where the plain implementation is forced, those of all ranks do.
    """
    if only_plain():
        neighbors = gather_tokens(value, indices.long().clamp_min(0))
        return (weights[..., None] * neighbors).flatten(-2) @ kernel.flatten(0, 1)
    mixed: Tensor = _mix(value, indices.to(torch.int32), weights, kernel)
    return mixed


@operator("slot_mix")
def _mix(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    value, weights, kernel = (x.detach() for x in (value, weights, kernel))
    # In single precision at least: the sum over ranks would lose what each adds.
    output = _wide(value.new_zeros(*indices.shape[:3], kernel.shape[2]))
    for k in range(kernel.shape[0]):
        output += (_of_rank(value, indices, k) * weights[..., k, None]) @ kernel[k]
    return output.to(value.dtype)


@torch.library.register_fake("nearwise::slot_mix")
def _(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    return value.new_empty(*indices.shape[:3], kernel.shape[2])


@operator("slot_mix_backward")
def _undo(
    value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    value, weights, kernel, grad_output = (
        x.detach() for x in (value, weights, kernel, grad_output)
    )
    batch, heads, n_tokens, width = value.shape
    grad_value = _wide(value.new_zeros(batch * heads * n_tokens, width))
    grad_weights, grad_kernel = torch.empty_like(weights), torch.empty_like(kernel)
    first = torch.arange(batch * heads, device=value.device).view(batch, heads, 1) * n_tokens
    flat_grad = grad_output.flatten(0, 2)
    for k in range(kernel.shape[0]):
        rows = _of_rank(value, indices, k)
        weight = weights[..., k, None]
        grad_kernel[k] = (rows * weight).flatten(0, 2).mT @ flat_grad
        slopes = grad_output @ kernel[k].mT
        grad_weights[..., k] = (rows * slopes).sum(-1)
        at = (indices[..., k].clamp_min(0) + first).flatten()
        grad_value.index_add_(0, at, (slopes * weight).flatten(0, 2).to(grad_value.dtype))
    return grad_value.to(value.dtype).view(value.shape), grad_weights, grad_kernel


differentiate("slot_mix", _undo)


def _of_rank(value: Tensor, indices: Tensor, k: int) -> Tensor:
    """Values (B, H, N, C) of the neighbors of one rank."""
    return gather_tokens(value, indices[..., k : k + 1].clamp_min(0))[..., 0, :]


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
