"""Forked processes: what makes models that a parent has loaded answer in its children.

A child of `os.fork` (also by `multiprocessing` or a server that loads before it forks) has one
thread: that which forked. Whatever waits for another thread, or for a lock that one held, waits
forever.
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
    """Prepare an object for forks, as long as it lives.

    Parameters
    ----------
    owner : object
        Has locks, threads or connections that a child must not take over. Compared by identity.
    in_child : callable
        Called with it in the child, before anything else runs there: makes them anew.
    before : callable, optional
        Called with it in the parent: lets go of what must not be there twice.
    """
    _HEEDING[owner] = before, in_child


def end_openmp_threads() -> None:
    """End the idle threads of GNU's OpenMP runtimes that belong to the calling thread.

    In a child they are not there, but a parallel loop would wait for them. The next loop, in the
    parent and in the child, starts as many threads again, and computes the same. Other runtimes
    (LLVM's, Intel's) notice a fork themselves.
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
