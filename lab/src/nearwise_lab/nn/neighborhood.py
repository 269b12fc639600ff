"""Attention to a fixed number of tokens around each, on a line or a grid: NATTEN's semantics."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from nearwise.functional.tokens.problem import check_whole
from nearwise.nn.tokens.base import BlockOptions, Masks, TokenAttention, check_tokens
from nearwise.nn.tokens.sampling import grid_of

_SIZES = ("kernel_size", "stride", "dilation", "causal")


class NeighborhoodAttention1D(TokenAttention):
    """Every token attends to the `kernel_size` tokens around it on a line.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, heads (8 by default), and what every layer takes: see `BlockOptions`.
    kernel_size : int, default=7
        Tokens a token attends to; near an end the window moves inward and stays whole.
    stride : int, default=1
        Tokens in a row that share a window.
    dilation : int, default=1
        Step between the tokens of a window.
    causal : bool, default=False
        Whether a token attends only to itself and tokens before it.
    num_prefix_tokens : int, default=0
        Class and register tokens at the front: they attend to all tokens, and all to them.

    References
    ----------
    Hassani et al., "Neighborhood Attention Transformer", CVPR 2023; "Generalized Neighborhood
    Attention", 2025 (stride); github.com/SHI-Labs/NATTEN.

    Examples
    --------
    >>> layer = NeighborhoodAttention1D(24, num_heads=3, kernel_size=5)
    >>> layer(torch.randn(2, 17, 24)).shape
    torch.Size([2, 17, 24])
    """

    n_dims = 1
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    causal: tuple[bool, ...]

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        kernel_size: Any = 7,
        stride: Any = 1,
        dilation: Any = 1,
        causal: Any = False,
        num_prefix_tokens: int = 0,
        **block: Unpack[BlockOptions],
    ) -> None:
        super().__init__(dim, num_heads, **block)
        n_dims = self.n_dims
        sizes = (kernel_size, stride, dilation, causal)
        for name, size in zip(_SIZES, sizes, strict=True):
            each = tuple(size) if isinstance(size, Sequence) else (size,) * n_dims
            if len(each) != n_dims:
                raise ValueError(f"{name}={size} must have {n_dims} entries, or be one number.")
            for number in each if name != "causal" else ():
                check_whole(name, number)
            setattr(self, name, each)
        if any(s > k for s, k in zip(self.stride, self.kernel_size, strict=True)):
            raise ValueError(
                f"stride={self.stride} must be at most kernel_size={self.kernel_size}."
            )
        check_whole("num_prefix_tokens", num_prefix_tokens, 0)
        self.num_prefix_tokens = num_prefix_tokens

    def extra_repr(self) -> str:
        """Return the neighborhood."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in _SIZES)

    def _grid(self, n_tokens: int) -> tuple[int, ...]:
        """Shape of the grid of tokens after the prefix."""
        return (n_tokens,)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        if masks.is_causal and self.num_prefix_tokens:
            raise ValueError("is_causal is about a line of tokens: leave out num_prefix_tokens.")
        return self._dense(query, key, value, masks, self._pattern(query.shape[2], query.device))

    def _pattern(self, n_tokens: int, device: torch.device) -> Tensor:
        """Boolean mask (N, N), True where a token may attend; all pairs are scored."""
        n_prefix = self.num_prefix_tokens
        near = torch.ones(1, 1, dtype=torch.bool, device=device)
        for axis, length in enumerate(self._grid(n_tokens - n_prefix) if n_tokens else (0,)):
            sizes = (getattr(self, name)[axis] for name in _SIZES)
            along = neighbors_along(length, device, *sizes)
            # Tokens at the same place of one axis and of the other.
            both = near[:, None, :, None] & along[:, None]
            near = both.flatten(2).flatten(0, 1)
        if n_prefix:  # they attend to all, and all to them
            near = torch.cat([near.new_ones(len(near), n_prefix), near], dim=1)
            near = torch.cat([near.new_ones(n_prefix, near.shape[1]), near])
        return near


class NeighborhoodAttention2D(NeighborhoodAttention1D):
    """Every token attends to the `kernel_size` x `kernel_size` tokens around it on a grid.

    Parameters
    ----------
    dim, num_heads, num_prefix_tokens, **block
        As for `NeighborhoodAttention1D`.
    kernel_size, stride, dilation, causal : one, or one each for rows and columns
        As for `NeighborhoodAttention1D`.
    grid_size : tuple of int, optional
        Rows and columns of the grid; default a square. An input of shape (batch, rows, columns,
        dim) brings its own.
    """

    n_dims = 2

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        kernel_size: int | tuple[int, int] = 7,
        stride: int | tuple[int, int] = 1,
        dilation: int | tuple[int, int] = 1,
        causal: bool | tuple[bool, bool] = False,
        grid_size: tuple[int, int] | None = None,
        num_prefix_tokens: int = 0,
        **block: Unpack[BlockOptions],
    ) -> None:
        sizes: Any = dict(zip(_SIZES, (kernel_size, stride, dilation, causal), strict=True))
        super().__init__(dim, num_heads, num_prefix_tokens=num_prefix_tokens, **sizes, **block)
        self.grid_size = grid_size

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, **masks: Any) -> Tensor:
        """Apply attention to tokens; arguments as in `TokenAttention.forward`, no candidates.

        Tokens may also come as a grid (batch, rows, columns, dim), and go as one.
        """
        if x.ndim != 4:
            return super().forward(x, attn_mask, **masks)
        check_tokens(x.flatten(1, 2), self.dim)
        before, self.grid_size = self.grid_size, (x.shape[1], x.shape[2])
        try:
            output = super().forward(x.flatten(1, 2), attn_mask, **masks)
        finally:
            self.grid_size = before
        return output.view_as(x)

    def _grid(self, n_tokens: int) -> tuple[int, ...]:
        return grid_of(n_tokens, self.grid_size, self.num_prefix_tokens)


def neighbors_along(
    length: int, device: torch.device, kernel: int, stride: int, dilation: int, causal: bool
) -> Tensor:
    """Boolean mask (length, length) of attention along one axis.

    Raises ValueError if a window does not fit.
    """
    if length and kernel * dilation > length:
        raise ValueError(
            f"A neighborhood of kernel_size={kernel} with dilation={dilation} spans "
            f"{kernel * dilation} tokens, but there are {length} along this axis. Lower one of "
            "them."
        )
    at = torch.arange(length, device=device)
    # Tokens one dilation apart form a group of their own, within which windows are dense.
    group, rank = at % dilation, at // dilation
    size = (length - group + dilation - 1) // dilation
    if causal:
        leader = (rank // stride * stride + stride - 1).minimum(size - 1)
        start = (leader - kernel + 1).clamp_min(0)
    else:
        leader = (rank // stride * stride + stride // 2).minimum(size - 1)
        start = (leader - kernel // 2).clamp_min(0).minimum(size - kernel)
    offset = rank - start[:, None]
    near = (group == group[:, None]) & (offset >= 0) & (offset < kernel)
    return near & (rank <= rank[:, None]) if causal else near
