"""The study's training as it was, defects included: neighbors searched ahead, self among them."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearwise.training.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from nearwise.training.encoding import autocast
from nearwise.training.rows import count_batches, epoch_batches
from nearwise.training.schedule import learning_rate_factor
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.model import StudyModel, encode, make_model
from nearwise_lab.experiments.study.neighbors import (
    Found,
    Memory,
    attention_vote,
    look_up,
    training_neighbors,
)
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.experiments.study.steps import step_losses, total_loss
from nearwise_lab.experiments.study.views import study_augmentation
from nearwise_lab.training.hard_rows import (
    hard_row_weights,
    neighbor_disagreement,
    weighted_batches,
)
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
        With the weights of its best epoch, in eval mode.
    memory : Memory
        Keys of a clean pass over the training rows, and their labels.
    inputs : StudyInputs
    preset : StudyPreset
    history : list of dict
        One record per epoch: stage, epoch, train_loss, parts (knn, entropy, contrastive, ce),
        knn_clean, attention_entropy (nats), temperatures, lr, test_accuracy, seconds.
    best_epoch : int
        Epoch of the best accuracy on the test rows, as there.
    """

    model: StudyModel
    memory: Memory
    inputs: StudyInputs
    preset: StudyPreset
    history: list[dict[str, Any]]
    best_epoch: int

    @property
    def seconds(self) -> float:
        """Training time in seconds, breaks left out."""
        return float(sum(record["seconds"] for record in self.history))


def run_digest(inputs: StudyInputs, preset: StudyPreset) -> str:
    """Hash of what decides a replay: rows, labels, seed and training settings."""
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
    """Train embedder and attention as the study did.

    The neighbors of every training row are found in the training memory, the row itself
    included unless `preset.leave_self_out`, and used until the next refresh. AdamW trains the
    embedder at a tenth of the attention's rate, with warm-up, cosine and clipping as set. The
    epoch with the best accuracy on the test rows is kept.

    Parameters
    ----------
    inputs : StudyInputs
    preset : StudyPreset
    device : torch.device or str, default="cpu"
    checkpoint : path of a folder, optional
        Written at the end of every epoch; where it exists the run goes on from it, to the same
        result as an unbroken one. A finished run is read back.
    progress : callable, optional
        Called with each epoch's record.

    Returns
    -------
    run : TrainedRun

    Raises
    ------
    ValueError
        If the loss is no longer finite, or the checkpoint belongs to another run.
    """
    device = torch.device(device)
    seed = inputs.seed + preset.seed_offset
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        loop = _Loop(inputs, preset, seed, device, checkpoint)
        how = RunConfig.model_validate({"compile": preset.compile})
        with compiled(loop.model.embedder, how):
            loop.train(progress)
    return loop.result()


