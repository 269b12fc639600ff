"""The study's five views of a test image: itself, its mirror image and three random crops."""

import torch
from torch import Tensor
from torch.nn import functional as F

N_CROPS = 3
_PADDING, _SIDE = 4, 32  # 4 pixels of 32; smaller images are moved by as much of their side


def study_views(images: Tensor, seed: int) -> list[Tensor]:
    """Return the flipped view and the three crops of images (n, c, h, w), uint8.

    Parameters
    ----------
    images : uint8 Tensor of shape (n, c, h, w)
    seed : int
        Of the crops' places; each image has its own.

    Returns
    -------
    views : list of 4 uint8 Tensors of the shape of `images`
    """
    generator = torch.Generator().manual_seed(seed)
    crops = [random_crop(images, _padding(images), generator) for _ in range(N_CROPS)]
    return [images.flip(3), *crops]


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Pad with black and cut out the former size at a random place, each image at its own."""
    n, _, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)
    span = 2 * padding + 1
    top = torch.randint(span, (n, 1), generator=generator)
    left = torch.randint(span, (n, 1), generator=generator)
    rows = (top + torch.arange(height)).to(images.device)
    columns = (left + torch.arange(width)).to(images.device)
    which = torch.arange(n, device=images.device)
    cut = padded.permute(0, 2, 3, 1)[which[:, None, None], rows[:, :, None], columns[:, None, :]]
    return cut.permute(0, 3, 1, 2).contiguous()


def _padding(images: Tensor) -> int:
    return max(1, round(_PADDING * images.shape[2] / _SIDE))


def augmentation_of(dataset: str, inputs: object) -> None:
    """Stand-in."""


def augment_with(augmentation: object) -> None:
    """Stand-in."""
