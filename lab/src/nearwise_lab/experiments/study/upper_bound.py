"""The study's parametric upper bound: the same backbone with a linear head, and its temperature."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.nn import NeighborNetwork
from nearwise.training import TrainConfig, TrainingRows, train_embedder
from nearwise.training.embedder import EmbedderObjective
from nearwise.training.encoding import Precision
from nearwise_lab.experiments.network import fit_temperature, tempered
from nearwise_lab.experiments.study.evaluate import Prediction, to_numpy
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.model import encode, make_embedder
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.experiments.study.views import study_augmentation
from nearwise_lab.training.augment import FullAugmentation, augment_fully

Progress = Callable[[dict[str, Any]], None]
RIDGE = 2.0  # pull of the temperature towards 1, in rows, as in AttnKNNClassifier


def upper_bound_names(is_images: bool) -> tuple[str, str]:
    """Names of the upper bound's two rows: "cnn" and "cnn+temperature", or "mlp" on columns."""
    name = "cnn" if is_images else "mlp"
    return name, f"{name}+temperature"


@dataclass(frozen=True)
class UpperBound:
    """A trained upper bound.

    Attributes
    ----------
    network : NeighborNetwork
        Embedder (keys not scaled to unit length) and linear head.
    inputs : StudyInputs
        Rows; those held out were not trained on.
    history : list of dict
        One record per epoch.
    temperature : float
        Fitted on the held-out rows.
    proba : float64 ndarray of shape (n_test, n_classes)
        Before the temperature.
    """

    network: NeighborNetwork
    inputs: StudyInputs
    history: list[dict[str, Any]]
    temperature: float
    proba: np.ndarray

    @property
    def predictions(self) -> list[Prediction]:
        """Both rows: as trained, and with the temperature."""
        plain, scaled = upper_bound_names(self.inputs.is_images)
        return [
            Prediction(plain, self.proba, None, 0.0),
            Prediction(scaled, tempered(self.proba, self.temperature), None, 0.0),
        ]

    @property
    def seconds(self) -> float:
        """Training time in seconds, breaks left out."""
        return float(sum(record["seconds"] for record in self.history))


class UpperBoundConfig(TrainConfig):
    """Settings of the upper bound's training: those of `TrainConfig`, with the study's changes."""

    augment: FullAugmentation | None = None


class UpperBoundObjective(EmbedderObjective):
    """Cross-entropy of images that are changed as in the study; gradients are not clipped."""

    settings: UpperBoundConfig
    gradient_clip = None

    def changed(self, x_num: Tensor, positions: Tensor, generator: torch.Generator) -> Tensor:
        """Rows as the study changes them at random."""
        augment = self.settings.augment
        return x_num if augment is None else augment_fully(x_num, augment, generator)


def train_upper_bound(
    inputs: StudyInputs,
    preset: StudyPreset,
    *,
    device: torch.device | str = "cpu",
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> UpperBound:
    """Train backbone and linear head on the rows that are not held out.

    Cross-entropy with label smoothing, AdamW, cosine, the last epoch; the temperature is fitted on
    the held-out rows (the study had neither).

    Parameters
    ----------
    inputs : StudyInputs
    preset : StudyPreset
        Its `cnn_` settings.
    device : torch.device or str, default="cpu"
    checkpoint : path of a folder, optional
        A killed run goes on from it.
    progress : callable, optional
        Called with each epoch's record.
    """
    device = torch.device(device)
    seed = inputs.seed + preset.seed_offset
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedder = make_embedder(preset, inputs, normalize=False)
        network = NeighborNetwork(embedder, inputs.n_classes, head=True, learn_scale=False)
    train = ~inputs.held_out
    rows = TrainingRows(inputs.x_train[train], inputs.y_train[train])
    config = upper_bound_config(preset, study_augmentation(inputs))
    result = train_embedder(
        network, rows, None, config,
        seed=seed, device=device, checkpoint=checkpoint, progress=progress,
        objective=UpperBoundObjective,
    )  # fmt: skip
    if result.interrupted:
        raise KeyboardInterrupt
    held_out = predict(network, inputs.x_train[inputs.held_out], device, preset.precision)
    labels = inputs.y_train[inputs.held_out].numpy()
    temperature = fit_temperature(held_out, labels, ridge=RIDGE / len(labels))
    proba = predict(network, inputs.x_test, device, preset.precision)
    return UpperBound(network, inputs, result.history, temperature, proba)


def upper_bound_config(
    preset: StudyPreset, augmentation: FullAugmentation | None = None
) -> UpperBoundConfig:
    """Give the settings of the training loop that make it the study's CNN."""
    return UpperBoundConfig.model_validate(
        {
            "epochs": preset.cnn_epochs,
            "batch_size": preset.cnn_batch_size,
            "lr": preset.cnn_lr,
            "weight_decay": preset.cnn_weight_decay,
            "label_smoothing": preset.cnn_label_smoothing,
            "warmup_epochs": 0.0,
            "knn_weight": 0.0,
            "ce_weight": 1.0,
            "patience": None,
            "augment": augmentation,
            "precision": preset.precision,
        }
    )


@torch.no_grad()
def predict(
    network: NeighborNetwork, rows: Tensor, device: torch.device, precision: Precision
) -> np.ndarray:
    """Class probabilities (n, n_classes) float64 of the linear head."""
    assert network.head is not None  # built with one
    keys = encode(network.embedder, rows, device, precision)
    return to_numpy(torch.softmax(network.head(keys), dim=1))
