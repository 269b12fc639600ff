"""Fast dropout on a CPU."""

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

    On a CPU 16 random bits are drawn per value, so the rate is rounded to a multiple of 1 / 65,536;
    torch draws one number of 32 bits per value, on one thread. Torch's own function is called if
    compiled, exported or transformed by torch.func, or if the rate rounds to 0 or 1.
    """
    cut = round(rate * 2**16)
    if not (training and 0 < cut < 2**16 and runs_as_written(x)):
        return F.dropout(x, rate, training)
    words = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64, device=x.device)
    bits = words.random_(-(2**63), None).view(torch.int16)[: x.numel()].view(x.shape)
    # Ones and zeros without a comparison: converting booleans takes longer than drawing.
    highest = cut + torch.iinfo(torch.int16).min
    kept = bits.clamp_(highest - 1, highest).sub_(highest - 1)
    return x * kept.to(x.dtype).div_(1 - rate)


def runs_as_written(x: Tensor) -> bool:
    """Whether operations on a tensor run on a CPU and eagerly, without any transform."""
    return x.device.type == "cpu" and not (torch.compiler.is_compiling() or is_traced())
