"""Random rotations and colors of images, in addition to the library's augmentation."""

import math

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from nearwise.training.augment import draw_changes, moved, with_cutout
from nearwise.training.settings import Augmentation

# Weights of red, green and blue in the luminance of ITU-R BT.601.
_LUMINANCE = (0.299, 0.587, 0.114)


class FullAugmentation(Augmentation):
    """Random changes of an image: rotation, then crop and flip, then colors, then cutout.

    Parameters
    ----------
    rotation : float, default=0.0
        Largest angle in degrees, either way; bilinear, black outside.
    color_jitter : float, default=0.0
        Brightness, contrast and saturation are each multiplied by a factor from 1 - this to
        1 + this.
    """

    rotation: float = Field(0.0, ge=0, le=180)
    color_jitter: float = Field(0.0, ge=0, le=1)


def augment_fully(images: Tensor, settings: FullAugmentation, generator: torch.Generator) -> Tensor:
    """Change each image (B, c, h, w), uint8, at random, as `nearwise.training.augment` does."""
    draw = draw_changes(images, generator)
    if settings.rotation:
        images = rotate(images, settings.rotation * (2 * draw["angle"] - 1))
    images = moved(images, settings, draw)
    if settings.color_jitter:
        factors = [
            1 + settings.color_jitter * (2 * draw[name] - 1)
            for name in ("brightness", "contrast", "saturation")
        ]
        images = jitter_colors(images, *factors)
    return with_cutout(images, settings, draw)


def jitter_colors(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor
) -> Tensor:
    """Multiply brightness, contrast and saturation, in this order, by factors (B,) of each image.

    Contrast is the distance from the image's mean luminance, saturation that from each pixel's;
    images of one channel have none.
    """
    pixels = (images.float() * _each(brightness)).clamp_(0, 255)
    mean = _luminance(pixels).mean(dim=(1, 2, 3), keepdim=True)
    pixels = torch.lerp(mean, pixels, _each(contrast)).clamp_(0, 255)
    if images.shape[1] == 3:
        pixels = torch.lerp(_luminance(pixels), pixels, _each(saturation)).clamp_(0, 255)
    return pixels.round_().to(images.dtype)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn each image about its middle by its own angle (B,), counter-clockwise as it is seen."""
    angle = degrees.float() * (math.pi / 180)
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    ratio = images.shape[2] / images.shape[3]
    first = torch.stack([cosine, -sine * ratio, zero], dim=1)
    second = torch.stack([sine / ratio, cosine, zero], dim=1)
    grid = F.affine_grid(
        torch.stack([first, second], dim=1), list(images.shape), align_corners=False
    )
    turned = F.grid_sample(images.float(), grid, mode="bilinear", align_corners=False)
    return turned.round_().clamp_(0, 255).to(images.dtype)


def _luminance(pixels: Tensor) -> Tensor:
    if pixels.shape[1] == 1:
        return pixels
    weights = pixels.new_tensor(_LUMINANCE).view(1, 3, 1, 1)
    return (pixels * weights).sum(dim=1, keepdim=True)


def _each(factor: Tensor) -> Tensor:
    return factor.view(-1, 1, 1, 1)
