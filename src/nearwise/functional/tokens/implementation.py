"""Which implementation of the k-NN attention over tokens runs."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

Implementation = Literal["auto", "plain", "cpu", "triton"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)
HAS_TRITON = importlib.util.find_spec("triton") is not None
# Triton reads the variable when it is first imported; then its kernels run on a CPU, slowly.
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
MOST_SLOTS = 256  # neighbors that the Triton kernels keep in registers
_TORCH_TELLS = hasattr(torch.compiler, "is_exporting")  # since 2.7
_TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

# A plain global, not a context variable: torch.compile guards on it and so compiles anew.
_forced: Implementation = "auto"


@contextmanager
def attention_implementation(name: Implementation) -> Iterator[None]:
    """Force the implementation behind `knn_attention` inside a ``with`` block.

    Parameters
    ----------
    name : {"auto", "plain", "cpu", "triton"}
        "plain": torch operations alone, on any device. "cpu": compiled loops over row tiles, for
        tensors on a CPU. "triton": fused kernels for CUDA devices, for at most 256 neighbors in
        float32, float16 or bfloat16; on a CPU only under Triton's interpreter (environment
        variable TRITON_INTERPRET=1, set before Python starts); not run on a GPU yet. "auto": "cpu"
        on a CPU, "plain" on all other devices and while a model is exported.

    Raises
    ------
    ValueError
        If `name` is not known.
    ImportError
        If it is "triton", and Triton is not installed.

    Examples
    --------
    >>> import torch
    >>> from nearwise.functional import attention_implementation, knn_attention
    >>> x = torch.randn(1, 8, 4)
    >>> with attention_implementation("plain"):
    ...     knn_attention(x, x, x, 3).shape
    torch.Size([1, 8, 4])
    """
    global _forced
    if name not in IMPLEMENTATIONS:
        raise ValueError(
            f"Implementation {name!r} is not known. Use one of {', '.join(IMPLEMENTATIONS)}."
        )
    if name == "triton" and not HAS_TRITON:
        raise ImportError('"triton" needs the extra "triton": pip install nearwise[triton]')
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def only_plain() -> bool:
    """Whether nothing but torch operations may run: forced, or while a model is exported."""
    return _forced == "plain" or (_forced == "auto" and is_exported())


def is_exported() -> bool:
    """Whether a model is being exported; torch 2.6 does not tell strict mode from compilation."""
    if torch.onnx.is_in_onnx_export():
        return True
    if _TORCH_TELLS:
        return bool(torch.compiler.is_exporting())
    return bool(torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling())


def implementation_for(query: Tensor, n_neighbors: int) -> Implementation:
    """Return the implementation that attends for such queries, with so many neighbors."""
    if _forced == "cpu" and query.device.type != "cpu":
        raise ValueError(
            f'The implementation "cpu" was asked for, but the query lies on {query.device}. '
            'Move it, or use "auto".'
        )
    if _forced == "triton":
        fault = _what_triton_lacks(query, n_neighbors)
        if fault:
            raise ValueError(f'The implementation "triton" was asked for, but {fault}')
    if _forced != "auto":
        return _forced
    if only_plain():
        return "plain"
    return automatic_on(query.device.type)


def automatic_on(device_type: str) -> Implementation:
    """Return the implementation that "auto" takes on devices of a type.

    The Triton kernels wait to be asked for until their results and times on a GPU are known.
    """
    return "cpu" if device_type == "cpu" else "plain"


def _what_triton_lacks(query: Tensor, n_neighbors: int) -> str:
    """Tell why the Triton kernels cannot attend for such queries; empty where they can."""
    if query.device.type != "cuda" and not (INTERPRETED and query.device.type == "cpu"):
        return f'the query lies on {query.device}. Move it to a CUDA device, or use "auto".'
    if query.dtype not in _TRITON_DTYPES:
        return f'the query is {query.dtype}. Use float32, float16 or bfloat16, or "plain".'
    if n_neighbors > MOST_SLOTS:
        return (
            f"n_neighbors={n_neighbors} exceeds the {MOST_SLOTS} that its kernels keep in "
            'registers. Lower it, or use "plain".'
        )
    return ""
