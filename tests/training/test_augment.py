"""Augmentation: each change as its slow version, repeatable, and on the queries alone."""

import pytest
import torch

from nearwise.training import Augmentation, TrainConfig, augment, train_embedder
from nearwise.training.augment import crop_and_flip, cut_out
from tests.reference.augmentation import slow_crop_and_flip, slow_cut_out
from tests.training.cases import blobs, quick, small_network
from tests.training.image_cases import compare, digits, few, image_network, noise

EVERYTHING = Augmentation(crop_padding=2, flip=True, cutout=3)


@pytest.mark.parametrize("padded", ["black", "reflect"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("padding", [0, 2, 4])
def test_crops_and_flips_are_those_of_the_slow_version(channels, padding, padded):
    given = noise(channels=channels)
    top, left = torch.randint(2 * padding + 1, (2, 7))
    flipped = torch.rand(7) < 0.5
    slow = [
        slow_crop_and_flip(image.tolist(), padding, int(t), int(at), bool(f), padded == "reflect")
        for image, t, at, f in zip(given, top, left, flipped, strict=True)
    ]
    compare(crop_and_flip(given, padding, top, left, flipped, padded=padded), slow)


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_cutouts_are_those_of_the_slow_version(side):
    given = noise()
    row, column = torch.randint(6, (7,)), torch.randint(5, (7,))
    slow = [
        slow_cut_out(image.tolist(), side, int(r), int(c))
        for image, r, c in zip(given, row, column, strict=True)
    ]
    compare(cut_out(given, side, row, column), slow, atol=0.51)


def test_draw_is_decided_by_the_generator_alone():
    given = noise(64)
    drawn = [augment(given, EVERYTHING, torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert drawn[0].dtype == torch.uint8
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_images_of_a_batch_are_changed_each_on_its_own():
    same = noise(1).expand(64, -1, -1, -1)
    for settings in (Augmentation(crop_padding=2), Augmentation(cutout=3)):
        changed = augment(same, settings, torch.Generator().manual_seed(0))
        assert len(changed.unique(dim=0)) > 10
    flipped = augment(same, Augmentation(flip=True), torch.Generator().manual_seed(0))
    assert len(flipped.unique(dim=0)) == 2


def test_as_many_numbers_are_drawn_whatever_is_on():
    states = []
    for settings in (Augmentation(), EVERYTHING):
        generator = torch.Generator().manual_seed(0)
        augment(noise(), settings, generator)
        states.append(generator.get_state())
    assert torch.equal(*states)
    assert torch.equal(augment(noise(), Augmentation(), generator), noise())


def test_crops_reach_every_place_equally():
    marked = torch.zeros(9000, 1, 3, 3, dtype=torch.uint8)
    marked[:, :, 1, 1] = 1
    moved = augment(marked, Augmentation(crop_padding=1), torch.Generator().manual_seed(0))
    share = moved.float().mean(dim=0)[0]
    torch.testing.assert_close(share, torch.full((3, 3), 1 / 9), atol=0.015, rtol=0)


def test_unknown_or_impossible_settings_are_named():
    with pytest.raises(ValueError, match="Did you mean 'crop_padding'"):
        Augmentation(crop_paddin=4)
    with pytest.raises(ValueError, match="Did you mean 'cutout'"):
        TrainConfig(augment={"cutot": 4})
    with pytest.raises(ValueError):
        Augmentation(cutout=-1)
    with pytest.raises(ValueError, match="training rows are columns"):
        train_embedder(small_network(), blobs(), None, quick(augment={"flip": True}), seed=0)


def test_alternating_flips_mirror_each_image_in_every_other_epoch(monkeypatch):
    seen = {}

    def note(x, settings, generator, *, mirrored):
        for row, flipped in zip(x[:, 0, 0, 0].tolist(), mirrored.tolist(), strict=True):
            seen.setdefault(row, []).append(flipped)
        return x

    monkeypatch.setattr("nearwise.training.embedder.augment", note)
    rows = digits(0, 40)
    rows.x_num[:, 0, 0, 0] = torch.arange(40)  # so that a row is known by its first pixel
    settings = few(epochs=4, batch_size=16, knn_weight=0.0, ce_weight=1.0)
    settings = settings.model_copy(update={"augment": Augmentation(flip="alternate")})
    train_embedder(image_network(), rows, None, settings, seed=0)
    assert all(flips == [flips[0], not flips[0]] * 2 for flips in seen.values())
    assert len(seen) == 40 and 8 < sum(flips[0] for flips in seen.values()) < 32


def test_an_image_that_is_said_to_be_mirrored_is():
    given = noise()
    settings, flipped = Augmentation(flip="alternate"), torch.arange(7) % 2 == 0
    found = augment(given, settings, torch.Generator(), mirrored=flipped)
    assert torch.equal(found[flipped], given[flipped].flip(3))
    assert torch.equal(found[~flipped], given[~flipped])
