"""Random augmentation of image batches on their device; MixUp of any rows.

Plain tensor operations, not kornia: a whole batch needs one gather instead of one call per image;
images stay uint8 between the steps; one CPU generator makes all draws, so that a run repeats on any
device; and no further package is needed.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nearwise.nn import soft_targets
from nearwise.training.settings import Augmentation

_DRAWS = ("up", "left", "flip", "brightness", "contrast", "saturation", "angle", "row", "column")


def augment(
    images: Tensor,
    settings: Augmentation,
    generator: torch.Generator,
    *,
    mirrored: Tensor | None = None,
) -> Tensor:
    """Augment each image at random.

    Parameters
    ----------
    images : uint8 Tensor of shape (B, c, h, w)
    settings : Augmentation
    generator : torch.Generator
        CPU generator; the number of draws does not depend on the settings.
    mirrored : bool Tensor of shape (B,), optional
        Images to mirror if `settings` flip; drawn by default.

    Returns
    -------
    images : uint8 Tensor of shape (B, c, h, w), on the same device.
    """
    draw = draw_changes(images, generator)
    return with_cutout(moved(images, settings, draw, mirrored), settings, draw)


def draw_changes(images: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw numbers in [0, 1), (B,), for each change, including unused ones (colours, angles).

    So a seed gives the same crops with any other settings.
    """
    drawn = torch.rand(len(images), len(_DRAWS), generator=generator).to(images.device)
    return dict(zip(_DRAWS, drawn.unbind(dim=1), strict=True))


def moved(
    images: Tensor,
    settings: Augmentation,
    draw: dict[str, Tensor],
    mirrored: Tensor | None = None,
) -> Tensor:
    """Crop and mirror each image according to the settings."""
    if not (settings.crop_padding or settings.flip):
        return images
    steps = 2 * settings.crop_padding + 1
    top, left = ((draw[name] * steps).long().clamp_max(steps - 1) for name in ("up", "left"))
    flipped = draw["flip"] < 0.5 if mirrored is None else mirrored
    flipped = flipped & bool(settings.flip)
    return crop_and_flip(images, settings.crop_padding, top, left, flipped, padded=settings.padding)


def with_cutout(images: Tensor, settings: Augmentation, draw: dict[str, Tensor]) -> Tensor:
    """Fill a square of each image, if the settings have a cutout."""
    if not settings.cutout:
        return images
    row = (draw["row"] * images.shape[2]).long()
    column = (draw["column"] * images.shape[3]).long()
    return cut_out(images, settings.cutout, row, column)


def crop_and_flip(
    images: Tensor,
    padding: int,
    top: Tensor,
    left: Tensor,
    flipped: Tensor,
    *,
    padded: Literal["black", "reflect"] = "black",
) -> Tensor:
    """Crop each padded image at its own offset, and mirror the `flipped` ones.

    `padding` pixels are added on each side, zeros or the image mirrored at its edge; `top` and
    `left`, int64 (B,) in [0, 2 * padding], are the first row and column of the crop in the padded
    image.
    """
    n, channels, height, width = images.shape
    rows = top[:, None] + torch.arange(height, device=images.device)
    steps = torch.arange(width, device=images.device)
    columns = left[:, None] + torch.where(flipped[:, None], width - 1 - steps, steps)
    if padded == "black":
        images = F.pad(images, (padding,) * 4)
    else:
        rows, columns = _reflected(rows - padding, height), _reflected(columns - padding, width)
    image = torch.arange(n, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return images[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _reflected(position: Tensor, length: int) -> Tensor:
    """Positions along a side; positions outside are mirrored at its ends."""
    return (length - 1) - ((length - 1) - position.abs()).abs()


def cut_out(images: Tensor, side: int, row: Tensor, column: Tensor) -> Tensor:
    """Fill a square of `side` around (row, column) of each image with the image's mean colour.

    Parts outside the image are cut off. A square of even side extends one pixel further to the left
    and top.
    """
    mean = images.float().mean(dim=(2, 3), keepdim=True).round_().to(images.dtype)
    inside = _within(images.shape[2], side, row)[:, None, :, None]
    inside = inside & _within(images.shape[3], side, column)[:, None, None, :]
    return torch.where(inside, mean, images)


def _within(length: int, side: int, center: Tensor) -> Tensor:
    start = (center - side // 2)[:, None]
    position = torch.arange(length, device=center.device)
    return (position >= start) & (position < start + side)


class Mix(NamedTuple):
    """Partner of each row, int64 (B,), and the share of the row itself in [0.5, 1], (B, 1)."""

    partner: Tensor
    share: Tensor


def draw_mix(n_rows: int, alpha: float, generator: torch.Generator) -> Mix:
    """Draw partners and shares for a batch of `n_rows`, from a CPU generator.

    Shares follow Beta(alpha, alpha), folded to the larger part so that each row dominates
    its partner (Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018).
    """
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, got {alpha}.")
    partner = torch.randperm(n_rows, generator=generator)
    # torch cannot draw Beta variates from a given generator; numpy, seeded from it, can.
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    drawn = np.random.default_rng(seed).beta(alpha, alpha, size=(n_rows, 1))
    share = torch.from_numpy(np.maximum(drawn, 1 - drawn).astype(np.float32))
    return Mix(partner, share)


def draw_batch_mix(
    alpha: float,
    probability: float,
    n_rows: int,
    generator: torch.Generator,
    device: torch.device,
) -> Mix | None:
    """Draw the MixUp of a batch, or None with probability ``1 - probability``.

    An `alpha` of 0 draws nothing.
    """
    if not alpha:
        return None
    if float(torch.rand((), generator=generator)) >= probability:
        return None
    mix = draw_mix(n_rows, alpha, generator)
    return Mix(mix.partner.to(device), mix.share.to(device))


def mix_labels(labels: Tensor, mix: Mix, n_classes: int) -> Tensor:
    """Return class probabilities (B, n_classes) of mixed rows from hard or soft `labels` (B,)."""
    targets = soft_targets(labels, n_classes)
    return mix.share * targets + (1 - mix.share) * targets[mix.partner]


def mix_ids(ids: Tensor, mix: Mix) -> Tensor:
    """Return both source ids of each mixed row, shape (B, 2), to exclude both votes."""
    return torch.stack([ids, ids[mix.partner]], dim=1)
