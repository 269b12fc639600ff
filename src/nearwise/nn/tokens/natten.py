"""NATTEN's kernels behind the neighborhood layers, where the package is installed."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from nearwise.functional.tokens.implementation import is_exported
from nearwise.nn.tokens.base import Masks

NeighborhoodBackend = Literal["auto", "torch", "natten"]
NattenFunction = Callable[..., Tensor]
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of its kernels
_INSTALL = 'Install a wheel for your torch from https://natten.org, or take backend="torch".'


def natten_serves(query: Tensor, masks: Masks, dropout_p: float) -> str:
    """Tell why NATTEN cannot attend here; empty if it can."""
    if masks.attn_mask is not None or masks.key_padding_mask is not None or masks.is_causal:
        return "it takes no masks"
    if dropout_p:
        return "it drops no attention weights (attn_drop)"
    if query.dtype not in _DTYPES:
        return f"it has no kernels for {query.dtype}"
    if is_exported():
        return "its operators cannot be exported"
    return ""


def picks_natten(
    backend: NeighborhoodBackend,
    natten: NattenFunction | str,
    query: Tensor,
    masks: Masks,
    dropout_p: float,
) -> bool:
    """Tell whether NATTEN attends: where asked for, or by itself on a GPU.

    Raises ImportError if it is asked for and `natten_function` did not find it, ValueError if it is
    asked for and cannot attend here.
    """
    if backend == "torch":
        return False
    why_not = natten_serves(query, masks, dropout_p)
    if backend == "auto":
        return not why_not and query.is_cuda and not isinstance(natten, str)
    if isinstance(natten, str):
        raise ImportError(f'backend="natten": {natten} {_INSTALL}')
    if why_not:
        raise ValueError(f'backend="natten" does not work here: {why_not}. Take backend="auto".')
    return True


@functools.cache
def natten_function(n_dims: int) -> NattenFunction | str:
    """Return NATTEN's function for a line or a grid, or why there is none."""
    try:
        natten = importlib.import_module("natten")
    except ImportError as error:
        return f"natten cannot be imported ({error})."
    found: NattenFunction | None = getattr(natten, f"na{n_dims}d", None)
    needed = {"stride", "additional_keys", "additional_values"}
    if found is None or not needed <= set(inspect.signature(found).parameters):
        return f"natten {getattr(natten, '__version__', '')} is too old; 0.20 or later is needed."
    return found
