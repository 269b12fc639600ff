"""Supervised training of image classifiers: what a step minimises, and how they are evaluated."""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from nearwise.nn import soft_cross_entropy, soft_targets
from nearwise.training.augment import draw_batch_mix, mix_labels
from nearwise.training.encoding import autocast
from nearwise.training.settings import Precision, StrictSettings
from nearwise_lab.experiments.vit.image_rows import ImageRows
from nearwise_lab.nn.pixel_scale import PixelScale
from nearwise_lab.training.augment import FullAugmentation, augment_fully

_EVALUATED_PIXELS = {"cpu": 2**21, "cuda": 2**25}  # pixels per batch of an evaluation


class Recipe(StrictSettings):
    """How images and labels are changed before a step, and what is minimised.

    Parameters
    ----------
    criterion : {"CrossEntropy", "MSE"}, default="CrossEntropy"
        "MSE" is the mean squared difference between logits and one-hot labels.
    label_smoothing : float, default=0.0
        In [0, 1).
    mixup_alpha : float, default=0.0
        Parameter of MixUp's Beta distribution; 0 switches it off.
    mixup_probability : float, default=1.0
        Share of the batches that are mixed.
    augment : FullAugmentation, optional
        Random changes of training images.
    noise : float, default=0.0
        Standard deviation of Gaussian noise, in units of that of the pixels of a channel.
    noise_on : {"train", "test", "both"}, default="train"
        Which images get it: again in every step in training; in evaluations the same each time.
    """

    settings_of = "recipe"

    criterion: Literal["CrossEntropy", "MSE"] = "CrossEntropy"
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    mixup_alpha: float = Field(0.0, ge=0)
    mixup_probability: float = Field(1.0, ge=0, le=1)
    augment: FullAugmentation | None = None
    noise: float = Field(0.0, ge=0)
    noise_on: Literal["train", "test", "both"] = "train"

    def noise_in(self, training: bool) -> float:
        """Return the noise of training, or of evaluations."""
        return self.noise if self.noise_on in ("both", "train" if training else "test") else 0.0


def channel_scale(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, in [0, 1].

    A channel that never changes gets deviation 1.
    """
    n_channels = images.shape[1]
    count = images.numel() // n_channels
    total, squares = torch.zeros(2, n_channels, dtype=torch.float64)
    for part in images.split(4096):
        pixels = part.double() / 255
        total += pixels.sum(dim=(0, 2, 3)).cpu()
        squares += pixels.square().sum(dim=(0, 2, 3)).cpu()
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    std = torch.where(std > 0, std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


class SupervisedImages:
    """Loss and evaluation of one classifier on one set of images, for `train_epochs`.

    Parameters
    ----------
    model : nn.Module
        From float images (B, channels, height, width) to logits (B, n_classes).
    train : ImageRows
        On the model's device.
    scale : PixelScale
    n_classes : int
    recipe : Recipe
    precision : {"float32", "bfloat16", "float16"}, default="float32"
        Of evaluations; training's is the engine's.
    """

    def __init__(
        self,
        model: nn.Module,
        train: ImageRows,
        scale: PixelScale,
        n_classes: int,
        recipe: Recipe,
        precision: Precision = "float32",
    ) -> None:
        self.model, self.train, self.scale = model, train, scale
        self.n_classes, self.recipe, self.precision = n_classes, recipe, precision

    def batch_loss(self, rows: Tensor, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Return the loss of a step, and top1 and top5 of its images in percent."""
        recipe, images = self.recipe, self.train.images(rows)
        labels = self.train.labels[rows.to(self.train.labels.device)]
        if recipe.augment is not None:
            images = augment_fully(images, recipe.augment, generator)
        x = add_noise(self.scale(images), recipe.noise_in(training=True), generator)
        mix = draw_batch_mix(
            recipe.mixup_alpha, recipe.mixup_probability, len(rows), generator, x.device
        )
        targets = labels
        if mix is not None:
            share = mix.share.view(-1, 1, 1, 1)
            x = share * x + (1 - share) * x[mix.partner]
            targets = mix_labels(labels, mix, self.n_classes)
        logits = self.model(x).float()
        with torch.no_grad():
            hits = top_hits(logits, labels)
        return {"loss": self._criterion(logits, targets), **hits}

    def _criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.recipe.label_smoothing
        if self.recipe.criterion == "MSE":
            return F.mse_loss(logits, soft_targets(targets, self.n_classes, smoothing))
        return soft_cross_entropy(logits, targets, smoothing=smoothing)

    def evaluate(self, rows: ImageRows, *, seed: int = 0) -> dict[str, float]:
        """Loss (without smoothing), top1 and top5 in percent of images that are not trained on."""
        logits = self.predict(rows, seed=seed)
        if self.recipe.criterion == "MSE":
            loss = F.mse_loss(logits, soft_targets(rows.labels, self.n_classes))
        else:
            loss = F.cross_entropy(logits, rows.labels)
        hits = top_hits(logits, rows.labels)
        return {"loss": float(loss), **{name: float(value) for name, value in hits.items()}}

    @torch.no_grad()
    def predict(self, rows: ImageRows, *, seed: int = 0) -> Tensor:
        """Logits (n, n_classes) of images, with noise where the recipe has it for the test.

        Parameters
        ----------
        rows : ImageRows
            On the model's device.
        seed : int, default=0
            Decides the noise, and candidates that layers draw; both are the same in every call.
        """
        device = rows.labels.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            return self._predict(rows, seed)

    def _predict(self, rows: ImageRows, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        noise = self.recipe.noise_in(training=False)
        was_training = self.model.training
        self.model.eval()
        logits = []
        for part in torch.arange(len(rows)).split(self._chunk(rows)):
            x = add_noise(self.scale(rows.images(part)), noise, generator)
            with autocast(x.device, self.precision):
                logits.append(self.model(x).float())
        self.model.train(was_training)
        return torch.cat(logits)

    def _chunk(self, rows: ImageRows) -> int:
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
    """Percent of rows whose label is the first, and among the first five."""
    five = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return {"top1": 100 * five[:, 0].float().mean(), "top5": 100 * five.any(1).float().mean()}
