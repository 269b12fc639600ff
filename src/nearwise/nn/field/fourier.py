"""Random Fourier features of coordinates."""

from collections.abc import Sequence

import torch
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
