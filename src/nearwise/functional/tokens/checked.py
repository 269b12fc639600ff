"""Registered implementations of the k-NN attention, checked before their first use.

Called inside the operators of `fused`, which run outside of what torch.compile traces. The passes
are checked by themselves: a forward pass does not wait for a backward kernel that it may not need.
"""

import threading
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from nearwise.functional.tokens.cpu import interleaved
from nearwise.functional.tokens.implementation import registered
from nearwise.functional.tokens.plain import attend_plain
from nearwise.functional.tokens.plain_backward import backward_plain
from nearwise.functional.tokens.problem import Found, Tokens
from nearwise.functional.tokens.self_test import ShapeClass, differences, small_problem
from nearwise.warn import warn_user

_Class = tuple[str, str, ShapeClass]

# By class, why it runs plain operations; "" where the implementation serves it.
_verdicts: dict[_Class, str] = {}
_one_at_a_time = threading.Lock()


def attend_checked(tokens: Tokens, by: str) -> Found:
    """Attend by a registered implementation, or by plain operations where it fails its check."""
    if not _verdict("forward", tokens, by):
        return registered(by).attend(tokens)
    found = attend_plain(tokens)
    return found._replace(output=interleaved(found.output).copy_(found.output))


def backward_checked(
    tokens: Tokens,
    indices: Tensor,
    weights: Tensor,
    grad_output: Tensor,
    grad_weights: Tensor,
    by: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients by a registered implementation, or by plain operations, likewise."""
    arguments = (tokens, indices, weights, grad_output, grad_weights)
    if not _verdict("backward", tokens, by):
        return registered(by).backward(*arguments)
    *grads, grad_scores = backward_plain(*arguments)
    query, key, value = (interleaved(x).copy_(x) for x in grads)
    return query, key, value, grad_scores


def _verdict(part: str, tokens: Tokens, by: str) -> str:
    """Tell why plain operations must do one pass of such a problem; empty where they need not."""
    key = (by, part, ShapeClass.of(tokens))
    if key not in _verdicts:
        with _one_at_a_time:
            if key not in _verdicts:
                _refuse_capture(by)
                _verdicts[key] = _examine(part, tokens, by)
                if _verdicts[key]:
                    _warn(*key, _verdicts[key])
    return _verdicts[key]


def _examine(part: str, tokens: Tokens, by: str) -> str:
    """Ask the implementation, and compare it with plain operations on a small problem."""
    implementation = registered(by)
    fault = implementation.fault(tokens)
    if fault:
        return fault
    shape = ShapeClass.of(tokens)._replace(
        width=tokens.query.shape[-1], value_width=tokens.value.shape[-1]
    )
    problem = small_problem(shape, tokens.query.device)
    attend = implementation.attend if part == "forward" else None
    backward = implementation.backward if part == "backward" else None
    try:
        found = differences(problem, attend, backward)
    except torch.OutOfMemoryError:  # says nothing about the implementation
        raise
    except Exception as error:  # whatever a compiler or a driver raises: plain operations serve
        return f"it fails on a small problem of this class: {type(error).__name__}: {error}"
    return found and f"it differs from plain operations on a small problem of this class: {found}"


def _refuse_capture(by: str) -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f'The implementation "{by}" has not been checked for this class of problems yet, and '
            "cannot be while a CUDA graph is captured. Run the model once before the capture."
        )


def _warn(by: str, part: str, shape: ShapeClass, why: str) -> None:
    special = {
        name: value
        for name, value in shape._asdict().items()
        if value != ShapeClass._field_defaults[name] or not isinstance(value, bool)
    }
    described = ", ".join(f"{name}={value}" for name, value in special.items())
    warn_user(
        f'k-NN attention runs in plain torch operations instead of "{by}" ({part} pass; '
        f"{described}), from now on: {why}. torch {torch.__version__}, triton "
        f'{_installed("triton")}. nearwise.set_attention_implementation("auto") chooses what runs '
        "without a check; where results differ, please report this message.",
        RuntimeWarning,
    )


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
