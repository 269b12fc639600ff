"""Further training of the pretrained head on rows with known neighbors."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from nearwise.functional.threads import one_thread
from nearwise.nn import HeadOutput, NeighborSet, PretrainedNeighborHead
from nearwise.training.engine import NotFiniteError, Progress, train_epochs
from nearwise.training.objective import Objective, Parts, Record
from nearwise.training.settings import EngineConfig, StrictSettings
from nearwise.warn import warn_user

_SMALL_STEP = 20_000  # neighbors per step; below it threads cost more than they save
_BATCH = 128  # rows per step
_STEPS = 40  # most steps between evaluations
_MIN_GAIN = 1e-5  # least improvement in nats over the best epoch


class HeadConfig(StrictSettings):
    """Settings of `train_head`.

    Parameters
    ----------
    epochs : int, default=12
        Maximum number of evaluations, each after at most 40 steps of 128 rows, redrawn every time.
    lr : float, default=2e-3
        Learning rate of AdamW, without weight decay, with a cosine schedule to nearly 0.
    neighbor_weight : float, default=0.2
        Weight of the loss of the neighbors alone, added to the loss of the pooled prediction. With
        0, attention concentrates on neighbors that contradict the base and explains no answer.
    patience : int, default=3
        Evaluations without a better held-out NLL before stopping.
    """

    settings_of = "head"

    epochs: int = Field(12, ge=1)
    lr: float = Field(2e-3, gt=0)
    neighbor_weight: float = Field(0.2, ge=0)
    patience: int = Field(3, ge=1)

    def loss(self, output: HeadOutput, rows: "HeadRows") -> Tensor:
        """Weighted mean NLL of the pooled prediction and of the neighbors alone."""
        loss = rows.loss(output.log_proba)
        if self.neighbor_weight:
            loss = loss + self.neighbor_weight * rows.loss(output.neighbor_log_proba)
        return (loss * rows.weight).sum() / rows.weight.sum().clamp_min(1e-12)


def _unchanged(log_proba: Tensor) -> Tensor:
    return log_proba


@dataclass(frozen=True)
class HeadRows:
    """Neighbor sets, base predictions and labels of the training rows of a head.

    Parameters
    ----------
    spaces : list of NeighborSet
        One entry per key space, each for the same n rows.
    base_log_proba : Tensor of shape (n, C)
    labels : int64 Tensor of shape (n,)
    weight : Tensor of shape (n,)
        Non-negative weight of each row's loss.
    given_log_proba : callable, optional
        Maps log-probabilities (n, C) of the true classes, predicted by the head, to those of the
        given `labels` in the loss. By default both are the same.
    """

    spaces: list[NeighborSet]
    base_log_proba: Tensor
    labels: Tensor
    weight: Tensor
    given_log_proba: Callable[[Tensor], Tensor] = _unchanged

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "HeadRows":
        """Return some of the rows."""
        return HeadRows(
            [space.take(rows) for space in self.spaces],
            self.base_log_proba[rows],
            self.labels[rows],
            self.weight[rows],
            self.given_log_proba,
        )

    def loss(self, log_proba: Tensor) -> Tensor:
        """NLL of each row's label, (n,), from predicted log-probabilities (n, C)."""
        return F.nll_loss(self.given_log_proba(log_proba), self.labels, reduction="none")


def train_head(
    head: PretrainedNeighborHead,
    train: HeadRows,
    held_out: HeadRows,
    config: HeadConfig,
    *,
    seed: int,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Fit `head` in place; it ends in eval mode with the weights of the lowest held-out NLL.

    The untrained head counts as epoch 0.

    Parameters
    ----------
    head : PretrainedNeighborHead
        Head to train, changed in place.
    train, held_out : HeadRows
        Distinct rows.
    config : HeadConfig
    seed : int
        Seed of the batches; torch's global random state is unchanged.
    progress : callable, optional
        Called with each epoch's record.

    Returns
    -------
    history : list of dict
        epoch, train_loss, held_out_nll.
    """
    objective = HeadObjective(head, train, held_out, config)
    work = _BATCH * train.spaces[0].labels.shape[1]
    with one_thread() if work < _SMALL_STEP else nullcontext():
        try:
            result = train_epochs(
                objective,
                objective.engine(),
                seed=seed,
                device=train.labels.device,
                monitor="held_out_nll",
                progress=progress,
            )
        except NotFiniteError as error:
            result = error.result
            kept = f"{objective.name} stopped early, its best weights so far are kept: {error}"
            warn_user(kept)
    first = (result.monitored or [held_out_nll(head, held_out)])[0]  # empty after an early Ctrl-C
    return [{"epoch": 0, "train_loss": None, "held_out_nll": first}, *result.history]


class HeadObjective(Objective):
    """NLL of the pooled prediction and of the neighbors alone, see `HeadConfig`."""

    name = "The attention head's training"
    seeded_once = True
    starts_judged = True
    min_gain = _MIN_GAIN
    last_rate = 0.02

    def __init__(
        self, head: PretrainedNeighborHead, train: HeadRows, held_out: HeadRows, config: HeadConfig
    ) -> None:
        super().__init__(head, len(train))
        self.head, self.train, self.held_out, self.settings = head, train, held_out, config

    def engine(self) -> EngineConfig:
        """Return the settings of the loop."""
        return EngineConfig(
            epochs=self.settings.epochs,
            batch_size=_BATCH,
            lr=self.settings.lr,
            patience=self.settings.patience,
        )

    def make_optimizer(self, config: EngineConfig) -> torch.optim.Optimizer:
        """Make an AdamW optimizer."""
        return torch.optim.AdamW(self.head.parameters(), lr=config.lr, weight_decay=0, fused=True)

    def steps_per_epoch(self, config: EngineConfig) -> int:
        """Return the number of batches between evaluations."""
        return min(_STEPS, super().steps_per_epoch(config))

    def batches(
        self, epoch: int, config: EngineConfig, generator: torch.Generator
    ) -> Iterable[Tensor]:
        """Return positions of rows, on their device."""
        # Drawn on the CPU: the same batches on every device.
        order = torch.randperm(self.n_rows, generator=generator).to(self.train.labels.device)
        size = config.batch_size
        return order[: size * _STEPS].split(size)

    def loss(self, batch: Tensor, generator: torch.Generator, step: int) -> Parts:
        """Loss of the rows at the positions of a batch."""
        rows = self.train.take(batch)
        return {"loss": self.settings.loss(self.head(rows.spaces, rows.base_log_proba), rows)}

    def evaluate(self, epoch: int) -> dict[str, Any]:
        """NLL of the held-out rows."""
        return {"held_out_nll": held_out_nll(self.head, self.held_out)}

    def record(self, epoch: Record) -> Record:
        """Return a record in the form of a head's history."""
        loss = epoch["train"]["loss"]
        return {"epoch": epoch["epoch"], "train_loss": loss, **epoch["evaluation"]}


def held_out_nll(head: PretrainedNeighborHead, rows: HeadRows) -> float:
    """Weighted NLL of the pooled prediction, in nats."""
    log_proba = head.predict(rows.spaces, rows.base_log_proba).log_proba
    loss = rows.loss(log_proba)
    return float((loss * rows.weight).sum() / rows.weight.sum().clamp_min(1e-12))
