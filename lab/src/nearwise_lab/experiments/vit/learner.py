"""Supervised training of image classifiers: loss of a step, and evaluation."""

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.metrics import evaluate_probabilities
from nearwise.nn import soft_cross_entropy, soft_targets
from nearwise.training.augment import draw_batch_mix, mix_labels
from nearwise.training.encoding import autocast
from nearwise_lab.experiments.vit.data import Rows
from nearwise_lab.experiments.vit.settings import VitSettings
from nearwise_lab.nn.pixel_scale import PixelScale
from nearwise_lab.training.augment import FullAugmentation, augment_fully

_EVALUATED_PIXELS = {"cpu": 2**21, "cuda": 2**25}  # pixels per batch of an evaluation
_UPRIGHT = ("mnist", "digits")  # a mirrored digit is another sign


def augmentation(settings: VitSettings, side: int) -> FullAugmentation | None:
    """Random changes of training images of some side in pixels; None where there are none.

    `augment` pads an eighth of the side before the crop: 4 pixels of 32, as is usual for CIFAR.
    """
    names = ("color_jitter", "rotation", "cutout")
    changes: dict[str, Any] = {n: getattr(settings, n) for n in names if getattr(settings, n)}
    if settings.augment:
        changes |= {"crop_padding": max(1, side // 8), "flip": settings.dataset not in _UPRIGHT}
    return FullAugmentation(**changes) if changes else None


class SupervisedImages:
    """Loss and evaluation of one classifier on one set of images, for `train_epochs`.

    The model goes from float images (B, channels, height, width) to logits (B, n_classes); images
    are on its device. The settings say how images and labels are changed before a step, and what
    is minimised.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Rows,
        scale: PixelScale,
        n_classes: int,
        settings: VitSettings,
    ) -> None:
        self.model, self.train, self.scale = model, train, scale
        self.n_classes, self.settings = n_classes, settings
        self.changes = augmentation(settings, min(train.size))

    def batch_loss(self, rows: Tensor, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Return the loss of a step, and top1 and top5 of its images in percent."""
        s, images = self.settings, self.train.images(rows)
        labels = self.train.labels[rows.to(self.train.labels.device)]
        if self.changes is not None:
            images = augment_fully(images, self.changes, generator)
        x, targets = add_noise(self.scale(images), s.noise_in(training=True), generator), labels
        mix = draw_batch_mix(s.mixup, 1.0, len(rows), generator, x.device)
        if mix is not None:
            share = mix.share.view(-1, 1, 1, 1)
            x = share * x + (1 - share) * x[mix.partner]
            targets = mix_labels(labels, mix, self.n_classes)
        logits = self.model(x).float()
        with torch.no_grad():
            hits = top_hits(logits, labels)
        return {"loss": self._criterion(logits, targets, s.label_smoothing), **hits}

    def _criterion(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        if self.settings.criterion == "MSE":
            return F.mse_loss(logits, soft_targets(targets, self.n_classes, smoothing))
        return soft_cross_entropy(logits, targets, smoothing=smoothing)

    def evaluate(self, rows: Rows) -> dict[str, float]:
        """Loss (without smoothing), top1 and top5 in percent of images that are not trained on."""
        logits = self.predict(rows)
        loss = self._criterion(logits, rows.labels, 0.0)
        hits = top_hits(logits, rows.labels)
        return {"loss": float(loss), **{name: float(value) for name, value in hits.items()}}

    def measure(self, rows: Rows) -> dict[str, Any]:
        """All metrics of `evaluate_probabilities` on test images, and their conditions."""
        started = time.perf_counter()
        logits = self.predict(rows).cpu()  # no float64 on some devices
        seconds = time.perf_counter() - started
        if not bool(torch.isfinite(logits).all()):
            raise ValueError("The model's logits are not all finite; it cannot be evaluated.")
        labels = rows.labels.cpu()
        metrics = evaluate_probabilities(labels.numpy(), F.softmax(logits.double(), 1).numpy())
        return {
            "dataset": self.settings.dataset,
            "n_test": len(labels),
            "noise": self.settings.noise_in(training=False),
            "top1": 100 * metrics["accuracy"],
            "top5": float(top_hits(logits, labels)["top5"]),
            **metrics,
            "test_seconds": seconds,
        }

    @torch.no_grad()
    def predict(self, rows: Rows) -> Tensor:
        """Logits (n, n_classes) of images on the model's device, with noise if the settings add it.

        The seed of the settings decides the noise, and candidates that layers draw; both are the
        same in every call.
        """
        device, seed = rows.labels.device, self.settings.seed
        generator, noise = torch.Generator().manual_seed(seed), self.settings.noise_in(False)
        was_training, logits = self.model.training, []
        self.model.eval()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for part in torch.arange(len(rows)).split(self._chunk(rows)):
                x = add_noise(self.scale(rows.images(part)), noise, generator)
                with autocast(x.device, self.settings.precision):
                    logits.append(self.model(x).float())
        self.model.train(was_training)
        return torch.cat(logits)

    def _chunk(self, rows: Rows) -> int:
        """Images a batch, by their size and the device."""
        first = self.scale(rows.images(torch.arange(1)))
        pixels = _EVALUATED_PIXELS["cpu" if first.device.type == "cpu" else "cuda"]
        return max(1, min(1024, pixels // first[0].numel()))


def add_noise(x: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise of deviation `std`, drawn on the device from a seed of `generator`."""
    if not std:
        return x
    seed = int(torch.randint(2**62, (), generator=generator))
    drawn = torch.Generator(x.device).manual_seed(seed)
    noise = torch.randn(x.shape, generator=drawn, device=x.device, dtype=x.dtype)
    return x + std * noise


def top_hits(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Top-1 and top-5 accuracy in percent, per row."""
    five = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return {"top1": 100 * five[:, 0].float().mean(), "top5": 100 * five.any(1).float().mean()}
