"""Further views of images: crops and flips drawn from seed, image and view alone."""

import numpy as np
import torch
from torch import Tensor

from nearwise.training import Augmentation
from nearwise.training.augment import crop_and_flip


def changed_views(
    images: Tensor, rows: Tensor, view: int, augmentation: Augmentation | None, seed: int
) -> Tensor:
    """One random view of each image, the same whatever batch the image comes in.

    Parameters
    ----------
    images : Tensor of shape (B, C, H, W)
    rows : int64 Tensor of shape (B,)
        Numbers of the images.
    view : int
        Number of the view; with `seed` and the row it decides the draw.
    augmentation : Augmentation, optional
        None takes an eighth of the side as padding, at least 1, and flips.
    seed : int

    Raises
    ------
    ValueError
        If `augmentation` asks for more than crops and flips.
    """
    if augmentation is None:
        padding = max(1, images.shape[2] // 8)
        augmentation = Augmentation.model_validate({"crop_padding": padding, "flip": True})
    known = {"crop_padding": augmentation.crop_padding, "flip": augmentation.flip}
    if augmentation != Augmentation.model_validate(known):
        raise ValueError(f"Views of features are crops and flips only; got {augmentation!r}.")
    steps = 2 * augmentation.crop_padding + 1
    draws = torch.from_numpy(
        np.stack([np.random.default_rng([seed, view, int(row)]).random(3) for row in rows])
    )
    top, left = ((draws[:, i] * steps).long() for i in (0, 1))
    flipped = (draws[:, 2] < 0.5) & augmentation.flip
    device = images.device
    return crop_and_flip(
        images, augmentation.crop_padding, top.to(device), left.to(device), flipped.to(device)
    )
