"""Embeddings of numeric columns: a short vector per number."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class PLRLiteEmbedding(nn.Module):
    """Learned periodic features, one linear map shared by all columns, ReLU.

    ``x -> ReLU(W [sin(2 pi c_f x), cos(2 pi c_f x)] + b)`` with separate frequencies ``c_f`` for
    each column f.

    Parameters
    ----------
    n_features : int
        Number of numeric columns F, at least 1.
    dim : int, default=16
        Width d of the vector of one number.
    n_frequencies : int, default=32
        Learned frequencies per column.
    frequency_scale : float, default=0.1
        Initial standard deviation of the frequencies, in cycles per unit of the (standardised)
        column. Larger values start less smooth.

    References
    ----------
    Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning",
    NeurIPS 2022; the "lite" form of its reference code.

    Examples
    --------
    >>> PLRLiteEmbedding(3, dim=8)(torch.zeros(5, 3)).shape
    torch.Size([5, 3, 8])
    """

    def __init__(
        self,
        n_features: int,
        dim: int = 16,
        n_frequencies: int = 32,
        frequency_scale: float = 0.1,
    ) -> None:
        super().__init__()
        _check_sizes(n_features=n_features, dim=dim, n_frequencies=n_frequencies)
        self.frequencies = nn.Parameter(torch.randn(n_features, n_frequencies) * frequency_scale)
        self.linear = nn.Linear(2 * n_frequencies, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Embed `x` of shape (B, F) as (B, F, d)."""
        _check_columns(x, self.frequencies.shape[0])
        sin, cos = _SinCos.apply(x.unsqueeze(-1) * (2 * math.pi * self.frequencies))
        # Applying the linear map in two halves avoids a copy of the widest tensor.
        of_sin, of_cos = self.linear.weight.chunk(2, dim=1)
        mapped = F.linear(sin, of_sin, self.linear.bias)
        return torch.relu(mapped + F.linear(cos, of_cos))


class _SinCos(torch.autograd.Function):
    """Sine and cosine together: each is the derivative of the other, up to sign."""

    @staticmethod
    def forward(ctx: Any, angle: Tensor) -> tuple[Tensor, Tensor]:
        sin, cos = torch.sin(angle), torch.cos(angle)
        ctx.save_for_backward(sin, cos)
        return sin, cos

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        sin, cos = ctx.saved_tensors
        of_sin, of_cos = grad_outputs
        return (of_sin * cos).addcmul_(of_cos, sin, value=-1)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}.")


def _check_columns(x: Tensor, n_features: int) -> None:
    if x.ndim != 2 or x.shape[1] != n_features:
        raise ValueError(
            f"x must have shape (n_rows, {n_features}), got {tuple(x.shape)}. "
            f"Pass one column for each of the {n_features} numeric features."
        )
