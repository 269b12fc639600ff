"""Where points of an image lie: (y, x) in [-1, 1], the middles of the corner pixels at the ends.

Everything public speaks (y, x). Only `sample_images` needs the (x, y) of torch, and gets it from
the one helper `to_xy`.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def to_xy(coords: Tensor) -> Tensor:
    """Turn (y, x) into the (x, y) that torch's `grid_sample` reads."""
    return coords.flip(-1)


def sample_images(images: Tensor, coords: Tensor) -> Tensor:
    """Read images between their pixels, bilinear; beyond the border the border goes on.

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
    grid = to_xy(coords).to(images.dtype)[:, :, None]
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
