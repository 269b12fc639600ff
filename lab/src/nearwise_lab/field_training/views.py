"""Two views of an image: maps of coordinates, images that follow them, and their dense contrast."""

import math
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise_lab.nn.field import coordinate_grid, sample_images


class AffineWarp(NamedTuple):
    """Maps ``x -> matrix x + shift`` of (y, x) coordinates, one per image.

    `matrix` (B, 2, 2) is invertible; `shift` is (B, 2).
    """

    matrix: Tensor
    shift: Tensor

    def to(self, device: torch.device) -> Self:
        """Move to a device."""
        return type(self)(self.matrix.to(device), self.shift.to(device))

    def points(self, coords: Tensor) -> Tensor:
        """Return the positions of points (B, Q, 2) of the image in its view."""
        return coords @ self.matrix.transpose(1, 2) + self.shift[:, None]

    def origins(self, coords: Tensor) -> Tensor:
        """Positions in the image of points (B, Q, 2) or (Q, 2) of the view; inverse of `points`."""
        return (coords - self.shift[:, None]) @ torch.linalg.inv(self.matrix).transpose(1, 2)

    def images(self, images: Tensor) -> Tensor:
        """Draw the views of images (B, C, H, W); border values continue outside the image.

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
        On the CPU, as the maps.
    angle : float, default=12
        Largest turn in degrees, either way.
    smallest : float in (0, 1], default=0.85
        Smallest scale; the largest is 1.
    shift : float, default=0.1
        Largest move along each axis, half the image being 1.
    """
    turn, scale, *moves = torch.rand(4, n, generator=generator)
    radians = (2 * turn - 1) * (angle * math.pi / 180)
    scale = smallest + (1 - smallest) * scale
    cosine, sine = scale * radians.cos(), scale * radians.sin()
    rows = [torch.stack([cosine, -sine], 1), torch.stack([sine, cosine], 1)]
    return AffineWarp(torch.stack(rows, 1), (2 * torch.stack(moves, 1) - 1) * shift)


def dense_info_nce(
    anchors: Tensor,
    candidates: Tensor,
    places: Tensor,
    others: Tensor,
    *,
    temperature: float = 0.1,
    sigma: float = 0.08,
) -> Tensor:
    """Cross-entropy of finding the positions of a first view in a second one.

    The target of an anchor is spread over the candidates by a Gaussian of their distance to where
    the anchor comes to lie. Anchors that leave the view have no position there and do not count.

    Parameters
    ----------
    anchors, candidates : Tensor of shape (B, A, D), (B, C, D)
        Unit-length features of positions in the first and in the second view.
    places, others : Tensor of shape (B, A, 2), (B, C, 2)
        Where the anchors come to lie in the second view, and where the candidates lie, (y, x).
    temperature : float, default=0.1
        Positive divisor of the cosines.
    sigma : float, default=0.08
        Deviation of the target, half the image being 1.

    Returns
    -------
    loss : scalar float32 Tensor
        Mean over the anchors that stay inside; 0 where none does.
    """
    cosine = anchors.float() @ candidates.float().transpose(1, 2)
    squared = (places[:, :, None] - others[:, None]).square().sum(-1)
    targets = torch.softmax(squared.float() / (-2 * sigma**2), dim=-1)
    losses = -(targets * F.log_softmax(cosine / temperature, dim=-1)).sum(-1)
    inside = (places.abs() <= 1).all(-1)
    return (losses * inside).sum() / inside.sum().clamp_min(1)
