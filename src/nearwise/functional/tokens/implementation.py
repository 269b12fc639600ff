"""Choice of the implementation of token k-NN attention."""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

AttentionImplementation = Literal["auto", "plain", "cpu"]
VARIABLE = "NEARWISE_ATTENTION"  # environment variable with the initial implementation
_TORCH_TELLS = hasattr(torch.compiler, "is_exporting")  # since 2.7


def _known(name: str, source: str = "") -> AttentionImplementation:
    known = get_args(AttentionImplementation)
    if name not in known:
        raise ValueError(
            f"Implementation {name!r}{source} is not known. Use one of {', '.join(known)}."
        )
    return cast(AttentionImplementation, name)


_of_process = _known(
    os.environ.get(VARIABLE) or "auto", f" (set by the environment variable {VARIABLE})"
)
# The choices of open ``with`` blocks, in order of entry.
_blocks: list[list[AttentionImplementation]] = []
# The present choice. A plain global, not a context variable: torch.compile guards on it and
# recompiles after a change.
_forced = _of_process
_one_at_a_time = threading.Lock()


def set_attention_implementation(name: AttentionImplementation) -> None:
    """Choose the implementation behind `knn_attention`, for all threads of this process.

    The environment variable NEARWISE_ATTENTION, read when nearwise is imported, sets the initial
    choice; `attention_implementation` chooses for a ``with`` block. While such a block is open its
    choice stays in force, and this one takes effect after it.

    Parameters
    ----------
    name : {"auto", "plain", "cpu"}
        "auto": "cpu" on a CPU; "plain" on other devices and in exports. "plain": only torch
        operations, on any device. "cpu": compiled loops over row tiles, for tensors on a CPU.
        Under torch.func all choices run "plain".

    Raises
    ------
    ValueError
        If `name` is not known.

    Examples
    --------
    >>> import nearwise
    >>> nearwise.set_attention_implementation("plain")
    >>> nearwise.set_attention_implementation("auto")
    """
    global _of_process
    with _changes():
        _of_process = _known(name)
        _put_in_force()


@contextmanager
def attention_implementation(name: AttentionImplementation) -> Iterator[None]:
    """Choose the implementation behind `knn_attention` inside a ``with`` block.

    Overrides `set_attention_implementation` and the environment; same arguments and errors.
    Like it, it affects all threads: of all open blocks in any thread, the last one entered is in
    force everywhere. Blocks may end in any order.

    Parameters
    ----------
    name : {"auto", "plain", "cpu"}
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
    # A list, since `is` then distinguishes blocks with the same choice.
    block = [_known(name)]
    with _changes():
        _blocks = [*_blocks, block]
        _put_in_force()
    try:
        yield
    finally:
        with _changes():
            _blocks = [other for other in _blocks if other is not block]
            _put_in_force()


def _changes() -> AbstractContextManager[Any]:
    """Return a lock for changes of the choice; a null context while compiling."""
    return nullcontext() if torch.compiler.is_compiling() else _one_at_a_time


def _put_in_force() -> None:
    global _forced
    _forced = _blocks[-1][0] if _blocks else _of_process


def only_plain() -> bool:
    """Whether only torch operations may run: forced, exported, or under torch.func."""
    return _forced == "plain" or is_transformed() or (_forced == "auto" and is_exported())


def is_traced() -> bool:
    """Whether a model is exported or transformed: custom operators fail there."""
    return is_exported() or is_transformed()


def is_transformed() -> bool:
    """Whether the running code is transformed by torch.func (`grad`, `vmap`, `jacrev`, ...)."""
    if torch.compiler.is_compiling():  # the compiler always reports a stack
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_exported() -> bool:
    """Whether a model is exported; torch 2.6 does not separate strict mode from compilation."""
    if torch.onnx.is_in_onnx_export():
        return True
    if _TORCH_TELLS:
        return bool(torch.compiler.is_exporting())
    return bool(torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling())


def implementation_for(query: Tensor) -> Literal["plain", "cpu"]:
    """Return the implementation for these queries."""
    if _forced == "cpu" and query.device.type != "cpu":
        raise ValueError(
            f'The implementation "cpu" was asked for, but the query lies on {query.device}. '
            'Move it, or use "auto".'
        )
    return "plain" if only_plain() or query.device.type != "cpu" else "cpu"
