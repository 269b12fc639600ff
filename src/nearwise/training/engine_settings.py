"""Settings of the general training loop, and the learning rate they describe."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn

from nearwise.training.schedule import learning_rate_factor, parameter_groups
from nearwise.training.settings import refuse_unknown

Precision = Literal["float32", "bfloat16", "float16"]
_DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BETTER = 1e-4  # relative; what counts as progress, as in torch's ReduceLROnPlateau


class EngineConfig(BaseModel):
    """Settings of `train_epochs`.

    Unknown settings raise an error that names the nearest known one.

    Parameters
    ----------
    epochs : int, default=100
        Passes over the rows.
    batch_size : int, default=256
        Most rows a step; an epoch is split into batches of nearly equal size.
    optimizer : {"adamw", "adam", "sgd"}, default="adamw"
    lr, weight_decay : float
        Biases, scales and norms are not decayed.
    momentum : float, default=0.9
        Of "sgd", in [0, 1).
    scheduler : {"none", "cosine", "step", "plateau"}, default="cosine"
        "cosine" falls to `min_lr_ratio` at the last step; "step" multiplies by `lr_gamma` every
        `lr_step` epochs; "plateau" after `plateau_patience` evaluations in a row without a better
        monitored value.
    warmup_epochs : float, default=0.0
        Epochs (or a part of one) of linear warm-up, before any of them.
    lr_step : int, default=20
    lr_gamma : float, default=0.1
        In (0, 1].
    plateau_patience : int, default=10
    min_lr_ratio : float, default=0.0
        Share of `lr` that no scheduler goes below.
    gradient_clip : float or None, default=1.0
        Largest L2 norm of the gradient.
    precision : {"float32", "bfloat16", "float16"}, default="float32"
        Of the forward pass, through autocast; with "float16" the loss is scaled.
    compile : bool, default=False
        Compile the module's call with `torch.compile`.
    compile_mode : {"default", "reduce-overhead", "max-autotune"}, default="default"
    ema_decay : float or None, default=None
        Keep an exponential moving average of the weights with this decay, in (0, 1); it is what
        is evaluated and kept.
    evaluate_every : int, default=1
        Epochs between evaluations; the last epoch is always evaluated.
    checkpoint_every : int, default=1
        Epochs between checkpoints, where a checkpoint folder is given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(100, ge=1)
    batch_size: int = Field(256, ge=1)

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.9, ge=0, lt=1)

    scheduler: Literal["none", "cosine", "step", "plateau"] = "cosine"
    warmup_epochs: float = Field(0.0, ge=0)
    lr_step: int = Field(20, ge=1)
    lr_gamma: float = Field(0.1, gt=0, le=1)
    plateau_patience: int = Field(10, ge=0)
    min_lr_ratio: float = Field(0.0, ge=0, le=1)

    gradient_clip: float | None = Field(1.0, gt=0)
    precision: Precision = "float32"
    compile: bool = False
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    ema_decay: float | None = Field(None, gt=0, lt=1)
    evaluate_every: int = Field(1, ge=1)
    checkpoint_every: int = Field(1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _hint_at_unknown(cls, values: Any) -> Any:
        return refuse_unknown(values, cls, "training")

    def decides(self) -> dict[str, Any]:
        """Return the settings on which the result depends."""
        return self.model_dump(exclude={"compile", "compile_mode", "checkpoint_every"})


def autocast_to(device: torch.device, precision: Precision) -> torch.autocast:
    """Context in which modules compute in `precision`."""
    dtype = _DTYPES[precision]
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def engine_optimizer(model: nn.Module, config: EngineConfig) -> torch.optim.Optimizer:
    """Optimizer over the groups of `parameter_groups`."""
    groups = parameter_groups(model, config.weight_decay)
    if not groups:
        raise ValueError("The module has no trainable parameters, so there is nothing to train.")
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    on_cuda = all(p.device.type == "cuda" for group in groups for p in group["params"])
    return kind(groups, lr=config.lr, fused=True if on_cuda else None)


def engine_rate(
    config: EngineConfig, step: int, steps_per_epoch: int, monitored: Sequence[float]
) -> float:
    """Learning rate of a step.

    Parameters
    ----------
    config : EngineConfig
    step : int
        From 0.
    steps_per_epoch : int
    monitored : sequence of float
        Values of finished evaluations, in order, lower is better; what "plateau" goes by.

    Returns
    -------
    lr : float
    """
    warmup = round(config.warmup_epochs * steps_per_epoch)
    factor = learning_rate_factor(
        step,
        config.epochs * steps_per_epoch,
        warmup,
        schedule="cosine" if config.scheduler == "cosine" else "constant",
        floor=config.min_lr_ratio,
    )
    if step >= warmup:
        fallen = 1.0
        if config.scheduler == "step":
            fallen = config.lr_gamma ** (step // steps_per_epoch // config.lr_step)
        elif config.scheduler == "plateau":
            fallen = config.lr_gamma ** count_plateaus(monitored, config.plateau_patience)
        factor *= max(fallen, config.min_lr_ratio)
    return config.lr * factor


def count_plateaus(values: Sequence[float], patience: int) -> int:
    """How often `values` failed to fall for more than `patience` steps in a row.

    The rule of torch's ReduceLROnPlateau (mode "min"), as a function of the values so far, so
    that nothing has to be kept beside them.
    """
    best, waited, plateaus = math.inf, 0, 0
    for value in values:
        # Not best * (1 - 1e-4): that would ask a negative value, -accuracy, for less than it has.
        if value < best - _BETTER * abs(best if math.isfinite(best) else 0):
            best, waited = value, 0
            continue
        waited += 1
        if waited > patience:
            plateaus, waited = plateaus + 1, 0
    return plateaus
