"""Coordinates, Fourier features and layers of neural fields; coordinates are (y, x) in [-1, 1]."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.nn.dense_attention import dense_attention

PHASE_PER_PIXEL = 0.96  # rad, deviation of the phase between neighboring pixels


def default_scale(side: int) -> float:
    """Deviation of the frequencies (rad per unit) for an image with `side` pixels along an axis.

    Neighboring pixels are 2 / (side - 1) apart; this scale makes their phases differ by about
    one radian, whatever the resolution. For 32 pixels it is 14.9.
    """
    return PHASE_PER_PIXEL * max(1, side - 1) / 2


class GaussianFourierFeatures(nn.Module):
    """Sines and cosines of coordinates along random directions.

    ``[sin(x B), cos(x B)]`` with a fixed ``B ~ N(0, scale^2)``, which is saved with the weights:
    another one makes another model.

    Parameters
    ----------
    n_features : int
        Directions; the output is twice as wide.
    scale : sequence of float
        Deviation for each coordinate, in radians per unit of it (there is no factor 2 pi).

    References
    ----------
    Tancik et al., "Fourier Features Let Networks Learn High Frequency Functions in Low
    Dimensional Domains", NeurIPS 2020.
    """

    frequencies: Tensor

    def __init__(self, n_features: int, scale: Sequence[float]) -> None:
        super().__init__()
        drawn = torch.randn(len(scale), n_features) * torch.tensor(list(scale))[:, None]
        self.register_buffer("frequencies", drawn)

    def forward(self, coords: Tensor) -> Tensor:
        """Turn coordinates (..., d) into features (..., 2 * n_features)."""
        # not a matrix product: autocast would round phases of 50 rad to bfloat16
        phase = sum(
            coords[..., i, None] * self.frequencies[i] for i in range(len(self.frequencies))
        )
        assert isinstance(phase, Tensor)
        return torch.cat([phase.sin(), phase.cos()], dim=-1)


_SLACK = 1e-4  # beyond [-1, 1]: rounding, not a mistake


def coordinate_grid(height: int, width: int, *, device: torch.device | str | None = None) -> Tensor:
    """Return the coordinates (height * width, 2) of an image's pixels, row by row.

    Parameters
    ----------
    height, width : int
        At least 1; the only row or column of one lies in the middle.
    device : device, optional

    Returns
    -------
    coords : float32 Tensor of shape (height * width, 2)
        (y, x) in [-1, 1].
    """
    axes = [
        torch.linspace(-1, 1, n, device=device) if n > 1 else torch.zeros(1, device=device)
        for n in (height, width)
    ]
    return torch.cartesian_prod(*axes)


def sample_images(images: Tensor, coords: Tensor) -> Tensor:
    """Read images between their pixels, bilinear; beyond the border its values are repeated.

    Parameters
    ----------
    images : float Tensor of shape (B, C, H, W)
    coords : Tensor of shape (B, Q, 2) or (Q, 2)
        (y, x), -1 and 1 being the middles of the first and last pixels.

    Returns
    -------
    values : Tensor of shape (B, Q, C)
    """
    coords = coords.expand(len(images), *coords.shape[-2:])
    # torch's `grid_sample` reads (x, y)
    grid = coords.flip(-1).to(images.dtype)[:, :, None]
    found = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=True)
    return found[..., 0].transpose(1, 2)


def check_coords(coords: Tensor, batch: int) -> None:
    """Refuse coordinates of a wrong shape, or outside the image.

    Raises ValueError if they are not (Q, 2) or (`batch`, Q, 2), not finite, or outside [-1, 1].
    """
    fits = coords.ndim == 2 or (coords.ndim == 3 and len(coords) in (1, batch))
    if not fits or coords.shape[-1] != 2 or not coords.is_floating_point():
        raise ValueError(
            f"coords must be floating, (points, 2) or ({batch}, points, 2), each (y, x); got "
            f"{tuple(coords.shape)} of {coords.dtype}."
        )
    if torch.compiler.is_compiling() or not coords.numel():
        return
    largest = coords.abs().max()
    if not largest <= 1 + _SLACK:  # also where it is NaN
        raise ValueError(
            f"coords must be finite and lie in [-1, 1], from the first to the last pixel; the "
            f"largest magnitude is {largest.item():.6g}. Divide pixel positions p of n by "
            "(n - 1) / 2 and subtract 1."
        )


class Attention(nn.Module):
    """Pre-norm attention of tokens to a context with a norm of its own, or among themselves."""

    def __init__(
        self, dim: int, num_heads: int, head_dim: int, context_dim: int | None = None
    ) -> None:
        super().__init__()
        inner = num_heads * head_dim
        self.head_dim = head_dim
        self.norm = nn.LayerNorm(dim)
        self.context_norm = None if context_dim is None else nn.LayerNorm(context_dim)
        self.to_query = nn.Linear(dim, inner, bias=False)
        self.to_pair = nn.Linear(context_dim or dim, 2 * inner, bias=False)
        self.out = nn.Linear(inner, dim)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Update (B, N, dim) of tokens (B, N, dim), or of (1, N, dim) that all images share.

        Shared ones are normed and projected once.
        """
        x = self.norm(x)
        if self.context_norm is not None:
            assert context is not None
            context = self.context_norm(context)
        else:
            context = x
        query = self._heads(self.to_query(x))
        key, value = (self._heads(part) for part in self.to_pair(context).chunk(2, dim=-1))
        query = query.expand(len(key), -1, -1, -1)
        found = dense_attention(query, key, value)
        update: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return update

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self.head_dim)).transpose(1, 2)


