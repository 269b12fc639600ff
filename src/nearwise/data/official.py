"""Tell the user where files are not the published ones."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

_ROOM = "nearwise.data"
_NOT_COMPARABLE = "Its results are not comparable with published ones."


def warn_if_other_size(name: str, seen: int, official: int, paths: Sequence[Path]) -> None:
    """Warn where a registered set has another number of rows than the official files give."""
    if seen != official:
        _warn(f"has {seen:,} rows, the official files give {official:,}", name, paths)


def warn_of_other_content(name: str, what: str, paths: Sequence[Path]) -> None:
    """Warn where rows of a registered set are not the official ones."""
    _warn(f"has {what} that differ from the official ones (sha256)", name, paths)


def _warn(what: str, name: str, paths: Sequence[Path]) -> None:
    warnings.warn(
        f"Data set {name!r} {what}: {', '.join(map(str, paths))}. {_NOT_COMPARABLE}",
        stacklevel=_caller_level(),
    )


def _caller_level() -> int:
    """Count the frames from `_warn` to the first one outside this room."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_ROOM):
        level, frame = level + 1, frame.f_back
    return level
