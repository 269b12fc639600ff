"""Which implementation of the k-NN attention over tokens runs."""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import entry_points
from typing import Any, Protocol

import torch
from torch import Tensor

from nearwise.functional.tokens.problem import Found, Tokens

BUILT_IN = ("auto", "plain", "cpu")
VARIABLE = "NEARWISE_ATTENTION"  # of the environment: the implementation a process begins with
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
        """Gradients of query, key and value, and of the selected scores (B, H, N, K).

        Not called under `torch.use_deterministic_algorithms`.
        """

    def fault(self, tokens: Tokens) -> str:
        """Return why it cannot attend in such a problem, without a full stop; empty where it can.

        Called before every pass. Such problems run in plain operations, with one warning per
        answer.
        """


_registered: dict[str, FusedAttention] = {}
_from_environment = os.environ.get(VARIABLE) or "auto"
_of_process = _from_environment
_blocks: list[list[str]] = []  # the choices of open ``with`` blocks, in order of entry
# What is in force. A plain global, not a context variable: torch.compile guards on it and so
# compiles again.
_forced = _of_process
_one_at_a_time = threading.Lock()


def set_attention_implementation(name: str) -> None:
    """Choose the implementation behind `knn_attention`, for all threads of this process.

    The environment variable NEARWISE_ATTENTION, read when nearwise is imported, chooses what a
    process begins with; `attention_implementation` chooses for a ``with`` block. While such a block
    is open its choice stays in force, and this one takes effect after it.

    Parameters
    ----------
    name : str
        "auto": "cpu" on a CPU, "plain" on all other devices, while a model is exported and under
        torch.func (where whatever is chosen runs plain).
        "plain": torch operations alone, on any device. "cpu": compiled loops over row tiles, for
        tensors on a CPU. Or one that an installed package registers by an entry point of the group
        "nearwise.attention" (a `FusedAttention`), as the lab does with "triton": fused kernels for
        CUDA devices, in float32, float16 or bfloat16; on a CPU only under Triton's interpreter
        (environment variable TRITON_INTERPRET=1, set before Python starts); not run on a GPU yet.

        The first use of a registered implementation for each class of problems (device, dtypes,
        head widths and neighbors up to a power of two, metric, masks; forward and backward pass
        separately) is compared with plain operations on small problems of that class. Where it
        differs or fails, or does not take such problems ("triton": attn_mask, candidates,
        include_self="always", dropout, heads wider than 128, more than 256 neighbors, float64,
        other devices), plain operations run, with one RuntimeWarning per reason. So they do in
        every backward pass under ``torch.use_deterministic_algorithms(True)``, with none.

    Raises
    ------
    ValueError
        If `name` is not known.
    ImportError
        If it is "triton", and Triton is not installed.

    Examples
    --------
    >>> import nearwise
    >>> nearwise.set_attention_implementation("plain")
    >>> nearwise.set_attention_implementation("auto")
    """
    global _of_process
    _check_known(name)
    with _changes():
        _of_process = name
        _put_in_force()


@contextmanager
def attention_implementation(name: str) -> Iterator[None]:
    """Choose the implementation behind `knn_attention` inside a ``with`` block.

    Overrides `set_attention_implementation` and the environment; same arguments and errors.
    Like it, it holds for all threads: of the blocks that are open, in whichever threads, the one
    entered last is in force everywhere. Blocks may end in any order.

    Parameters
    ----------
    name : str
        As in `set_attention_implementation`.

    Examples
    --------
    >>> import torch
    >>> from nearwise.functional import attention_implementation, knn_attention
    >>> x = torch.randn(1, 8, 4)
    >>> with attention_implementation("plain"):
    ...     knn_attention(x, x, x, 3).shape
    torch.Size([1, 8, 4])
    """
    global _blocks
    _check_known(name)
    block = [name]  # a list, to distinguish it by `is` from another block with the same choice
    with _changes():
        _blocks = [*_blocks, block]
        _put_in_force()
    try:
        yield
    finally:
        with _changes():
            _blocks = [other for other in _blocks if other is not block]
            _put_in_force()


def _check_known(name: str) -> None:
    if name not in BUILT_IN:
        registered(name)


def _changes() -> AbstractContextManager[Any]:
    """Let one thread at a time change what is in force; the compiler can trace no lock."""
    return nullcontext() if torch.compiler.is_compiling() else _one_at_a_time


def _put_in_force() -> None:
    global _forced
    _forced = _blocks[-1][0] if _blocks else _of_process


def registered(name: str) -> FusedAttention:
    """Return the implementation that an installed package registers under a name."""
    if name not in _registered:
        found = {plugin.name: plugin for plugin in entry_points(group=_GROUP)}
        if name not in found:
            known = ", ".join((*BUILT_IN, *found))
            source = f" (set by the environment variable {VARIABLE})"
            raise ValueError(
                f"Implementation {name!r}{source if name == _from_environment else ''} is not "
                f"known. Use one of {known}."
            )
        _registered[name] = found[name].load()
    return _registered[name]


def only_plain() -> bool:
    """Whether nothing but torch operations may run: forced, exported, or under torch.func."""
    return _forced == "plain" or is_transformed() or (_forced == "auto" and is_exported())


def is_traced() -> bool:
    """Whether a model is exported or transformed: custom operators do not work there."""
    return is_exported() or is_transformed()


def is_transformed() -> bool:
    """Whether torch.func (`grad`, `vmap`, `jacrev`, ...) transforms what runs."""
    if torch.compiler.is_compiling():  # the compiler takes the stack to be there in any case
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_exported() -> bool:
    """Whether a model is exported; torch 2.6 does not separate strict mode from compilation."""
    if torch.onnx.is_in_onnx_export():
        return True
    if _TORCH_TELLS:
        return bool(torch.compiler.is_exporting())
    return bool(torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling())


def implementation_for(query: Tensor) -> str:
    """Return the implementation that is to attend for such queries.

    One that is registered is checked where it runs.
    """
    if _forced == "cpu" and query.device.type != "cpu":
        raise ValueError(
            f'The implementation "cpu" was asked for, but the query lies on {query.device}. '
            'Move it, or use "auto".'
        )
    if _forced not in BUILT_IN and not torch.compiler.is_compiling():
        registered(_forced)  # the name may come from the environment
    if only_plain():
        return "plain"
    if _forced != "auto":
        return _forced
    return automatic_on(query.device.type)


def automatic_on(device_type: str) -> str:
    """Return the implementation that "auto" takes on devices of a type."""
    return "cpu" if device_type == "cpu" else "plain"
