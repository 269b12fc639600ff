"""Gradients of the operators over ranked neighbors, which all have the same arguments."""

from typing import Any

import torch
from torch import Tensor


def differentiate(name: str, undo: Any) -> None:
    """Give the operator ``nearwise::name`` of (value, indices, weights, kernel) its gradients.

    Parameters
    ----------
    name : str
    undo : callable
        The operator ``nearwise::name_backward``: gradients of value, weights and kernel from the
        arguments and the gradient of the output.
    """

    def gradients(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
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
