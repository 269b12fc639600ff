"""Optimizers, learning rate schedules, and averaged weights.

`optimizer="lookahead"` is the training of the fast networks' publication (Jordan,
arXiv 2404.00498), without gradient clipping: SGD with Nesterov momentum 0.85; biases of batch
normalisation at 64 times the rate; warm-up from a fifth of the rate and linear decay to 0.07 of it;
and weights that are reset to their average every 5 steps, `Lookahead`.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nearwise.training.settings import EngineConfig

_MOMENTUM = {"sgd": 0.9, "lookahead": 0.85}
_NORM_BIAS_LR = 64.0
_FIRST_RATE, _LAST_RATE = 0.2, 0.07
LOOKAHEAD_DECAY = 0.95**5
_LOOKAHEAD_STEPS = 5


def learning_rate_factor(
    step: int,
    total_steps: int,
    warmup_steps: int,
    *,
    schedule: Literal["cosine", "linear"] = "cosine",
    start: float = 0.0,
    floor: float = 0.0,
) -> float:
    """Factor on the learning rate at `step` (from 0): linear warm-up, then `schedule`.

    Warm-up begins at `start`; `floor` is the factor at `total_steps`.
    """
    if step < warmup_steps:
        return start + (1 - start) * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if schedule == "linear":
        return 1 - (1 - floor) * progress
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def parameter_groups(
    network: nn.Module, weight_decay: float, backbone_lr: float = 1.0, norm_bias_lr: float = 1.0
) -> list[dict[str, Any]]:
    """Split trainable parameters into matrices, with decay, and biases and norms, without.

    Frequencies and phases of periodic embeddings do not decay either: zero is not a neutral value
    for them. If `backbone_lr` is not 1, the backbone of an image embedder has two separate groups,
    with that factor on the learning rate. If `norm_bias_lr` is not 1, so have the biases of batch
    normalisation, which then decay by as much per step as matrices do.
    """
    found: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    faster = _norm_biases(network) if norm_bias_lr != 1 else []
    taken = set(map(id, faster))
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad or id(parameter) in taken:
            continue
        periodic = name.rsplit(".", 1)[-1] in ("frequencies", "phase", "bias")
        free = parameter.ndim < 2 or periodic
        slower = backbone_lr != 1 and name.startswith("embedder.trunk.backbone.")
        found.setdefault((slower, free), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {
            "params": parameters,
            "weight_decay": 0.0 if free else weight_decay,
            "lr_factor": backbone_lr if slower else 1.0,
        }
        for (slower, free), parameters in sorted(found.items(), key=lambda group: group[0])
    ]
    if faster:
        decay = weight_decay / norm_bias_lr
        groups.append({"params": faster, "weight_decay": decay, "lr_factor": norm_bias_lr})
    return groups


def _norm_biases(network: nn.Module) -> list[nn.Parameter]:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    found = (module.bias for module in network.modules() if isinstance(module, kinds))
    return [bias for bias in found if bias is not None and bias.requires_grad]


def make_optimizer(
    model: nn.Module, config: EngineConfig, *, backbone_lr: float = 1.0
) -> torch.optim.Optimizer:
    """Make an optimizer over the groups of `parameter_groups`."""
    norm_bias_lr = _NORM_BIAS_LR if config.optimizer == "lookahead" else 1.0
    groups = parameter_groups(model, config.weight_decay, backbone_lr, norm_bias_lr)
    if not groups:
        raise ValueError("The module has no trainable parameters, so there is nothing to train.")
    if config.optimizer in _MOMENTUM:
        momentum = _MOMENTUM[config.optimizer]
        return torch.optim.SGD(groups, lr=config.lr, momentum=momentum, nesterov=True)
    on_cuda = all(p.device.type == "cuda" for group in groups for p in group["params"])
    return torch.optim.AdamW(groups, lr=config.lr, fused=True if on_cuda else None)


def rate_factor(config: EngineConfig, step: int, steps_per_epoch: int, floor: float = 0.0) -> float:
    """Factor in (0, 1] on the learning rates of a step (from 0), with `floor` at the end."""
    total = config.epochs * steps_per_epoch
    warmup = round(config.warmup_epochs * steps_per_epoch)
    if config.optimizer == "lookahead":
        return learning_rate_factor(
            step, total, warmup, schedule="linear", start=_FIRST_RATE, floor=_LAST_RATE
        )
    return learning_rate_factor(step, total, warmup, floor=floor)


class WeightAverage:
    """Average of a module's weights during training.

    `state` is the averaged state, on the module's device.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.state = copied_state(model.state_dict())

    def update(self, step: int) -> None:
        """Update the average after step `step`, counted from 0."""
        raise NotImplementedError

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Load the weights to evaluate and keep within the context; by default the present ones."""
        yield


class Lookahead(WeightAverage):
    """Weights that are reset every few steps to their moving average.

    Parameters
    ----------
    model : nn.Module
    decay : float
        Final decay of the average; it grows with the cube of the share of steps taken.
    total_steps : int
        Number of steps; after the last one the weights are the average.

    References
    ----------
    Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back", NeurIPS 2019.
    """

    def __init__(self, model: nn.Module, decay: float, total_steps: int) -> None:
        super().__init__(model)
        self.decay, self.total_steps = decay, total_steps

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after step `step`, counted from 0, and reset the weights to it."""
        taken = step + 1
        if taken % _LOOKAHEAD_STEPS and taken < self.total_steps:
            return
        floating = [n for n, tensor in self.state.items() if tensor.is_floating_point()]
        present = self.model.state_dict()
        average, own = [self.state[n] for n in floating], [present[n] for n in floating]
        torch._foreach_lerp_(average, own, 1 - self.decay * (taken / self.total_steps) ** 3)
        torch._foreach_copy_(own, average)


def copied_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a detached copy of a state."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}
