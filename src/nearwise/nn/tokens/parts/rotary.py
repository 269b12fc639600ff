"""Rotary positions, with xPos scaling as an option."""

import torch
from torch import Tensor, nn

_THETA = 10000.0


class RotaryPositions(nn.Module):
    """Turn queries and keys so that their products depend on how far apart the tokens are.

    Parameters
    ----------
    head_dim : int
        Width of a head; even.
    xpos_scale_base : float, optional
        Tokens after which xPos has faded by its first step; default: no xPos.

    References
    ----------
    Su et al., "RoFormer", 2021; Sun et al., "A Length-Extrapolatable Transformer", 2022.
    """

    inv_freq: Tensor
    fading: Tensor

    def __init__(self, head_dim: int, xpos_scale_base: float | None = None) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"Rotary positions need an even head_dim; got {head_dim}.")
        if xpos_scale_base is not None and xpos_scale_base <= 0:
            raise ValueError(f"xpos_scale_base={xpos_scale_base} must be positive.")
        self.head_dim, self.xpos_scale_base = head_dim, xpos_scale_base
        # Positions are no state: they follow from the width, in full precision.
        self.register_buffer("inv_freq", torch.empty(0), persistent=False)
        self.register_buffer("fading", torch.empty(0), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the frequencies."""
        step = torch.arange(0, self.head_dim, 2).float()
        self.inv_freq = 1.0 / (_THETA ** (step / self.head_dim))
        self.fading = (step + 0.4 * self.head_dim) / (1.4 * self.head_dim)

    def turn(self, x: Tensor, positions: Tensor, middle: int, is_key: bool) -> Tensor:
        """Turn queries or keys.

        Parameters
        ----------
        x : Tensor of shape (..., n, head_dim)
        positions : Tensor of shape (n,)
            Where each is.
        middle : int
            Position at which xPos neither fades nor swells.
        is_key : bool

        Returns
        -------
        turned : Tensor of shape (..., n, head_dim)
        """
        at = positions.to(torch.float32)
        angles = (at[:, None] * self.inv_freq.float()).repeat(1, 2)
        scale = torch.ones((), device=x.device)
        if self.xpos_scale_base is not None:
            power = (at - middle) / self.xpos_scale_base
            scale = (self.fading.float() ** power[:, None]).repeat(1, 2)
            scale = 1 / scale if is_key else scale
        first, second = x.chunk(2, dim=-1)
        swapped = torch.cat([-second, first], dim=-1)
        cos, sin = (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)
        return x * cos + swapped * sin
