"""Supervised images: what a step sees and minimises, and how it is evaluated."""

import pytest
import torch
from nearwise_lab.experiments.vit import VitSettings
from nearwise_lab.experiments.vit.data import ImageTensor, channel_scale
from nearwise_lab.experiments.vit.learner import SupervisedImages
from nearwise_lab.nn.pixel_scale import PixelScale
from torch import nn

N, N_CLASSES = 40, 3


class Watching(nn.Module):
    """A linear classifier that keeps what it was shown."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2 * 4 * 4, N_CLASSES)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.linear(x.flatten(1))


def rows():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (N, 2, 4, 4), generator=generator).to(torch.uint8)
    return ImageTensor(pixels, torch.randint(N_CLASSES, (N,), generator=generator))


def make(**settings):
    images = rows()
    scale = PixelScale(*channel_scale(images.pixels))
    return SupervisedImages(Watching(), images, scale, N_CLASSES, VitSettings(**settings))


def predicted(parts, seed):
    parts.settings = parts.settings.model_copy(update={"seed": seed})
    return parts.predict(parts.train)


def step(parts, n=N, seed=0):
    return parts.batch_loss(torch.arange(n), torch.Generator().manual_seed(seed), 0)


def test_input_has_mean_zero_and_deviation_one_in_every_channel():
    parts = make()
    step(parts)
    x = parts.model.seen[0]
    torch.testing.assert_close(x.mean(dim=(0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(dim=(0, 2, 3), correction=0), torch.ones(2), atol=1e-5, rtol=0)


def test_a_channel_that_never_changes_is_scaled_by_one():
    mean, std = channel_scale(torch.full((5, 1, 2, 2), 51, dtype=torch.uint8))
    assert mean == pytest.approx((0.2,)) and std == (1.0,)


def test_images_are_brought_to_the_size_of_the_model():
    images = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    scale = PixelScale((0.0,), (1.0,), 4)
    # twice smaller, smoothed: each pixel is about the mean of four and their neighbors
    assert scale(images).shape == (1, 1, 4, 4)
    assert float(scale(images).mean()) == pytest.approx(float(images.float().mean()) / 255)
    assert PixelScale((0.0,), (1.0,), 16)(images).shape == (1, 1, 16, 16)


@pytest.mark.parametrize(("noise_on", "trained", "tested"), [
    ("train", True, False), ("test", False, True), ("both", True, True),
])  # fmt: skip
def test_noise_falls_where_it_is_asked_for(noise_on, trained, tested):
    clean, noisy = make(), make(noise=0.5, noise_on=noise_on)
    for parts in (clean, noisy):
        step(parts)
        parts.predict(parts.train)
    in_training = float((noisy.model.seen[0] - clean.model.seen[0]).std())
    in_test = float((noisy.model.seen[-1] - clean.model.seen[-1]).std())
    assert in_training == pytest.approx(0.5 if trained else 0.0, abs=0.03)
    assert in_test == pytest.approx(0.5 if tested else 0.0, abs=0.03)


def test_noise_is_new_in_training_and_the_same_in_every_evaluation():
    parts = make(noise=1.0, noise_on="both")
    step(parts, seed=0), step(parts, seed=1)
    assert not torch.equal(parts.model.seen[0], parts.model.seen[1])
    assert torch.equal(predicted(parts, 5), predicted(parts, 5))
    assert not torch.equal(predicted(parts, 5), predicted(parts, 6))


def test_candidates_that_layers_draw_in_evaluations_follow_the_seed_alone():
    parts = make()
    parts.model.register_forward_hook(lambda _, __, logits: logits + torch.randn(logits.shape))
    torch.manual_seed(0)
    first, state = predicted(parts, 5), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(predicted(parts, 5), first)
    assert not torch.equal(predicted(parts, 6), first)
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


def test_mixup_blends_images_and_labels_by_the_same_share():
    parts = make(mixup=1.0)
    loss = step(parts)["loss"]
    mixed, plain = parts.model.seen[0], parts.scale(parts.train.pixels)
    logits = parts.model(mixed).detach().log_softmax(1)
    labels = torch.eye(N_CLASSES)[parts.train.labels]
    expected = 0.0
    for i in range(N):  # the one partner and share that make the mixed image
        fits = []
        for j in range(N):
            d = (plain[i] - plain[j]).flatten()
            if float(d.norm()) == 0:
                continue
            share = float(((mixed[i] - plain[j]).flatten() @ d) / (d @ d))
            rest = mixed[i] - share * plain[i] - (1 - share) * plain[j]
            if float(rest.abs().max()) < 1e-4 and 0.5 - 1e-4 <= share <= 1 + 1e-4:
                fits.append(share * labels[i] + (1 - share) * labels[j])
        target = fits[0] if fits else labels[i]  # without one it is its own partner
        expected -= float(target @ logits[i]) / N
    assert float(loss) == pytest.approx(expected, abs=2e-3)


def test_augmentation_changes_training_images_only():
    parts = make(augment=True)
    step(parts)
    plain = parts.scale(parts.train.pixels)
    assert not torch.equal(parts.model.seen[0], plain)
    parts.predict(parts.train)
    assert torch.equal(parts.model.seen[-1], plain)


@pytest.mark.parametrize("criterion", ["CrossEntropy", "MSE"])
def test_losses_and_hits_are_those_of_their_definitions(criterion):
    parts = make(criterion=criterion, label_smoothing=0.2)
    found, logits = step(parts), parts.model(parts.scale(parts.train.pixels)).detach()
    labels = parts.train.labels
    targets = 0.8 * torch.eye(N_CLASSES)[labels] + 0.2 / N_CLASSES
    if criterion == "MSE":
        expected = (logits - targets).square().mean()
        clean = (logits - torch.eye(N_CLASSES)[labels]).square().mean()
    else:
        expected = -(targets * logits.log_softmax(1)).sum(1).mean()
        clean = nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(found["loss"].detach(), expected)
    evaluated = parts.evaluate(parts.train)
    assert evaluated["loss"] == pytest.approx(float(clean), abs=1e-5)
    assert evaluated["top1"] == pytest.approx(
        100 * float((logits.argmax(1) == labels).float().mean()), abs=1e-4
    )
    assert evaluated["top5"] == 100.0  # three classes


def test_wrong_rows_and_settings_say_what_is_wrong():
    with pytest.raises(ValueError, match="uint8 of shape"):
        ImageTensor(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="2 images have 3 labels"):
        ImageTensor(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
