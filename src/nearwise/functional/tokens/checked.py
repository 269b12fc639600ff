"""Registered implementations of the k-NN attention, checked before their first use.

Called inside the operators of `fused`, which run outside of what torch.compile traces. The passes
are checked separately: a forward pass does not wait for a backward kernel that it may not need.
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
from nearwise.functional.tokens.self_test import ShapeClass, differences, small_problems
from nearwise.warn import warn_user

_Class = tuple[str, str, ShapeClass]

# By class, how its check failed, and so why it runs plain operations; "" where it passed.
_verdicts: dict[_Class, str] = {}
_warned: set[tuple[str, str]] = set()  # implementations, and reasons that were given
_one_at_a_time = threading.RLock()


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
    """Gradients by a registered implementation, or by plain operations where it fails its check.

    Plain operations serve under `torch.use_deterministic_algorithms` too: kernels may add up the
    gradients of a key in any order.
    """
    arguments = (tokens, indices, weights, grad_output, grad_weights)
    is_free = not torch.are_deterministic_algorithms_enabled()
    if is_free and not _verdict("backward", tokens, by):
        return registered(by).backward(*arguments)
    *grads, grad_scores = backward_plain(*arguments)
    query, key, value = (interleaved(x).copy_(x) for x in grads)
    return query, key, value, grad_scores


def _verdict(part: str, tokens: Tokens, by: str) -> str:
    """Return why plain operations must do one pass of such a problem; empty where they need not."""
    fault = registered(by).fault(tokens)
    if fault:
        _warn(by, fault, f"{fault}.")
        return fault
    shape = ShapeClass.of(tokens)
    key = (by, part, shape)
    if key not in _verdicts:
        with _one_at_a_time:
            if key not in _verdicts:
                _refuse_capture(by)
                why = _verdicts[key] = _examine(part, tokens, shape, by)
                if why:
                    _warn(by, why, _report(*key, why))
    return _verdicts[key]


def _examine(part: str, tokens: Tokens, shape: ShapeClass, by: str) -> str:
    """Compare an implementation with plain operations on small problems of the class."""
    implementation = registered(by)
    shape = shape._replace(
        width=tokens.query.shape[-1],
        value_width=tokens.value.shape[-1],
        n_neighbors=tokens.n_neighbors,
    )
    attend = implementation.attend if part == "forward" else None
    backward = implementation.backward if part == "backward" else None
    for problem in small_problems(shape, tokens.query.device):
        size = f"{problem.query.shape[2]} queries and {problem.key.shape[2]} keys of this class"
        try:
            found = differences(problem, attend, backward)
        except torch.OutOfMemoryError:  # not a fault of the implementation
            raise
        except Exception as error:  # whatever a compiler or a driver raises: plain operations serve
            return f"it fails with {size}: {type(error).__name__}: {error}"
        if found:
            return f"it differs from plain operations with {size}: {found}"
    return ""


def _refuse_capture(by: str) -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f'The implementation "{by}" has not been checked for this class of problems yet, and '
            "cannot be while a CUDA graph is captured. Run the model once before the capture."
        )


def _warn(by: str, why: str, text: str) -> None:
    """Warn that plain operations run, once for each reason."""
    with _one_at_a_time:
        if (by, why) in _warned:
            return
        _warned.add((by, why))
    warn_user(
        f'k-NN attention runs in plain torch operations instead of "{by}": {text} '
        'nearwise.set_attention_implementation("auto") chooses what runs without a check.',
        RuntimeWarning,
    )


def _report(by: str, part: str, shape: ShapeClass, why: str) -> str:
    """Describe a failed check so that it can be repeated."""
    described = {
        name: f"up to {value}" if name in _ROUNDED else value
        for name, value in shape._asdict().items()
        if value is not False
    }
    if described.pop("euclidean", False):
        described["metric"] = "euclidean"
    shown = ", ".join(f"{name}={value}" for name, value in described.items())
    return (
        f"{why}. From now on this holds for the {part} pass of the class {shown}. torch "
        f"{torch.__version__}, triton {_installed('triton')}. Please report this message."
    )


_ROUNDED = ("width", "value_width", "n_neighbors")  # sizes up to a power of two


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
