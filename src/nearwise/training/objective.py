"""What a training run minimises."""

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
_CHECKPOINT_SECONDS = 10.0  # between two, so that short epochs do not spend their time on writing


class Objective:
    """What a run minimises, and what it does in its own way; `BatchLoss` is the plain case.

    A subclass gives `loss`, and overrides what else differs from the plain case.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    n_rows : int
        Rows to train on, at least 1.
    """

    name = "Training"
    """How messages call the run."""
    seeded_once = False
    """Whether random numbers go on from epoch to epoch, instead of being seeded in each."""
    starts_judged = False
    """Whether the untrained model is evaluated too, as epoch 0."""
    min_gain = 0.0
    """By how much a monitored value must be lower than the best one to be better."""
    last_rate = 0.0
    """Share of the learning rate that is left at the end."""
    gradient_clip: float | None = 1.0
    """Largest L2 norm of the gradient; with None, or "lookahead", it is not clipped."""

    def __init__(self, model: nn.Module, n_rows: int) -> None:
        self.model, self.n_rows = model, n_rows

    def loss(self, batch: Any, generator: torch.Generator, step: int) -> Parts:
        """Scalars of one batch (one of `batches`): "loss" is minimised, the others are reported.

        Called under autocast, with the model in train mode. The generator, on the CPU, is the run's
        own; `step` counts from 0.
        """
        raise NotImplementedError

    def gradients(
        self,
        batch: Any,
        generator: torch.Generator,
        step: int,
        backward: Callable[[Tensor], None],
    ) -> Parts:
        """Compute a batch's gradients by one or more calls of `backward`, and report as `loss`.

        Gradients are cleared before and add up, so that a batch can be computed in pieces.
        """
        parts = self.loss(batch, generator, step)
        if "loss" not in parts:
            raise ValueError(f"The loss must return a 'loss'; it returned {sorted(parts)}.")
        backward(parts["loss"])
        return parts

    def evaluate(self, epoch: int) -> dict[str, Any]:
        """Values after an epoch, in eval mode and without gradient; none by default."""
        return {}

    def steps_per_epoch(self, config: EngineConfig) -> int:
        """Batches in an epoch."""
        return count_batches(self.n_rows, config.batch_size)

    def batches(
        self, epoch: int, config: EngineConfig, generator: torch.Generator
    ) -> Iterable[Any]:
        """Batches of epoch `epoch` (from 1): by default int64 positions of rows, on the CPU."""
        order = torch.randperm(self.n_rows, generator=generator)
        return order.tensor_split(self.steps_per_epoch(config))

    def make_optimizer(self, config: EngineConfig) -> torch.optim.Optimizer:
        """Optimizer of the model's parameters.

        The rate of a group follows the schedule, times its "lr_factor" where it has one.
        """
        return make_optimizer(self.model, config)

    def rate(
        self, config: EngineConfig, step: int, steps_per_epoch: int, monitored: Sequence[float]
    ) -> float:
        """Factor on the learning rates of a step (from 0).

        `monitored` holds the values of finished evaluations, lower is better.
        """
        return rate_factor(config, step, steps_per_epoch, self.last_rate)

    def average(self, config: EngineConfig, total_steps: int) -> WeightAverage | None:
        """Average of the weights that the run keeps, if any."""
        if config.optimizer != "lookahead":
            return None
        return Lookahead(self.model, LOOKAHEAD_DECAY, total_steps)

    def evaluation_due(self, epoch: int) -> bool:
        """Whether an epoch is evaluated; the last one always is."""
        return True

    def checkpoint_due(self, epoch: int, seconds: float) -> bool:
        """Whether an epoch that ends so long after the last checkpoint gets one; the last does."""
        return seconds >= _CHECKPOINT_SECONDS

    def start(self, generator: torch.Generator) -> None:
        """Prepare the model before the first epoch; not called where a run is resumed."""

    def record(self, epoch: Record) -> Record:
        """Form of an epoch's record in the history."""
        return epoch

    def state(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint keeps beside model, optimizer and random state."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take the tensors of `state` back."""


class BatchLoss(Objective):
    """Any loss of batches of rows, as a function.

    Parameters
    ----------
    model : nn.Module
    loss : callable
        ``loss(rows, generator, step)`` with `rows` an int64 Tensor (B,) on the CPU, a generator on
        the CPU that is the run's own, and the step from 0. Returns a dict of scalar tensors, whose
        "loss" is minimised; the others are reported.
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
