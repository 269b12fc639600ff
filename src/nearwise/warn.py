"""Warnings that name the line of the user's code, however deep in the library they arise."""

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

_PACKAGE = f"{Path(__file__).parent}{os.sep}"


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called into the library.

    That is the caller of the outermost frame of nearwise: what lies between two of its frames,
    such as contextlib or the call of a torch module, is of no use to whoever reads the warning.
    """
    frame: FrameType | None = sys._getframe(1)
    depth, outermost = 1, 1
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            outermost = depth
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=outermost + 2)
