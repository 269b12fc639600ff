"""Which implementation of the k-NN attention over tokens runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Protocol

import torch
from torch import Tensor

from nearwise.functional.tokens.problem import Found, Tokens

BUILT_IN = ("auto", "plain", "cpu")
_GROUP = "nearwise.attention"  # of entry points
_TORCH_TELLS = hasattr(torch.compiler, "is_exporting")  # since 2.7


class FusedAttention(Protocol):
    """What an installed package registers: k-NN attention with gradients, such as a module."""

    def attend(self, tokens: Tokens) -> Found:
        """Select and attend; see `knn_attention`."""

    def backward(
        self,
        tokens: Tokens,
        indices: Tensor,
        weights: Tensor,
        grad_output: Tensor,
        grad_weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of query, key and value, and of the selected scores (B, H, N, K)."""

    def fault(self, query: Tensor, n_neighbors: int) -> str:
        """Tell why it cannot attend for such queries; empty where it can."""


_registered: dict[str, FusedAttention] = {}
# A plain global, not a context variable: torch.compile guards on it and so compiles anew.
_forced = "auto"


@contextmanager
def attention_implementation(name: str) -> Iterator[None]:
    """Force the implementation behind `knn_attention` inside a ``with`` block.

    Parameters
    ----------
    name : str
        "plain": torch operations alone, on any device. "cpu": compiled loops over row tiles, for
        tensors on a CPU. "auto": "cpu" on a CPU, "plain" on all other devices and while a model is
        exported; whatever is forced, "plain" under torch.func. Or one that an installed package
        registers by an entry point of the group "nearwise.attention" (a `FusedAttention`), as the
        lab does with "triton": fused kernels for
        CUDA devices, for at most 256 neighbors in float32, float16 or bfloat16; on a CPU only under
        Triton's interpreter (environment variable TRITON_INTERPRET=1, set before Python starts);
        not run on a GPU yet.

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
    if name not in BUILT_IN:
        registered(name)
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def registered(name: str) -> FusedAttention:
    """Return the implementation that an installed package registers under a name."""
    if name not in _registered:
        found = {plugin.name: plugin for plugin in entry_points(group=_GROUP)}
        if name not in found:
            known = ", ".join((*BUILT_IN, *found))
            raise ValueError(f"Implementation {name!r} is not known. Use one of {known}.")
        _registered[name] = found[name].load()
    return _registered[name]


def only_plain() -> bool:
    """Whether nothing but torch operations may run: forced, exported, or under torch.func."""
    return _forced == "plain" or is_transformed() or (_forced == "auto" and is_exported())


def is_traced() -> bool:
    """Whether a model is exported or transformed: operators of one's own are in the way."""
    return is_exported() or is_transformed()


def is_transformed() -> bool:
    """Whether torch.func (`grad`, `vmap`, `jacrev`, ...) transforms what runs."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_exported() -> bool:
    """Whether a model is being exported; torch 2.6 does not tell strict mode from compilation."""
    if torch.onnx.is_in_onnx_export():
        return True
    if _TORCH_TELLS:
        return bool(torch.compiler.is_exporting())
    return bool(torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling())


def implementation_for(query: Tensor, n_neighbors: int) -> str:
    """Return the implementation that attends for such queries, with so many neighbors."""
    if _forced == "cpu" and query.device.type != "cpu":
        raise ValueError(
            f'The implementation "cpu" was asked for, but the query lies on {query.device}. '
            'Move it, or use "auto".'
        )
    if _forced not in BUILT_IN:
        fault = registered(_forced).fault(query, n_neighbors)
        if fault:
            raise ValueError(f'The implementation "{_forced}" was asked for, but {fault}')
    if only_plain():
        return "plain"
    if _forced != "auto":
        return _forced
    return automatic_on(query.device.type)


def automatic_on(device_type: str) -> str:
    """Return the implementation that "auto" takes on devices of a type."""
    return "cpu" if device_type == "cpu" else "plain"
