"""Warnings with the line of the user's code, from any depth of the library."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_collected: ContextVar[list[str] | None] = ContextVar("collected", default=None)


class RowsWarning(UserWarning):
    """New rows have values that a model converts or cannot use.

    Unknown categories, texts of unknown words, missing values, booleans.
    """


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect this thread's warnings about rows, for the client of a service."""
    found: list[str] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line that called into the library.

    This is the caller of the outermost frame of nearwise, or of a package beside it (nearwise_...).
    Other frames in between, such as contextlib or calls of torch modules, do not help the user.
    """
    found = _collected.get()
    if found is not None and issubclass(category, RowsWarning):
        found.append(message)
        return
    frame: FrameType | None = sys._getframe(1)
    depth, outermost = 1, 1
    while frame is not None:
        beside = str(frame.f_globals.get("__name__")).startswith("nearwise_")
        if beside or frame.f_code.co_filename.startswith(_PACKAGE):
            outermost = depth + _is_torchs_decorator(frame.f_back)
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=outermost + 2)


def _is_torchs_decorator(frame: FrameType | None) -> bool:
    """Whether a frame is a wrapper of ``@torch.no_grad()`` or a similar decorator."""
    return frame is not None and frame.f_globals.get("__name__") == "torch.utils._contextlib"
