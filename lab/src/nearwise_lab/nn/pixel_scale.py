"""Conversion of uint8 images to the input of a network."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class PixelScale:
    """Scaling of uint8 images to a network's input.

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
