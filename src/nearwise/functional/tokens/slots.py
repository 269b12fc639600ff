"""Sums over the ranked neighbors of tokens, in which each rank has factors of its own."""

from typing import Any

import torch
from torch import Tensor

from nearwise.functional.operators import operator
from nearwise.functional.threads import Threads
from nearwise.functional.tokens.implementation import implementation_for
from nearwise.functional.tokens.kernels import slots as kernels
from nearwise.functional.tokens.pairs import at_least_single, gather_tokens
from nearwise.functional.tokens.slot_gradients import differentiate


def slot_sum(value: Tensor, indices: Tensor, weights: Tensor, kernel: Tensor) -> Tensor:
    """Add up the values of ranked neighbors: ``sum_k weights[k] * kernel[k] * value[indices[k]]``.

    Parameters
    ----------
    value : Tensor of shape (B, H, M, C)
    indices : int Tensor of shape (B, H, N, K)
        Position of the neighbor of each rank; -1 in empty slots.
    weights : Tensor of shape (B, H, N, K)
        Its factor.
    kernel : Tensor of shape (K, C)
        Factors of each rank's channels.

    Returns
    -------
    output : Tensor of shape (B, H, N, C)
        On a CPU what is kept for the backward pass is O(N K).
    """
    if implementation_for(value, indices.shape[-1]) != "cpu":
        empty = indices < 0
        neighbors = gather_tokens(value, indices.long().clamp_min(0))
        factors = weights.masked_fill(empty, 0.0)[..., None] * kernel
        return (factors * neighbors).sum(-2)
    whole = at_least_single(value)
    parts = (indices.to(torch.int32), weights.to(whole.dtype), kernel.to(whole.dtype))
    summed: Tensor = _sum(whole, *parts)
    return summed.to(value.dtype)


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
def _undo(
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


differentiate("slot_sum", _undo)


def _by_head(x: Tensor) -> Any:
    """Heads of all batch items (B * H, N, K) as an array."""
    return x.detach().contiguous().flatten(0, 1).numpy()
