"""Sums over the ranked neighbors of tokens, in which each rank has factors of its own."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.functional.operators import operator
from nearwise.functional.threads import Threads
from nearwise.functional.tokens.implementation import implementation_for, only_plain
from nearwise.functional.tokens.pairs import at_least_single, gather_slots, gather_tokens, rows_of
from nearwise_lab.nn import slot_kernels as kernels


def differentiate(name: str, undo: Any, plain: Callable[..., Tensor]) -> None:
    """Give the operator ``nearwise::name`` of (value, indices, weights, kernel) its gradients.

    `undo` is the operator ``nearwise::name_backward`` of the gradient of the output and the
    arguments; `plain` is the operator in torch operations, by which gradients have gradients.
    """

    def gradients(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        value, indices, weights, kernel = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradients will be differentiated
            pull = torch.func.vjp(lambda v, *of: plain(v, indices, *of), value, weights, kernel)[1]
            grad_value, grad_weights, grad_kernel = pull(grad_output)
        else:
            grad_value, grad_weights, grad_kernel = undo(*ctx.saved_tensors, grad_output)
        return grad_value, None, grad_weights, grad_kernel

    torch.library.register_fake(f"nearwise::{name}_backward", _alike)
    torch.library.register_autograd(f"nearwise::{name}", gradients, setup_context=_keep)


def _alike(
    value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    like = (x.new_empty(x.shape) for x in (value, weights, kernel))
    grad_value, grad_weights, grad_kernel = like
    return grad_value, grad_weights, grad_kernel


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def slot_mix(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    """Mix the values of ranked neighbors: ``sum_k weights[k] * value[indices[k]] @ kernel[k]``.

    Of value (B, H, M, C), indices and weights (B, H, N, K; -1 and 0 in empty slots) and kernel (K,
    C, D) makes (B, H, N, D). One rank's values live at a time, and what is kept for the backward
    pass is O(N K); while a model is exported, and where the plain implementation is forced, those
    of all ranks do.
    """
    if only_plain():
        return _plain_mix(value, indices, weights, kernel)
    mixed: Tensor = _mix(value, indices.to(torch.int32), weights, kernel)
    return mixed


def _plain_mix(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    neighbors = gather_slots(value, indices.long())
    return (weights[..., None] * neighbors).flatten(-2) @ kernel.flatten(0, 1)


@operator("slot_mix")
def _mix(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    value, weights, kernel = (x.detach() for x in (value, weights, kernel))
    # In single precision at least: the sum over ranks would lose what each adds.
    output = _wide(value.new_zeros(*indices.shape[:3], kernel.shape[2]))
    value = _after_empty(value)
    for k in range(kernel.shape[0]):
        output += (_of_rank(value, indices, k) * weights[..., k, None]) @ kernel[k]
    return output.to(value.dtype)


@torch.library.register_fake("nearwise::slot_mix")
def _(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    return value.new_empty(*indices.shape[:3], kernel.shape[2])


@operator("slot_mix_backward")
def _undo_mix(
    value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    value, weights, kernel, grad_output = (
        x.detach() for x in (value, weights, kernel, grad_output)
    )
    batch, heads, n_tokens, width = value.shape
    grad_value = _wide(value.new_zeros(batch * heads * (n_tokens + 1), width))
    value = _after_empty(value)
    grad_weights, grad_kernel = torch.empty_like(weights), torch.empty_like(kernel)
    flat_grad = grad_output.flatten(0, 2)
    for k in range(kernel.shape[0]):
        rows = _of_rank(value, indices, k)
        weight = weights[..., k, None]
        grad_kernel[k] = (rows * weight).flatten(0, 2).mT @ flat_grad
        slopes = grad_output @ kernel[k].mT
        grad_weights[..., k] = (rows * slopes).sum(-1)
        at = rows_of(indices[..., k : k + 1] + 1, n_tokens + 1)
        grad_value.index_add_(0, at, (slopes * weight).flatten(0, 2).to(grad_value.dtype))
    grad_value = grad_value.to(value.dtype).view(value.shape)[:, :, 1:].contiguous()
    return grad_value, grad_weights, grad_kernel


differentiate("slot_mix", _undo_mix, _plain_mix)


def _after_empty(value: Tensor) -> Tensor:
    """Values after a row of zeros, which is that of empty slots."""
    return F.pad(value, (0, 0, 1, 0))


def _of_rank(value: Tensor, indices: Tensor, k: int) -> Tensor:
    """Values (B, H, N, C) of the neighbors of one rank, of values `_after_empty`."""
    return gather_tokens(value, indices[..., k : k + 1] + 1)[..., 0, :]


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def slot_sum(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    """Add up the values of ranked neighbors: ``sum_k weights[k] * kernel[k] * value[indices[k]]``.

    As `slot_mix` with a kernel (K, C), to (B, H, N, C); on a CPU what is kept for the backward pass
    is O(N K).
    """
    if implementation_for(value) != "cpu":
        return _plain_sum(value, indices, weights, kernel)
    whole = at_least_single(value)
    parts = (indices.to(torch.int32), weights.to(whole.dtype), kernel.to(whole.dtype))
    summed: Tensor = _sum(whole, *parts)
    return summed.to(value.dtype)


def _plain_sum(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    neighbors = gather_slots(value, indices.long())
    factors = weights.masked_fill(indices < 0, 0.0)[..., None] * kernel
    return (factors * neighbors).sum(-2)


@operator("slot_sum")
def _sum(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    value, flat = value.detach().contiguous(), kernel.detach().contiguous().flatten()
    output = value.new_empty(*indices.shape[:3], value.shape[3])
    at, factors = _by_head(indices), _by_head(weights)
    n_keys, n_queries = (x.shape[2] * x.shape[3] for x in (value, output))

    def run(here: slice) -> None:
        for g in range(here.start, here.stop):
            kernels.add_slots(
                value.view(-1).numpy(),
                g * n_keys,
                at[g],
                factors[g],
                flat.numpy(),
                output.view(-1).numpy(),
                g * n_queries,
            )

    with Threads(indices.numel() * value.shape[3]) as threads:
        threads.run(run, len(at))
    return output


@torch.library.register_fake("nearwise::slot_sum")
def _(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    return value.new_empty(*indices.shape[:3], value.shape[3])


@operator("slot_sum_backward")
def _undo_sum(
    value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    value, flat = value.detach().contiguous(), kernel.detach().contiguous().flatten()
    grad_output = grad_output.contiguous()
    grad_value = torch.zeros_like(value)
    grad_weights = weights.new_zeros(weights.shape)
    at, factors, slopes = (_by_head(x) for x in (indices, weights, grad_weights))
    # Each head adds to a kernel of its own: threads would tread on a common one.
    grad_kernel = flat.new_zeros(len(at), len(flat))
    n_keys, n_queries = (x.shape[2] * x.shape[3] for x in (value, grad_output))

    def run(here: slice) -> None:
        for g in range(here.start, here.stop):
            kernels.undo_slots(
                value.view(-1).numpy(),
                g * n_keys,
                at[g],
                factors[g],
                flat.numpy(),
                grad_output.view(-1).numpy(),
                g * n_queries,
                grad_value.view(-1).numpy(),
                slopes[g],
                grad_kernel[g].numpy(),
            )

    with Threads(3 * indices.numel() * value.shape[3]) as threads:
        threads.run(run, len(at))
    return grad_value, grad_weights, grad_kernel.sum(0).view(kernel.shape)


differentiate("slot_sum", _undo_sum, _plain_sum)


def _by_head(x: Tensor) -> Any:
    """Heads of all batch items (B * H, N, K) as an array."""
    return x.detach().contiguous().flatten(0, 1).numpy()
