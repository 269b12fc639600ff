"""Settings of the runs of vision transformers and neural fields, and their training loss."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from nearwise.training import BatchLoss, EngineConfig
from nearwise.training.objective import Parts
from nearwise.training.schedule import (
    WeightAverage,
    copied_state,
    learning_rate_factor,
    parameter_groups,
)

FREE_SETTINGS = {"compile", "compile_mode", "checkpoint_every"}
"""They decide how fast a run is or how often it writes, and not its result."""
_BETTER = 1e-4  # relative; what counts as progress, as in torch's ReduceLROnPlateau


class RunConfig(EngineConfig):
    """Settings of `train_epochs` with a `RunLoss`.

    Parameters
    ----------
    optimizer : {"adamw", "adam", "sgd"}, default="adamw"
        "sgd" has plain momentum.
    decay_all : bool, default=False
        Whether biases, scales and normalisation layers decay as well.
    gradient_clip : float or None, default=1.0
        Largest L2 norm of the gradient.
    schedule : {"cosine", "constant", "step", "plateau"}, default="cosine"
        "step" multiplies the rate by `lr_gamma` every `lr_step` epochs; "plateau" after
        `plateau_patience` evaluations in a row without a better monitored value.
    lr_step, lr_gamma, plateau_patience
    ema_decay : float or None, default=None
        Keep an exponential moving average of the weights with this decay, in (0, 1); it is what
        is evaluated and kept.
    evaluate_every, checkpoint_every : int, default=1
        Epochs between evaluations and between checkpoints; the last epoch always has both.
    compile : bool, default=False
        Whether `compiled` compiles the module's call.
    compile_mode : {"default", "reduce-overhead", "max-autotune"}, default="default"
    """

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"  # type: ignore[assignment]
    momentum: float = Field(0.9, ge=0, lt=1)
    decay_all: bool = False
    gradient_clip: float | None = Field(1.0, gt=0)
    schedule: Literal["cosine", "constant", "step", "plateau"] = "cosine"
    lr_step: int = Field(20, ge=1)
    lr_gamma: float = Field(0.1, gt=0, le=1)
    plateau_patience: int = Field(10, ge=0)
    ema_decay: float | None = Field(None, gt=0, lt=1)
    evaluate_every: int = Field(1, ge=1)
    checkpoint_every: int = Field(1, ge=1)
    compile: bool = False
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"

    def decides(self) -> dict[str, Any]:
        """Return the settings that change the result."""
        return self.model_dump(exclude=FREE_SETTINGS)


class RunLoss(BatchLoss):
    """Any loss of batches of rows, minimized with a `RunConfig`; see `BatchLoss`."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, torch.Generator, int], Parts],
        n_rows: int,
        evaluate: Callable[[int], dict[str, Any]] | None,
        settings: RunConfig,
    ) -> None:
        super().__init__(model, loss, n_rows, evaluate)
        self.settings, self.gradient_clip = settings, settings.gradient_clip

    def make_optimizer(self, config: EngineConfig) -> torch.optim.Optimizer:
        """Make the optimizer, with groups with and without weight decay."""
        settings = self.settings
        groups = parameter_groups(self.model, settings.weight_decay)
        for group in groups if settings.decay_all else ():
            group["weight_decay"] = settings.weight_decay
        if settings.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)
        kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
        on_cuda = all(p.device.type == "cuda" for group in groups for p in group["params"])
        return kind(groups, lr=settings.lr, fused=True if on_cuda else None)

    def rate(
        self, config: EngineConfig, step: int, steps_per_epoch: int, monitored: Sequence[float]
    ) -> float:
        """Factor on the learning rate, by the schedule of the settings."""
        settings = self.settings
        total = settings.epochs * steps_per_epoch
        warmup = round(settings.warmup_epochs * steps_per_epoch)
        if settings.schedule == "cosine" or step < warmup:
            return learning_rate_factor(step, total, warmup)
        falls = 0
        if settings.schedule == "step":
            falls = step // steps_per_epoch // settings.lr_step
        elif settings.schedule == "plateau":
            falls = count_plateaus(monitored, settings.plateau_patience)
        return float(settings.lr_gamma**falls)

    def average(self, config: EngineConfig, total_steps: int) -> WeightAverage | None:
        """Return a moving average of the weights, where the settings have one."""
        if self.settings.ema_decay is None:
            return super().average(config, total_steps)
        return MovingAverage(self.model, self.settings.ema_decay)

    def evaluation_due(self, epoch: int) -> bool:
        """Whether this epoch ends with an evaluation."""
        return epoch % self.settings.evaluate_every == 0

    def checkpoint_due(self, epoch: int, seconds: float) -> bool:
        """Whether this epoch ends with a checkpoint."""
        return epoch % self.settings.checkpoint_every == 0


@contextmanager
def compiled(module: nn.Module, settings: RunConfig) -> Iterator[None]:
    """Compile the module's call within the context, if the settings require it."""
    if settings.compile:
        module.compile(mode=settings.compile_mode)
    try:
        yield
    finally:
        if settings.compile:
            module._compiled_call_impl = None


def count_plateaus(values: Sequence[float], patience: int) -> int:
    """Count the plateaus: more than `patience` steps in a row without an improvement.

    The rule of torch's ReduceLROnPlateau (mode "min"), as a function of the values so far, so
    that nothing has to be kept beside them.
    """
    best, waited, plateaus = math.inf, 0, 0
    for value in values:
        # Not best * (1 - 1e-4): that would loosen the bar for a negative value,
        # -accuracy.
        if value < best - _BETTER * abs(best if math.isfinite(best) else 0):
            best, waited = value, 0
            continue
        waited += 1
        if waited > patience:
            plateaus, waited = plateaus + 1, 0
    return plateaus


class MovingAverage(WeightAverage):
    """Moving average of the floating tensors of a module's state; other tensors are copied.

    The decay of step t is ``min(decay, (1 + t) / (10 + t))``, so that the first weights are
    forgotten soon.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after step `step`, counted from 0."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        averaged: list[Tensor] = []
        new: list[Tensor] = []
        for name, tensor in self.model.state_dict().items():
            if tensor.is_floating_point():
                averaged.append(self.state[name])
                new.append(tensor)
            else:
                self.state[name].copy_(tensor)
        torch._foreach_lerp_(averaged, new, share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Load the averaged weights within the context; restore the module's own after."""
        present = copied_state(self.model.state_dict())
        self.model.load_state_dict(self.state)
        try:
            yield
        finally:
            self.model.load_state_dict(present)