class _Loop:
    """The moving parts of one replay."""

    def __init__(
        self,
        inputs: StudyInputs,
        preset: StudyPreset,
        seed: int,
        device: torch.device,
        checkpoint: str | Path | None,
    ) -> None:
        self.inputs, self.preset, self.device = inputs, preset, device
        self.augmentation = study_augmentation(inputs) if preset.augment else None
        self.checkpoint = checkpoint
        self.rows, self.labels = inputs.x_train.to(device), inputs.y_train.to(device)
        self.model = make_model(preset, inputs, seed).to(device)
        if inputs.is_images:  # convolutions are faster so
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = self._new_optimizer()
        self.generator = torch.Generator().manual_seed(seed)
        self.state = TrainingState()
        self.row_weights: Tensor | None = None
        self.neighbors: Found | None = None
        self.memory: Memory | None = None
        self.digest = run_digest(inputs, preset) if checkpoint is not None else ""
        self._resume()

    def _new_optimizer(self) -> torch.optim.Optimizer:
        groups = self.model.parameter_groups(self.preset)
        for group in groups:
            group["initial_lr"] = group["lr"]
        return torch.optim.AdamW(groups, weight_decay=self.preset.weight_decay)

    def train(self, progress: Progress | None) -> None:
        """Go through the epochs that are left."""
        while not self.state.finished:
            start = time.perf_counter()
            record = self._train_epoch()
            record["test_accuracy"] = self._test_accuracy()
            record["seconds"] = time.perf_counter() - start
            self._note(record)
            self._save()
            if progress is not None:
                progress(record)

    def result(self) -> TrainedRun:
        """Take the best epoch's weights and build the memory from a clean pass."""
        self.model.load_state_dict(self.state.best)
        self.model.eval()
        return TrainedRun(
            self.model, self._clean_memory(), self.inputs, self.preset,
            self.state.history, self.state.best_epoch,
        )  # fmt: skip

    def _clean_memory(self) -> Memory:
        keys = encode(self.model.embedder, self.rows, self.device, self.preset.precision)
        return Memory(keys, self.labels)

    def _refresh(self) -> None:
        """Find the training rows' neighbors again, and the hard rows with them."""
        preset = self.preset
        self.memory = self._clean_memory()
        self.neighbors = training_neighbors(
            self.memory.keys, preset.n_neighbors, leave_self_out=preset.leave_self_out
        )
        if preset.hard_negative_weight > 1:
            disagreement = neighbor_disagreement(
                self.memory.keys,
                self.labels,
                torch.arange(len(self.labels), device=self.device),
                self.model.n_classes,
                preset.hard_negative_neighbors,
            )
            self.row_weights = hard_row_weights(
                disagreement,
                fraction=preset.hard_negative_fraction,
                weight=preset.hard_negative_weight,
            )

    def _train_epoch(self) -> dict[str, Any]:
        preset, epoch = self.preset, self.state.epoch
        if epoch % preset.refresh_every == 0 or self.neighbors is None:
            self._refresh()
        assert self.neighbors is not None and self.memory is not None  # refreshed above
        n = len(self.rows)
        self.model.train()
        sums: dict[str, float] = {}
        clean: list[float] = []
        drawn = epoch_batches(n, preset.batch_size, 1, self.generator)
        if self.row_weights is not None:
            size, weights = preset.batch_size, self.row_weights
            drawn = weighted_batches(n, size, 1, self.generator, weights)
        batches = list(drawn)
        for number, batch in enumerate(batches):
            positions = batch.queries.to(self.device)
            if len(positions) < 2:  # batch normalisation needs two rows
                continue
            lr = self._set_rate(epoch * len(batches) + number)
            with autocast(self.device, preset.precision):
                step = step_losses(
                    self.model, self.rows, positions, self.labels, self.neighbors, self.memory,
                    preset, self.generator, self.augmentation,
                )  # fmt: skip
                loss = total_loss(step.parts, preset)
            self._descend(loss)
            for name, part in {"total": loss, **step.parts}.items():
                sums[name] = sums.get(name, 0.0) + float(part.detach()) * len(positions)
            sums["rows"] = sums.get("rows", 0.0) + len(positions)
            clean += [] if step.knn_clean is None else [step.knn_clean]
        rows = sums.pop("rows")
        means = {name: value / rows for name, value in sums.items()}
        entropy = means.get("entropy")
        return {
            "stage": "replay",
            "member": 0,
            "epoch": epoch + 1,
            "train_loss": means.pop("total"),
            "parts": means,
            "knn_clean": sum(clean) / len(clean) if clean else None,
            "attention_entropy": None if entropy is None else -entropy,
            "temperatures": self.model.attention.temperature.tolist(),
            "lr": lr,
        }

    def _descend(self, loss: Tensor) -> None:
        if not torch.isfinite(loss):
            raise ValueError(
                f"The loss is {float(loss)} in epoch {self.state.epoch + 1}. Lower lr (it is "
                f"{self.preset.lr})."
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.preset.gradient_clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.preset.gradient_clip)
        self.optimizer.step()

    def _set_rate(self, step: int) -> float:
        steps = count_batches(len(self.rows), self.preset.batch_size)
        factor = learning_rate_factor(
            step, self.preset.epochs * steps, round(self.preset.warmup_epochs * steps)
        )
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        return float(self.preset.lr * factor)

    def _test_accuracy(self) -> float:
        memory = self._clean_memory()
        self.model.eval()
        x, y = self.inputs.x_test, self.inputs.y_test
        found = look_up(self.model, x, memory, self.preset.n_neighbors, self.preset.precision)
        guess = attention_vote(self.model, found, memory).argmax(dim=1).cpu()
        return float((guess == y).float().mean())

    def _note(self, record: dict[str, Any]) -> None:
        state = self.state
        before = [r["test_accuracy"] for r in state.history]
        if not before or record["test_accuracy"] > max(before):
            state.best_epoch = record["epoch"]
            state.best = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        state.history.append(record)
        state.epoch = record["epoch"]
        state.finished = state.epoch >= self.preset.epochs

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        extra: dict[str, Tensor] = {}
        if not self.state.finished:
            assert self.neighbors is not None and self.memory is not None  # an epoch has run
            extra = {
                "memory": self.memory.keys,
                "indices": self.neighbors.indices,
                "distances": self.neighbors.distances,
            }
            if self.row_weights is not None:
                extra["row_weights"] = self.row_weights
        # Nothing goes on from a finished run: its moments need no room.
        optimizer = self._new_optimizer() if self.state.finished else self.optimizer
        model: Any = self.model
        save_checkpoint(
            self.checkpoint, self.digest, self.state, model, optimizer, self.generator, extra
        )

    def _resume(self) -> None:
        if self.checkpoint is None:
            return
        model: Any = self.model
        found = load_checkpoint(self.checkpoint, self.digest, model, self.optimizer, self.generator)
        if found is None:
            return
        self.state, extra = found
        if "memory" in extra:
            self.memory = Memory(extra["memory"], self.labels)
            self.neighbors = Found(extra["memory"], extra["distances"], extra["indices"])
            self.row_weights = extra.get("row_weights")
