"""Rotations and colors: each as its slow version, beside the library's changes of images."""

import pytest
import torch
from nearwise_lab.training.augment import (
    FullAugmentation,
    augment_fully,
    jitter_colors,
    rotate,
)

from lab.tests.reference.augmentation import slow_jitter_colors, slow_rotate
from nearwise.training import Augmentation, augment
from tests.training.image_cases import compare, noise


@pytest.mark.parametrize("channels", [1, 3])
def test_colors_are_those_of_the_slow_version(channels):
    given = noise(channels=channels)
    factors = 0.5 + torch.rand(3, 7)
    factors[:, 0] = 1.0
    factors[:, 1] = 0.0
    slow = [
        slow_jitter_colors(image.tolist(), *map(float, own))
        for image, own in zip(given, factors.T, strict=True)
    ]
    fast = jitter_colors(given, *factors)
    compare(fast, slow, atol=0.51)
    assert torch.equal(fast[0], given[0])
    assert not fast[1].any()


@pytest.mark.parametrize("channels", [1, 3])
def test_rotations_are_those_of_the_slow_version(channels):
    given = noise(channels=channels)
    degrees = torch.tensor([0.0, 10.0, -10.0, 33.0, 90.0, 180.0, -75.0])
    slow = [slow_rotate(image.tolist(), float(a)) for image, a in zip(given, degrees, strict=True)]
    fast = rotate(given, degrees)
    compare(fast, slow, atol=0.52)
    assert torch.equal(fast[0], given[0])


def test_quarter_turn_goes_counter_clockwise():
    given = noise(height=5)
    turned = rotate(given, torch.full((7,), 90.0))
    assert torch.equal(turned, torch.rot90(given, 1, dims=(2, 3)))


@pytest.mark.parametrize("change", [{"rotation": 20}, {"color_jitter": 0.3}], ids=str)
def test_images_of_a_batch_are_changed_each_on_its_own(change):
    same = noise(1).expand(64, -1, -1, -1)
    settings = FullAugmentation(**change)
    changed = augment_fully(same, settings, torch.Generator().manual_seed(0))
    assert len(changed.unique(dim=0)) > 10


def test_a_seed_moves_images_as_the_library_does():
    shared = {"crop_padding": 2, "flip": True, "cutout": 3}
    full, plain = (
        change(noise(), kind(**shared), torch.Generator().manual_seed(0))
        for change, kind in ((augment_fully, FullAugmentation), (augment, Augmentation))
    )
    assert torch.equal(full, plain)
    with pytest.raises(ValueError, match="rotation"):
        FullAugmentation(rotation=-1)
