"""From an image to tokens: scaled pixels, patches, class and register tokens, positions."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class PixelScale:
    """What turns uint8 images into a network's input.

    Parameters
    ----------
    mean, std : tuple of float
        Of each channel, in [0, 1]; the input has mean 0 and deviation 1.
    size : int or None
        Side that images are brought to (bilinear, smoothed where they shrink); None keeps them.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Scale uint8 images (B, channels, height, width) to float32."""
        return self.of_unit(images.float() / 255)

    def of_unit(self, pixels: Tensor) -> Tensor:
        """Scale images in [0, 1], (B, channels, height, width), in the same way."""
        if self.size is not None and pixels.shape[-2:] != (self.size, self.size):
            shrinks = min(pixels.shape[-2:]) > self.size
            pixels = F.interpolate(
                pixels, (self.size, self.size), mode="bilinear", antialias=shrinks
            )
        mean, std = (
            pixels.new_tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std)
        )
        return (pixels - mean) / std


Positions = Literal["learned", "sincos", "sincos-2d", "none"]


class PatchEmbedding(nn.Module):
    """Cut images into patches and project each to a token.

    Parameters
    ----------
    patch_size : int
        Side of a patch in pixels.
    in_channels : int
    dim : int
        Width of a token.
    norm : bool, default=False
        Whether tokens pass a LayerNorm.
    """

    def __init__(self, patch_size: int, in_channels: int, dim: int, norm: bool = False) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Turn images (B, C, H, W) into tokens (B, N, dim), row by row."""
        tokens: Tensor = self.norm(self.proj(images).flatten(2).transpose(1, 2))
        return tokens


class TokenPositions(nn.Module):
    """Add to each token where it is.

    Parameters
    ----------
    kind : {"learned", "sincos", "sincos-2d", "none"}
        "sincos" counts all tokens in a row, with the prefix; "sincos-2d" encodes row and column
        in half of the channels each, and leaves the prefix as it is.
    grid_size : tuple of int
        Rows and columns of patches.
    num_prefix_tokens : int
        Class and register tokens before them.
    dim : int
        Width of a token; even for "sincos", a multiple of 4 for "sincos-2d".
    """

    def __init__(
        self, kind: Positions, grid_size: tuple[int, int], num_prefix_tokens: int, dim: int
    ) -> None:
        super().__init__()
        if kind not in get_args(Positions):
            known = ", ".join(get_args(Positions))
            raise ValueError(f"positions={kind!r} is not one of {known}.")
        divisor = {"sincos": 2, "sincos-2d": 4}.get(kind, 1)
        if dim % divisor:
            raise ValueError(f"positions={kind!r} need a dim that {divisor} divides; got {dim}.")
        self.kind = kind
        n_tokens = num_prefix_tokens + math.prod(grid_size)
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(1, n_tokens, dim))
            nn.init.trunc_normal_(self.table, std=0.02)
        elif kind == "sincos":
            at = torch.arange(n_tokens, dtype=torch.float)
            self.register_buffer("table", waves(at, dim, interleave=True)[None], persistent=False)
        elif kind == "sincos-2d":
            rows, columns = (torch.arange(n, dtype=torch.float) for n in grid_size)
            where = torch.cartesian_prod(rows, columns)
            halves = [waves(where[:, axis], dim // 2, interleave=False) for axis in (0, 1)]
            table = torch.cat([torch.zeros(num_prefix_tokens, dim), torch.cat(halves, dim=1)])
            self.register_buffer("table", table[None], persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Add positions to tokens (B, N, dim)."""
        if self.kind == "none":
            return tokens
        return tokens + self.table.to(tokens.dtype)


def waves(at: Tensor, dim: int, interleave: bool) -> Tensor:
    """Sines and cosines (n, dim) of positions (n,), of wavelengths from 2 pi to 10,000 x 2 pi.

    References
    ----------
    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, sec. 3.5.
    """
    frequency = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(10000.0) / dim))
    angles = at[:, None] * frequency
    both = (angles.sin(), angles.cos())
    return torch.stack(both, dim=-1).flatten(1) if interleave else torch.cat(both, dim=1)
