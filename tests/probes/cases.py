"""Small features and encoders with known answers."""

import numpy as np
from torch import nn

from nearwise.probes.encoders import seen_only


def blobs(n: int = 200, width: int = 8, n_classes: int = 3, seed: int = 0, spread: float = 1.0):
    """Gaussian classes around random centres; labels are words."""
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(n_classes, width)) * 1.5
    codes = generator.integers(0, n_classes, n)
    codes[:n_classes] = np.arange(n_classes)
    X = centers[codes] + spread * generator.normal(size=(n, width))
    return X.astype(np.float32), np.array(["ant", "bee", "cow", "dog", "eel", "fox"])[codes]


def images(n: int = 40, side: int = 6, channels: int = 1, seed: int = 0) -> np.ndarray:
    """Uint8 images (n, H, W, C)."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (n, side, side, channels)).astype(np.uint8)


class Convolution(nn.Module):
    """A module with the protocol of an encoder: 4 x 4 tokens of width 5 from 8 x 8 images."""

    token_dim, num_tokens = 5, 16

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 5, 2, stride=2)
        self.calls = 0

    def encode(self, x, context=None):
        self.calls += 1
        return self.layer(x).flatten(2).transpose(1, 2)


class Pixels:
    """One token per pixel, in rows; those that are not seen are black."""

    def __init__(self, side=6, channels=1):
        self.token_dim, self.num_tokens = channels, side * side

    def encode(self, x, context=None):
        return seen_only(x, context).flatten(2).transpose(1, 2)


class Points:
    """The gray pixels that are seen, as a set."""

    token_dim, num_tokens, ordered = 1, None, False

    def encode(self, x, context=None):
        points = x.flatten(2).transpose(1, 2)
        return points if context is None else points.gather(1, context[:, :, None])
