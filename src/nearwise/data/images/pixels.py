"""Layout and range of images given as arrays or tensors."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

_CHANNELS = (1, 3)


def as_images(images: ArrayLike | Tensor, name: str = "images") -> Tensor:
    """Convert images to the layout (n, C, H, W), uint8 or float in [0, 1], without a copy.

    Allowed shapes are (n, H, W), (n, C, H, W) and (n, H, W, C), with C of 1 or 3. If both layouts
    fit, a uint8 ndarray is (n, H, W, C), as in data sets, and all else is (n, C, H, W). ValueError,
    with `name` as the argument, for another shape, or a float outside [0, 1] or NaN.
    """
    is_numpy = not isinstance(images, Tensor)
    x = torch.from_numpy(np.ascontiguousarray(images)) if is_numpy else images
    assert isinstance(x, Tensor)
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4:
        first, last = x.shape[1] in _CHANNELS, x.shape[3] in _CHANNELS
        if last and (not first or (is_numpy and x.dtype == torch.uint8)):
            x = x.movedim(3, 1)
    if x.ndim != 4 or x.shape[1] not in _CHANNELS or not x.numel():
        raise ValueError(
            f"{name} have shape {tuple(x.shape)}. Pass at least one of 1 or 3 channels, shape "
            "(n, C, H, W), (n, H, W, C) or (n, H, W)."
        )
    if x.dtype == torch.uint8:
        return x
    if not x.is_floating_point():
        raise ValueError(
            f"{name} have dtype {x.dtype}. Pass uint8 in [0, 255] or floats in [0, 1]."
        )
    low, high = (float(v) for v in x.aminmax())
    if not (low >= 0.0 and high <= 1.0):  # also for NaN
        raise ValueError(
            f"Float {name} must lie in [0, 1]; these reach from {low:.4g} to {high:.4g}. Divide "
            "raw pixels by 255: encoders normalise inside."
        )
    return x


def as_unit_floats(images: Tensor) -> Tensor:
    """Return uint8 or float images as float32 in [0, 1]."""
    return images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images.float()
