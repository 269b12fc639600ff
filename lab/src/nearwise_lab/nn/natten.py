"""Neighborhood attention by NATTEN's kernels, which have not been run on a GPU yet."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nearwise.functional.tokens.implementation import is_exported
from nearwise.nn.tokens.base import Masks
from nearwise_lab.nn.neighborhood import (
    NeighborhoodAttention,
    NeighborhoodAttention1D,
    NeighborhoodAttention2D,
    check_window,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of its kernels


class _ByNatten(NeighborhoodAttention):
    """What the layers for a line and for a grid share."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Looked up here: torch.compile cannot follow an import.
        self._natten = natten_function(self.n_dims)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        if why_not := natten_lacks(query, masks, self._dropout):
            raise ValueError(f"NATTEN does not work here: {why_not}. Take {self.plain}.")
        grid = self._grid(query.shape[2] - self.num_prefix_tokens)
        for length, kernel, dilation in zip(grid, self.kernel_size, self.dilation, strict=True):
            check_window(length, kernel, dilation)
        n_prefix = self.num_prefix_tokens

        def laid_out(x: Tensor) -> Tensor:  # (B, *grid, H, D)
            return x[:, :, n_prefix:].transpose(1, 2).unflatten(1, grid).contiguous()

        more: dict[str, Any] = {}
        if n_prefix:
            more["additional_keys"], more["additional_values"] = (
                x[:, :, :n_prefix].transpose(1, 2).contiguous() for x in (key, value)
            )
        local = self._natten(
            laid_out(query),
            laid_out(key),
            laid_out(value),
            kernel_size=self.kernel_size,
            stride=self.stride,
            dilation=self.dilation,
            is_causal=self.causal,
            scale=self.scale,
            **more,
        )
        local = local.flatten(1, len(grid)).transpose(1, 2)
        return self._with_prefix(query, key, value, masks, local)

    @property
    def plain(self) -> str:
        """Name of the same layer in plain PyTorch."""
        return f"NeighborhoodAttention{self.n_dims}D"


class NattenAttention1D(_ByNatten, NeighborhoodAttention1D):
    """`NeighborhoodAttention1D` by NATTEN's kernels, without masks and dropout of weights.

    Parameters
    ----------
    *args, **options
        As there.

    Raises
    ------
    ImportError
        If `natten`, 0.20 or later, is not installed.
    """


class NattenAttention2D(_ByNatten, NeighborhoodAttention2D):
    """`NeighborhoodAttention2D` by NATTEN's kernels, without masks and dropout of weights.

    Parameters and errors as for `NattenAttention1D`.
    """


def natten_lacks(query: Tensor, masks: Masks, dropout_p: float) -> str:
    """Return why NATTEN cannot attend here; empty if it can."""
    if masks.attn_mask is not None or masks.key_padding_mask is not None or masks.is_causal:
        return "it takes no masks"
    if dropout_p:
        return "it drops no attention weights (attn_drop)"
    if query.dtype not in _DTYPES:
        return f"it has no kernels for {query.dtype}"
    if not query.shape[2]:
        return "it takes no empty sequences"
    if is_exported():
        return "its operators cannot be exported"
    return ""


@functools.cache
def natten_function(n_dims: int) -> Callable[..., Tensor]:
    """Return NATTEN's function for a line or a grid."""
    install = "Install a wheel of natten 0.20 or later for your torch from https://natten.org."
    try:
        natten = importlib.import_module("natten")
    except ImportError as error:
        raise ImportError(f"natten cannot be imported ({error}). {install}") from error
    found: Callable[..., Tensor] | None = getattr(natten, f"na{n_dims}d", None)
    needed = {"stride", "additional_keys", "additional_values"}
    if found is None or not needed <= set(inspect.signature(found).parameters):
        raise ImportError(f"natten {getattr(natten, '__version__', '')} is too old. {install}")
    return found
