"""Warnings that name the line of the user's code, however deep in the library they arise."""

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
    """New rows hold what a model reads as something else: unknown categories, gaps, true."""


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect what this thread would warn of rows; a service tells it to whoever sent them."""
    found: list[str] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called into the library.

    That is the caller of the outermost frame of nearwise, or of a package beside it (nearwise_...):
    what lies between two such frames, as contextlib or the call of a torch module, is of no use to
    whoever reads the warning.
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
    """Whether a frame is what ``@torch.no_grad()`` and its like put around a function."""
    return frame is not None and frame.f_globals.get("__name__") == "torch.utils._contextlib"
