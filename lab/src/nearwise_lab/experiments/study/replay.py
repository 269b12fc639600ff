"""The study's training with its defects: neighbors searched in advance, the row itself included."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearwise.nn import soft_cross_entropy, soft_targets
from nearwise.training import train_epochs
from nearwise.training.augment import draw_batch_mix, mix_labels
from nearwise.training.objective import Objective, Parts
from nearwise.training.rows import epoch_batches
from nearwise.training.settings import EngineConfig
from nearwise_lab.experiments.study.inputs import StudyInputs, study_augmentation
from nearwise_lab.experiments.study.model import (
    Found,
    Memory,
    StudyModel,
    attention_weights,
    encode,
    look_up,
    make_model,
    training_neighbors,
    vote,
)
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.training.augment import augment_fully
from nearwise_lab.training.hard_rows import (
    hard_row_weights,
    neighbor_disagreement,
    weighted_batches,
)
from nearwise_lab.training.losses import selective_risk, supervised_contrastive
from nearwise_lab.training.runs import RunConfig, compiled

Progress = Callable[[dict[str, Any]], None]

# Settings that decide an evaluation and leave the training as it is.
_EVALUATION = frozenset(
    ("name", "held_out", "distance_temperature", "views", "ensemble_k", "adaptive_k_max", "sweep_k",
     "noise_rates", "tail_ratios", "human_labels", "ablations", "max_rows", "max_test_rows",
     "cnn_epochs", "cnn_lr", "cnn_weight_decay", "cnn_label_smoothing", "cnn_batch_size")
)  # fmt: skip


@dataclass(frozen=True)
class TrainedRun:
    """A trained replay.

    Attributes
    ----------
    model : StudyModel
        With the weights of `best_epoch` (by the accuracy on the test rows, as there), in eval mode.
    memory : Memory
        Keys of a clean pass over the training rows, and their labels.
    history : list of dict
        One record per epoch: stage, epoch, train_loss, parts (knn, entropy, contrastive, ce),
        knn_clean, attention_entropy (nats), temperatures, lr, test_accuracy, seconds.
    """

    model: StudyModel
    memory: Memory
    inputs: StudyInputs
    preset: StudyPreset
    history: list[dict[str, Any]]
    best_epoch: int

    @property
    def seconds(self) -> float:
        """Training time in seconds, without breaks."""
        return float(sum(record["seconds"] for record in self.history))

    def find(self, rows: Tensor, k: int) -> Found:
        """Encode rows and find their nearest `k` (or all) remembered rows, timed."""
        return look_up(self.model, rows, self.memory, k, self.preset.precision)

    def weights(self, found: Found, mask: Tensor | None = None) -> Tensor:
        """Learned weights (n, k) of found neighbors; True in `mask` keeps a neighbor."""
        return attention_weights(self.model, found, self.memory, mask)

    def vote(self, found: Found, weights: Tensor | None = None) -> Tensor:
        """Class probabilities (n, C) by found neighbors under weights, else the learned ones."""
        weights = self.weights(found) if weights is None else weights
        return vote(weights, self.memory.labels[found.indices], self.model.n_classes)


def run_digest(inputs: StudyInputs, preset: StudyPreset) -> str:
    """Hash of a replay's rows, labels, seed and training settings."""
    settings = preset.model_dump(exclude=set(_EVALUATION))
    described = json.dumps([settings, inputs.seed, inputs.digest], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def train_replay(
    inputs: StudyInputs,
    preset: StudyPreset,
    *,
    device: torch.device | str = "cpu",
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> TrainedRun:
    """Train embedder and attention as in the study.

    The neighbors of every training row are found in the training memory, the row itself
    included unless `preset.leave_self_out`, and used until the next refresh. AdamW trains the
    embedder at a tenth of the attention's rate, with warm-up, cosine and clipping as set. The
    epoch with the best accuracy on the test rows is kept. The folder `checkpoint` is written after
    every epoch; where it exists the run goes on from it, to the same result as an unbroken one.
    `progress` gets each epoch's record.

    Raises
    ------
    ValueError
        If the loss is no longer finite, or the checkpoint belongs to another run.
    """
    seed, device = inputs.seed + preset.seed_offset, torch.device(device)
    model = make_model(preset, inputs, seed).to(device)
    if inputs.is_images:  # convolutions are faster so
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    objective = ReplayObjective(model, inputs, preset, device)
    names = ("epochs", "batch_size", "lr", "weight_decay", "warmup_epochs", "precision")
    config = EngineConfig(**{name: getattr(preset, name) for name in names})
    with compiled(model.embedder, RunConfig.model_validate({"compile": preset.compile})):
        result = train_epochs(
            objective, config, seed=seed, device=device, monitor="-test_accuracy",
            checkpoint=checkpoint, progress=progress,
            fingerprint="" if checkpoint is None else run_digest(inputs, preset),
        )  # fmt: skip
    if result.interrupted:
        raise KeyboardInterrupt
    memory = objective.clean_memory()
    return TrainedRun(model, memory, inputs, preset, result.history, result.best_epoch)


class ReplayObjective(Objective):
    """The study's loss, with a neighbor search at the start of every few epochs.

    `neighbors` and `memory` are those of the last refresh, of all training rows.
    """

    name = "The replay"
    seeded_once = True

    def __init__(
        self,
        model: StudyModel,
        inputs: StudyInputs,
        preset: StudyPreset,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(model, len(inputs.y_train))
        self.study, self.inputs, self.preset, self.device = model, inputs, preset, device
        self.augmentation = study_augmentation(inputs) if preset.augment else None
        self.rows, self.labels = inputs.x_train.to(device), inputs.y_train.to(device)
        self.gradient_clip = preset.gradient_clip
        self.memory: Memory | None = None
        self.neighbors: Found | None = None
        self.row_weights: Tensor | None = None

    def make_optimizer(self, config: EngineConfig) -> torch.optim.Optimizer:
        """AdamW, with a separate learning rate for the embedder."""
        groups = self.study.parameter_groups(self.preset)
        return torch.optim.AdamW(groups, weight_decay=self.preset.weight_decay)

    def clean_memory(self) -> Memory:
        """Embeddings of all training rows without augmentation, and their labels."""
        keys = encode(self.study.embedder, self.rows, self.rows.device, self.preset.precision)
        return Memory(keys, self.labels)

    def refresh(self) -> None:
        """Update the training rows' neighbors, and the weights of hard rows."""
        preset, memory = self.preset, self.clean_memory()
        self.memory = memory
        self.neighbors = training_neighbors(
            memory.keys, preset.n_neighbors, leave_self_out=preset.leave_self_out
        )
        if preset.hard_negative_weight > 1:
            ids = torch.arange(self.n_rows, device=self.labels.device)
            disagreement = neighbor_disagreement(
                memory.keys, self.labels, ids, self.study.n_classes, preset.hard_negative_neighbors
            )
            share, weight = preset.hard_negative_fraction, preset.hard_negative_weight
            self.row_weights = hard_row_weights(disagreement, fraction=share, weight=weight)

    def batches(self, epoch: int, config: EngineConfig, generator: torch.Generator) -> list[Tensor]:
        """Positions of rows; hard ones are drawn more often."""
        if (epoch - 1) % self.preset.refresh_every == 0 or self.neighbors is None:
            self.refresh()
        self.sums, self.clean = defaultdict[str, float](float), list[float]()
        split = self.n_rows, self.preset.batch_size, 1, generator
        if self.row_weights is None:
            drawn = epoch_batches(*split)
        else:
            drawn = weighted_batches(*split, self.row_weights)
        # batch normalisation needs two rows
        return [batch.queries.to(self.device) for batch in drawn if len(batch.queries) > 1]

    def loss(self, batch: Tensor, generator: torch.Generator, step: int) -> Parts:
        """Weighted sum of the terms."""
        preset = self.preset
        weights = {
            "ce": 1.0,
            "knn": preset.knn_weight,
            "contrastive": preset.contrastive_weight,
            "entropy": preset.entropy_weight,
            "selective": preset.selective_weight,
        }
        parts, clean = self.terms(batch, generator)
        total = torch.stack([weights[name] * part for name, part in parts.items()]).sum()
        parts = {"loss": total, **parts}
        for name, part in parts.items():
            self.sums[name] += float(part.detach()) * len(batch)
        self.sums["rows"] += len(batch)
        self.clean += [] if clean is None else [clean]
        return parts

    def terms(self, positions: Tensor, generator: torch.Generator) -> tuple[Parts, float | None]:
        """Terms of the loss of the rows (B,) at these positions, unweighted.

        "entropy" is the negative entropy of the weights, as it enters the loss. Beside them the
        vote's NLL against plain labels, None on a mixed batch. The generator, on the CPU, decides
        views and MixUp.
        """
        preset, model = self.preset, self.study
        x, own = self.rows[positions], self.labels[positions]
        if self.augmentation is not None:
            x = augment_fully(x, self.augmentation, generator)
        share = preset.mixup_alpha, preset.mixup_probability
        mix = draw_batch_mix(*share, len(x), generator, x.device)
        targets = soft_targets(own, model.n_classes)
        if mix is None:
            keys = model.embedder(x)
        else:
            # One share for the whole batch, as there.
            mix = mix._replace(share=mix.share[:1].expand_as(mix.share))
            keys = model.embedder.key(model.embedder.embed_mixed(x, None, *mix))
            targets = mix_labels(own, mix, model.n_classes)
        keys = keys.float()
        if model.classifier is not None:
            logits = model.classifier(keys)
            ce = soft_cross_entropy(logits, targets, smoothing=preset.label_smoothing)
            return {"ce": ce}, None
        assert self.neighbors is not None and self.memory is not None  # refreshed before
        # A mixed query keeps the neighbors, and their distances, of the unmixed row.
        indices, distances = (
            found[positions] for found in (self.neighbors.indices, self.neighbors.distances)
        )
        weights = model.weigh(keys, self.memory.keys[indices], distances)
        proba = vote(weights, self.labels[indices], model.n_classes)
        wanted = soft_targets(targets, model.n_classes, preset.label_smoothing)
        nll = -(wanted * proba.log()).sum(dim=1)
        parts = {
            "knn": nll.mean(),
            "entropy": -torch.special.entr(weights).sum(dim=1).mean(),
        }
        if preset.selective_weight:
            parts["selective"] = selective_risk(nll, proba.amax(dim=1))
        if preset.contrastive_weight:
            # The labels here are those of the unmixed rows, mixed or not.
            contrast = supervised_contrastive(
                keys, own, model.n_classes, temperature=preset.contrastive_temperature,
                over="pairs" if preset.contrastive_kind == "pairs" else "rows",
            )  # fmt: skip
            margin = preset.contrastive_kind == "margin"
            parts["contrastive"] = contrast - margin * preset.contrastive_margin
        if mix is not None:
            return parts, None
        picked = proba.detach()[torch.arange(len(own), device=own.device), own]
        return parts, float(-picked.log().mean())

    def evaluate(self, epoch: int) -> dict[str, Any]:
        """Accuracy on the test rows, measured per epoch as in the study."""
        memory, preset, inputs = self.clean_memory(), self.preset, self.inputs
        found = look_up(self.study, inputs.x_test, memory, preset.n_neighbors, preset.precision)
        weights = attention_weights(self.study, found, memory)
        labels = memory.labels[found.indices]
        guess = vote(weights, labels, self.study.n_classes).argmax(dim=1).cpu()
        return {"test_accuracy": float((guess == inputs.y_test).float().mean())}

    def record(self, epoch: dict[str, Any]) -> dict[str, Any]:
        """Form of a record in the history: means over rows."""
        rows = self.sums.pop("rows")
        means = {name: value / rows for name, value in self.sums.items()}
        entropy = means.get("entropy")
        return {
            "stage": "replay",
            "member": 0,
            "epoch": epoch["epoch"],
            "train_loss": means.pop("loss"),
            "parts": means,
            "knn_clean": sum(self.clean) / len(self.clean) if self.clean else None,
            "attention_entropy": None if entropy is None else -entropy,
            "temperatures": self.study.attention.temperature.tolist(),
            "lr": epoch["lr"],
            "test_accuracy": epoch["evaluation"]["test_accuracy"],
            "seconds": epoch["seconds"],
        }

    def checkpoint_due(self, epoch: int, seconds: float) -> bool:
        """Whether to write a checkpoint: after every epoch."""
        return True

    def state(self) -> dict[str, Tensor]:
        """Neighbors, memory and row weights of the last refresh, for a checkpoint."""
        if self.neighbors is None or self.memory is None:
            return {}
        found, more = self.neighbors, self.row_weights
        kept = {"memory": self.memory.keys, "indices": found.indices, "distances": found.distances}
        return kept if more is None else {**kept, "row_weights": more}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state`."""
        if state:
            self.memory = Memory(state["memory"], self.labels)
            self.neighbors = Found(state["memory"], state["distances"], state["indices"])
            self.row_weights = state.get("row_weights")
