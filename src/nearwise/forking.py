"""Fork support: models loaded in a parent process keep working in forked children.

A child of `os.fork` (also by `multiprocessing` or a server that loads before it forks) has only
the thread that forked. Waiting for another thread, or for a lock held by one, would never end.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from threadpoolctl import ThreadpoolController

T = TypeVar("T")
_SOFT = 1  # `omp_pause_soft` of omp.h


_HEEDING: WeakKeyDictionary[Any, tuple[Callable[[Any], None] | None, Callable[[Any], None]]]
_HEEDING = WeakKeyDictionary()


def heed_forks(
    owner: T, in_child: Callable[[T], None], before: Callable[[T], None] | None = None
) -> None:
    """Register fork handlers of an object, for its lifetime.

    Parameters
    ----------
    owner : object
        Object with locks, threads or connections that a child must not use. Compared by identity.
    in_child : callable
        Called with `owner` in the child, before any other code, to recreate them.
    before : callable, optional
        Called with `owner` in the parent before the fork, to release resources.
    """
    _HEEDING[owner] = before, in_child


def end_openmp_threads() -> None:
    """End the idle threads of GNU's OpenMP runtimes that belong to the calling thread.

    A child lacks these threads, but a parallel loop would wait for them. The next loop, in parent
    and child, starts the same number of threads again. Other runtimes (LLVM's, Intel's) detect a
    fork themselves.
    """
    for library in ThreadpoolController().lib_controllers:
        if library.prefix == "libgomp":
            library.dynlib.omp_pause_resource_all(_SOFT)


def _before_fork() -> None:
    for owner, (before, _) in list(_HEEDING.items()):
        if before is not None:
            before(owner)
    end_openmp_threads()


def _in_child() -> None:
    for owner, (_, in_child) in list(_HEEDING.items()):
        in_child(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
