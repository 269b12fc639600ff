"""Dropout that is fast on a CPU."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.functional.tokens.implementation import is_traced


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, four times as fast on a CPU; see `dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero values in training, and scale up the others."""
        return super().forward(x) if self.inplace else dropout(x, self.p, self.training)


def dropout(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """Zero a share `rate` of the values in training, and scale up the others.

    On a CPU 16 random bits per value decide, so the rate is rounded to a multiple of 1 / 65,536;
    torch draws one number of 32 bits per value, on one thread. Compiled, exported or transformed
    by torch.func, and with rates that round to 0 or 1, it is torch's own.
    """
    cut = round(rate * 2**16)
    if not (training and 0 < cut < 2**16 and runs_as_written(x)):
        return F.dropout(x, rate, training)
    words = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64, device=x.device)
    bits = words.random_(-(2**63), None).view(torch.int16)[: x.numel()].view(x.shape)
    # Ones and zeros without a comparison: turning booleans into numbers takes longer than drawing.
    highest = cut + torch.iinfo(torch.int16).min
    kept = bits.clamp_(highest - 1, highest).sub_(highest - 1)
    return x * kept.to(x.dtype).div_(1 - rate)


def runs_as_written(x: Tensor) -> bool:
    """Whether operations on a tensor run on a CPU, not compiled, exported or transformed."""
    return x.device.type == "cpu" and not (torch.compiler.is_compiling() or is_traced())
