"""Objectives of training runs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearwise.training.rows import count_batches
from nearwise.training.schedule import (
    LOOKAHEAD_DECAY,
    Lookahead,
    WeightAverage,
    make_optimizer,
    rate_factor,
)
from nearwise.training.settings import EngineConfig

Parts = dict[str, Tensor]
Record = dict[str, Any]
_CHECKPOINT_SECONDS = 10.0  # least time between checkpoints, for short epochs


class Objective:
    """Loss and procedure of a training run; `BatchLoss` is the simplest one.

    A subclass defines `loss`, and may override the other methods.

    Parameters
    ----------
    model : nn.Module
        Model to train in place.
    n_rows : int
        Number of training rows, at least 1.
    """

    name = "Training"
    """Name of the run in messages."""
    seeded_once = False
    """Whether the generator is seeded once, instead of in every epoch."""
    starts_judged = False
    """Whether to evaluate the untrained model, as epoch 0."""
    min_gain = 0.0
    """Least decrease of the monitored value that counts as better."""
    last_rate = 0.0
    """Factor on the learning rate at the end."""
    gradient_clip: float | None = 1.0
    """Largest L2 norm of the gradient; with None, or "lookahead", it is not clipped."""

    def __init__(self, model: nn.Module, n_rows: int) -> None:
        self.model, self.n_rows = model, n_rows

    def loss(self, batch: Any, generator: torch.Generator, step: int) -> Parts:
        """Return scalars of one batch: "loss" is minimised, the others are reported.

        Called under autocast, with the model in train mode. `batch` is one of `batches`,
        `generator` the CPU generator of the run; `step` counts from 0.
        """
        raise NotImplementedError

    def gradients(
        self,
        batch: Any,
        generator: torch.Generator,
        step: int,
        backward: Callable[[Tensor], None],
    ) -> Parts:
        """Compute a batch's gradients by calls of `backward`; return the terms of `loss`.

        Gradients are cleared before and accumulate, so that a batch can be computed in pieces.
        """
        parts = self.loss(batch, generator, step)
        if "loss" not in parts:
            raise ValueError(f"The loss must return a 'loss'; it returned {sorted(parts)}.")
        backward(parts["loss"])
        return parts

    def evaluate(self, epoch: int) -> dict[str, Any]:
        """Return values after an epoch, in eval mode and without gradient; by default none."""
        return {}

    def steps_per_epoch(self, config: EngineConfig) -> int:
        """Return the number of batches in an epoch."""
        return count_batches(self.n_rows, config.batch_size)

    def batches(
        self, epoch: int, config: EngineConfig, generator: torch.Generator
    ) -> Iterable[Any]:
        """Return the batches of an epoch (from 1): by default int64 row positions, on the CPU."""
        order = torch.randperm(self.n_rows, generator=generator)
        return order.tensor_split(self.steps_per_epoch(config))

    def make_optimizer(self, config: EngineConfig) -> torch.optim.Optimizer:
        """Make the optimizer of the model's parameters.

        The rate of a group follows the schedule, times its optional "lr_factor".
        """
        return make_optimizer(self.model, config)

    def rate(
        self, config: EngineConfig, step: int, steps_per_epoch: int, monitored: Sequence[float]
    ) -> float:
        """Return the factor on the learning rates of a step (from 0).

        `monitored` holds the values of finished evaluations, lower is better.
        """
        return rate_factor(config, step, steps_per_epoch, self.last_rate)

    def average(self, config: EngineConfig, total_steps: int) -> WeightAverage | None:
        """Return the weight average that the run keeps, or None."""
        if config.optimizer != "lookahead":
            return None
        return Lookahead(self.model, LOOKAHEAD_DECAY, total_steps)

    def evaluation_due(self, epoch: int) -> bool:
        """Whether an epoch is evaluated; the last one always is."""
        return True

    def checkpoint_due(self, epoch: int, seconds: float) -> bool:
        """Whether an epoch gets a checkpoint, `seconds` after the last one; the last epoch does."""
        return seconds >= _CHECKPOINT_SECONDS

    def start(self, generator: torch.Generator) -> None:
        """Prepare the model before the first epoch; not called in a resumed run."""

    def record(self, epoch: Record) -> Record:
        """Return an epoch's record in the form of the history."""
        return epoch

    def state(self) -> dict[str, Tensor]:
        """Return further tensors for a checkpoint."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors of `state`."""


class BatchLoss(Objective):
    """Objective from a function that returns the loss of a batch of rows.

    Parameters
    ----------
    model : nn.Module
    loss : callable
        ``loss(rows, generator, step)`` with `rows` an int64 Tensor (B,) on the CPU, the CPU
        generator of the run, and the step from 0. Returns a dict of scalar tensors: "loss" is
        minimised, the others are reported.
    n_rows : int
    evaluate : callable, optional
        ``evaluate(epoch)`` returns a dict of floats.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, torch.Generator, int], Parts],
        n_rows: int,
        evaluate: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(model, n_rows)
        self._loss, self._evaluate = loss, evaluate

    def loss(self, batch: Tensor, generator: torch.Generator, step: int) -> Parts:
        """Call the function."""
        return self._loss(batch, generator, step)

    def evaluate(self, epoch: int) -> dict[str, Any]:
        """Call the function, if there is one."""
        return {} if self._evaluate is None else self._evaluate(epoch)
