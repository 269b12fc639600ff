"""Views of images: what training changes at random, and the views of a test image."""

from typing import Literal

import torch
from torch import Tensor

from nearwise.training.augment import crop_and_flip
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.training.augment import FullAugmentation

Views = Literal["mirror-and-crops", "random"]
N_VIEWS = 4
_PADDING, _SIDE = 4, 32  # 4 pixels of 32; smaller images are moved by as much of their side


def study_augmentation(inputs: StudyInputs) -> FullAugmentation | None:
    """Return what the study changed in training: digits are turned, others moved and recolored.

    None for columns.
    """
    if not inputs.is_images:
        return None
    if inputs.dataset.name in ("mnist", "digits-images"):
        return FullAugmentation.model_validate({"rotation": 10})
    padding = _padding(inputs.x_train)
    changes = {"crop_padding": padding, "flip": True, "color_jitter": 0.2}
    return FullAugmentation.model_validate(changes)


def study_views(images: Tensor, seed: int, kind: Views) -> list[Tensor]:
    """Return the four views beside the original of images (n, c, h, w), uint8.

    Parameters
    ----------
    images : uint8 Tensor of shape (n, c, h, w)
    seed : int
        Of the crops' positions, and of what is mirrored; each image has its own.
    kind : {"mirror-and-crops", "random"}
        As in `StudyPreset`.

    Returns
    -------
    views : list of 4 uint8 Tensors of the shape of `images`
    """
    generator = torch.Generator().manual_seed(seed)
    padding, n = _padding(images), len(images)
    views = [images.flip(3)] if kind == "mirror-and-crops" else []
    mirrored = torch.zeros(n, dtype=torch.bool)
    while len(views) < N_VIEWS:
        top, left = torch.randint(2 * padding + 1, (2, n), generator=generator)
        if kind == "random":
            mirrored = torch.rand(n, generator=generator) < 0.5
        views.append(crop_and_flip(images, padding, top, left, mirrored))
    return views


def _padding(images: Tensor) -> int:
    return max(1, round(_PADDING * images.shape[2] / _SIDE))
