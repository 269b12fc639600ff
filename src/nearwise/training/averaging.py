"""Exponential moving average of a module's weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Moving average of the floating tensors of a module's state; others are taken as they are.

    The decay of step t is ``min(decay, (1 + t) / (10 + t))``, so that the first weights are
    forgotten soon.

    Parameters
    ----------
    model : nn.Module
    decay : float
        In (0, 1).

    Attributes
    ----------
    state : dict of str to Tensor
        The averaged state, on the module's device.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.state = copied_state(model.state_dict())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights in after step `step`, counted from 0."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        kept: list[Tensor] = []
        new: list[Tensor] = []
        for name, tensor in self.model.state_dict().items():
            if tensor.is_floating_point():
                kept.append(self.state[name])
                new.append(tensor)
            else:
                self.state[name].copy_(tensor)
        torch._foreach_lerp_(kept, new, share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the module the averaged weights inside, and its own again after."""
        own = copied_state(self.model.state_dict())
        self.model.load_state_dict(self.state)
        try:
            yield
        finally:
            self.model.load_state_dict(own)


def copied_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy a state, detached."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}
