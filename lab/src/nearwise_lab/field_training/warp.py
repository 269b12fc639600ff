"""Two views of an image: affine maps of coordinates, and images that follow them."""

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

from nearwise_lab.nn.field.layers import coordinate_grid, sample_images


class AffineWarp(NamedTuple):
    """Maps ``x -> matrix x + shift`` of (y, x) coordinates, one per image.

    Attributes
    ----------
    matrix : Tensor of shape (B, 2, 2)
        Invertible.
    shift : Tensor of shape (B, 2)
    """

    matrix: Tensor
    shift: Tensor

    def to(self, device: torch.device) -> Self:
        """Move to a device."""
        return type(self)(self.matrix.to(device), self.shift.to(device))

    def points(self, coords: Tensor) -> Tensor:
        """Return where points (B, Q, 2) of the image come to lie in its view."""
        return coords @ self.matrix.transpose(1, 2) + self.shift[:, None]

    def origins(self, coords: Tensor) -> Tensor:
        """Where points (B, Q, 2) or (Q, 2) of the view come from: the inverse of `points`."""
        return (coords - self.shift[:, None]) @ self.inverse().transpose(1, 2)

    def inverse(self) -> Tensor:
        """Inverse of each matrix, (B, 2, 2)."""
        (a, b), (c, d) = (row.unbind(1) for row in self.matrix.unbind(1))
        turned = torch.stack([torch.stack([d, -b], 1), torch.stack([-c, a], 1)], 1)
        return turned / (a * d - b * c)[:, None, None]

    def images(self, images: Tensor) -> Tensor:
        """Draw the views of images (B, C, H, W); outside the image its border goes on.

        The value at a point of the image is that of the view at `points` of it.
        """
        height, width = images.shape[2:]
        grid = coordinate_grid(height, width, device=images.device)
        values = sample_images(images, self.origins(grid))
        return values.transpose(1, 2).unflatten(2, (height, width))


def random_warps(
    n: int,
    generator: torch.Generator,
    *,
    angle: float = 12.0,
    smallest: float = 0.85,
    shift: float = 0.1,
) -> AffineWarp:
    """Draw maps that turn, shrink and move, all uniformly.

    Parameters
    ----------
    n : int
    generator : torch.Generator
        On the CPU.
    angle : float, default=12
        Largest turn in degrees, either way.
    smallest : float in (0, 1], default=0.85
        Smallest scale; the largest is 1.
    shift : float, default=0.1
        Largest move along each axis, half the image being 1.

    Returns
    -------
    warps : AffineWarp of n maps, on the CPU
    """
    turn, scale, *moves = torch.rand(4, n, generator=generator)
    radians = (2 * turn - 1) * (angle * math.pi / 180)
    scale = smallest + (1 - smallest) * scale
    cosine, sine = scale * radians.cos(), scale * radians.sin()
    rows = [torch.stack([cosine, -sine], 1), torch.stack([sine, cosine], 1)]
    return AffineWarp(torch.stack(rows, 1), (2 * torch.stack(moves, 1) - 1) * shift)