class FeedForward(nn.Module):
    """Pre-norm feed-forward of four times the width, gated by GELU.

    Shazeer, "GLU Variants Improve Transformer", 2020.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, 8 * dim)
        self.narrow = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens (..., dim), each on its own."""
        values, gate = self.widen(self.norm(x)).chunk(2, dim=-1)
        update: Tensor = self.narrow(values * F.gelu(gate))
        return update


class ProcessLayer(nn.Module):
    """A transformer layer: tokens attend to each other, then each passes a feed-forward layer."""

    def __init__(self, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.attend = Attention(dim, num_heads, head_dim)
        self.think = FeedForward(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens (B, N, dim)."""
        x = x + self.attend(x)
        return x + self.think(x)


class Stage(nn.Module):
    """One stage of the cascade: fixed tokens read the image, then the former stage is added.

    `table` (N, dim) are the tokens before they have read anything; it is not learned. The first
    stage has no `former_dim`.
    """

    table: Tensor

    def __init__(
        self,
        table: Tensor,
        context_dim: int,
        former_dim: int | None,
        cross_heads: int,
        self_heads: int,
        head_dim: int,
    ) -> None:
        super().__init__()
        dim = table.shape[1]
        self.register_buffer("table", table[None], persistent=False)
        self.read = Attention(dim, cross_heads, head_dim, context_dim)
        self.from_former = None if former_dim is None else nn.Linear(former_dim, dim)
        self.process = ProcessLayer(dim, self_heads, head_dim)

    def forward(self, points: Tensor, former: Tensor | None) -> Tensor:
        """Turn an image's points (B, M, context_dim) into tokens (B, N, dim)."""
        # the queries are the same for all images: the table goes in with a batch of one
        tokens = self.table + self.read(self.table, points)
        if self.from_former is not None:
            tokens = tokens + self.from_former(former)
        processed: Tensor = self.process(tokens)
        return processed


class Decoder(nn.Module):
    """Values of an image at any coordinates, read from its tokens."""

    def __init__(
        self, query_dim: int, token_dim: int, channels: int, num_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.read = Attention(query_dim, num_heads, head_dim, token_dim)
        self.think = FeedForward(query_dim)
        self.to_pixel = nn.Linear(query_dim, channels)

    def features(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Return the input of the last layer, (B, Q, query_dim)."""
        x = queries + self.read(queries, tokens)
        features: Tensor = x + self.think(x)
        return features
