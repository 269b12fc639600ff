"""Convolutions over the ranked neighbors of a token: a weight a slot."""

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from nearwise.functional.tokens.slot_mix import slot_mix
from nearwise.functional.tokens.slots import slot_sum

Convolution = Literal["standard", "depthwise", "depthwise-separable"]


class SlotConvolution(nn.Module):
    """Combine the weighed values of a token's k neighbors, each rank with weights of its own.

    Parameters
    ----------
    kind : {"standard", "depthwise", "depthwise-separable"}
        "standard": ``o = sum_k W_k (a_k v_k)`` with a matrix a slot; "depthwise": with a number a
        channel and slot, 1 at first, which is plain attention; "depthwise-separable": that, then
        one matrix for all slots.
    in_width : int
        Width of the values; beyond `out_width`, "depthwise" leaves the rest out.
    out_width : int
        Width of the output.
    n_slots : int
        Neighbors of a token.
    """

    def __init__(
        self, kind: Convolution, in_width: int, out_width: int, n_slots: int, **factory: Any
    ) -> None:
        super().__init__()
        if kind not in get_args(Convolution):
            known = ", ".join(get_args(Convolution))
            raise ValueError(f"convolution={kind!r} is not one of {known}.")
        self.kind, self.n_slots, self.out_width = kind, n_slots, out_width
        if kind == "standard":
            self.weight = nn.Parameter(torch.empty(out_width, in_width, n_slots, **factory))
        elif kind == "depthwise":
            self.weight = nn.Parameter(torch.empty(out_width, 1, n_slots, **factory))
        else:
            self.weight = nn.Parameter(torch.empty(in_width, 1, n_slots, **factory))
            self.pointwise = nn.Linear(in_width, out_width, bias=False, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize: ones for "depthwise", else as torch's convolutions."""
        if self.kind == "depthwise":
            nn.init.ones_(self.weight)
        else:
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, value: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """Combine.

        Parameters
        ----------
        value : Tensor of shape (B, H, M, in_width)
        indices : int Tensor of shape (B, H, N, K)
            Position of the neighbor in each slot; -1 in empty ones.
        weights : Tensor of shape (B, H, N, K)
            Its factor; 0 in empty slots.

        Returns
        -------
        output : Tensor of shape (B, H, N, out_width)
        """
        if self.kind == "standard":
            kernel = self.weight.permute(2, 1, 0).to(value.dtype)  # (K, in, out)
            return slot_mix(value, indices, weights, kernel)
        if self.kind == "depthwise":
            return slot_sum(value[..., : self.out_width], indices, weights, self.weight[:, 0].T)
        return self.pointwise(slot_sum(value, indices, weights, self.weight[:, 0].T))

    def extra_repr(self) -> str:
        """Tell the kind and how many slots."""
        return f"{self.kind!r}, n_slots={self.n_slots}"
