"""Learning rate over a run, and which parameters decay."""

import math
from typing import Any, Literal

from torch import nn


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


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices decay; biases, scales and norms do not.

    Frequencies and phases of periodic embeddings do not decay either: zero is no neutral value
    for them.
    """
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        periodic = name.rsplit(".", 1)[-1] in ("frequencies", "phase", "bias")
        (free if parameter.ndim < 2 or periodic else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
