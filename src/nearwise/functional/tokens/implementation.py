"""Which implementation of the k-NN attention over tokens runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

Implementation = Literal["auto", "plain", "cpu"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)

# A plain global, not a context variable: torch.compile guards on it and so compiles anew.
_forced: Implementation = "auto"


@contextmanager
def attention_implementation(name: Implementation) -> Iterator[None]:
    """Force the implementation behind `knn_attention` inside a ``with`` block.

    Parameters
    ----------
    name : {"auto", "plain", "cpu"}
        "plain": torch operations alone, on any device. "cpu": compiled loops over row tiles, for
        tensors on a CPU. "auto": "cpu" there, else "plain"; while a model is exported, "plain".

    Raises
    ------
    ValueError
        If `name` is not known.

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
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def implementation_for(query: Tensor) -> Implementation:
    """Return the implementation that attends for such queries."""
    if _forced == "cpu" and query.device.type != "cpu":
        raise ValueError(
            f'The implementation "cpu" was asked for, but the query lies on {query.device}. '
            'Move it, or use "auto".'
        )
    if _forced != "auto":
        return _forced
    exported = torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
    return "cpu" if query.device.type == "cpu" and not exported else "plain"
