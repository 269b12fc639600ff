"""The study's parametric upper bound: the same backbone with a linear head, and its temperature."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearwise.nn import NeighborNetwork
from nearwise.training import TrainConfig, TrainingRows, train_embedder
from nearwise.training.embedder import EmbedderObjective
from nearwise_lab.experiments.network import fit_temperature, tempered
from nearwise_lab.experiments.study.inputs import StudyInputs, study_augmentation
from nearwise_lab.experiments.study.model import encode, make_embedder, to_numpy
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.training.augment import FullAugmentation, augment_fully

Progress = Callable[[dict[str, Any]], None]
_RIDGE = 2.0  # pull of the temperature towards 1, in rows, as in AttnKNNClassifier


def upper_bound_names(is_images: bool) -> tuple[str, str]:
    """Names of the upper bound's two rows: "cnn" and "cnn+temperature", or "mlp" on columns."""
    name = "cnn" if is_images else "mlp"
    return name, f"{name}+temperature"


class UpperBound(NamedTuple):
    """A trained upper bound: a record per epoch, and its probabilities (n_test, n_classes).

    Its temperature is fitted on the held-out rows, which were not trained on.
    """

    history: list[dict[str, Any]]
    temperature: float
    proba: np.ndarray
    tempered: np.ndarray

    @property
    def seconds(self) -> float:
        """Training time in seconds, without breaks."""
        return float(sum(record["seconds"] for record in self.history))


def held_out_temperature(held_out: np.ndarray, labels: np.ndarray) -> float:
    """Temperature for a network, fitted to probabilities (n, n_classes) of held-out rows."""
    return fit_temperature(held_out, labels, ridge=_RIDGE / len(labels))


class UpperBoundConfig(TrainConfig):
    """`TrainConfig` of the upper bound, with the study's augmentation."""

    augment: FullAugmentation | None = None


class UpperBoundObjective(EmbedderObjective):
    """Cross-entropy of images under the study's augmentation; gradients are not clipped."""

    settings: UpperBoundConfig
    gradient_clip = None

    def changed(self, x_num: Tensor, positions: Tensor, generator: torch.Generator) -> Tensor:
        """Apply the study's random augmentation."""
        augment = self.settings.augment
        return x_num if augment is None else augment_fully(x_num, augment, generator)


def train_upper_bound(
    inputs: StudyInputs,
    preset: StudyPreset,
    *,
    device: torch.device,
    checkpoint: Path,
    progress: Progress,
) -> UpperBound:
    """Train backbone and linear head on the rows outside the hold-out part.

    Cross-entropy with label smoothing, AdamW, cosine, the last epoch; the temperature is fitted on
    the held-out rows (the study had neither). `preset` has its `cnn_` settings; a killed run goes
    on from the folder `checkpoint`, and `progress` gets each epoch's record.
    """
    seed = inputs.seed + preset.seed_offset
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedder = make_embedder(preset, inputs, normalize=False)
        network = NeighborNetwork(embedder, inputs.n_classes, head=True, learn_scale=False)
    rows = TrainingRows(inputs.x_train[~inputs.held_out], inputs.y_train[~inputs.held_out])
    result = train_embedder(
        network, rows, None, _config(preset, inputs),
        seed=seed, device=device, checkpoint=checkpoint, progress=progress,
        objective=UpperBoundObjective,
    )  # fmt: skip
    if result.interrupted:
        raise KeyboardInterrupt

    @torch.no_grad()
    def predict(rows: Tensor) -> np.ndarray:
        assert network.head is not None  # built with one
        keys = encode(network.embedder, rows, device, preset.precision)
        return to_numpy(torch.softmax(network.head(keys), dim=1))

    labels = inputs.y_train[inputs.held_out].numpy()
    temperature = held_out_temperature(predict(inputs.x_train[inputs.held_out]), labels)
    proba = predict(inputs.x_test)
    return UpperBound(result.history, temperature, proba, tempered(proba, temperature))


def _config(preset: StudyPreset, inputs: StudyInputs) -> UpperBoundConfig:
    """Make the settings of the training loop that train the study's CNN."""
    names = ("epochs", "batch_size", "lr", "weight_decay", "label_smoothing")
    settings: dict[str, Any] = {name: getattr(preset, f"cnn_{name}") for name in names}
    plain: dict[str, Any] = {"warmup_epochs": 0.0, "knn_weight": 0.0, "ce_weight": 1.0}
    settings |= plain | {"patience": None, "precision": preset.precision}
    return UpperBoundConfig(**settings, augment=study_augmentation(inputs))
