"""Labelled images as training reads them: from memory, or from files batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import torch
from torch import Tensor

from nearwise.data.images.decode import Encoded, decode_images


class ImageRows(Protocol):
    """Labelled images, wherever they are.

    Attributes
    ----------
    labels : int64 Tensor of shape (n,)
        Class numbers.
    """

    @property
    def labels(self) -> Tensor:
        """Class numbers."""

    def __len__(self) -> int:
        """How many there are."""

    def images(self, rows: Tensor) -> Tensor:
        """Return uint8 images (B, channels, height, width) of some rows (B,)."""

    def to(self, device: torch.device) -> Self:
        """Return the same rows, whose images and labels come on `device`."""


@dataclass(frozen=True)
class ImageTensor:
    """Images in one tensor.

    Parameters
    ----------
    pixels : uint8 Tensor of shape (n, channels, height, width)
    labels : int64 Tensor of shape (n,)
    """

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.dtype != torch.uint8:
            raise ValueError(
                "pixels must be uint8 of shape (n, channels, height, width); got "
                f"{self.pixels.dtype} of shape {tuple(self.pixels.shape)}."
            )
        if len(self.pixels) != len(self.labels):
            raise ValueError(f"{len(self.pixels)} images have {len(self.labels)} labels.")

    def __len__(self) -> int:
        """How many there are."""
        return len(self.labels)

    def images(self, rows: Tensor) -> Tensor:
        """Return the images of some rows."""
        return self.pixels[rows.to(self.pixels.device)]

    def to(self, device: torch.device) -> "ImageTensor":
        """Move all of it."""
        return ImageTensor(self.pixels.to(device), self.labels.to(device))

    def take(self, rows: Tensor) -> "ImageTensor":
        """Return some rows."""
        return ImageTensor(self.pixels[rows], self.labels[rows])


@dataclass(frozen=True)
class ImageFiles:
    """Images that are decoded on request, on several threads, and brought to one size.

    Parameters
    ----------
    files : sequence of Path
    labels : int64 Tensor of shape (n,)
    size : int
        Side in pixels; the aspect is not kept.
    """

    files: Sequence[Path]
    labels: Tensor
    size: int

    def __len__(self) -> int:
        """How many there are."""
        return len(self.labels)

    def images(self, rows: Tensor) -> Tensor:
        """Decode some rows."""
        chosen = [self.files[row] for row in rows.tolist()]
        encoded = (Encoded(str(file), file) for file in chosen)
        pixels = decode_images(encoded, len(chosen), image_size=self.size, color="rgb")
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(self.labels.device)

    def to(self, device: torch.device) -> "ImageFiles":
        """Let images and labels come on `device`."""
        return replace(self, labels=self.labels.to(device))

    def take(self, rows: Tensor) -> "ImageFiles":
        """Return some rows."""
        files = [self.files[row] for row in rows.tolist()]
        return ImageFiles(files, self.labels[rows.to(self.labels.device)], self.size)
