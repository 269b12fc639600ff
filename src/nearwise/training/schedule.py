"""Learning rate over a run, and which parameters decay."""

import math
from typing import Any, Literal

import torch
from torch import nn

from nearwise.training.config import TrainConfig

_MOMENTUM = 0.9


def learning_rate_factor(
    step: int,
    total_steps: int,
    warmup_steps: int,
    *,
    schedule: Literal["cosine", "constant"] = "cosine",
    floor: float = 0.0,
) -> float:
    """Factor on the learning rate at `step` (from 0): linear warm-up, then cosine or constant.

    Parameters
    ----------
    step : int
        Steps done so far, in [0, total_steps).
    total_steps, warmup_steps : int
    schedule : {"cosine", "constant"}, default="cosine"
    floor : float, default=0.0
        Factor the cosine would reach at `total_steps`.

    Returns
    -------
    factor : float in (0, 1].
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return 1.0
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def make_optimizer(network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW, or SGD with Nesterov momentum, over the groups of `parameter_groups`."""
    groups = parameter_groups(network, config.weight_decay, config.backbone_lr)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=_MOMENTUM, nesterov=True)
    return torch.optim.AdamW(groups, lr=config.lr)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, config: TrainConfig, step: int, steps_per_epoch: int
) -> float:
    """Set the rate of every group for `step` (from 0), and return that of the full-rate groups."""
    lr = config.lr * learning_rate_factor(
        step,
        config.epochs * steps_per_epoch,
        round(config.warmup_epochs * steps_per_epoch),
        schedule=config.schedule,
        floor=config.min_lr_ratio,
    )
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
    return lr


def parameter_groups(
    network: nn.Module, weight_decay: float, backbone_lr: float = 1.0
) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices decay; biases, scales and norms do not.

    Frequencies and phases of periodic embeddings do not decay either: zero is no neutral value
    for them. Where `backbone_lr` is not 1, the backbone of an image embedder makes two groups of
    its own, with that factor on the learning rate.
    """
    found: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        periodic = name.rsplit(".", 1)[-1] in ("frequencies", "phase", "bias")
        free = parameter.ndim < 2 or periodic
        slower = backbone_lr != 1 and name.startswith("embedder.trunk.backbone.")
        found.setdefault((slower, free), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": 0.0 if free else weight_decay,
            "lr_factor": backbone_lr if slower else 1.0,
        }
        for (slower, free), parameters in sorted(found.items(), key=lambda group: group[0])
    ]
