"""Threads: coarse work takes as many as the process may use, small operations take one.

The threads of torch, OpenMP and BLAS wait for each other by spinning. On a busy machine, or in a
container with a share of a large one, small operations then spend most of their time waiting.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import pairwise

import torch
from threadpoolctl import ThreadpoolController

import nearwise.forking  # noqa: F401  forked children go on
from nearwise.conditions import available_threads

# Below this many multiplications a search is over before a second thread has started.
SMALL_WORK = 2**24
_FEWEST_ROWS = 4


def coarse_threads() -> int:
    """Threads for work that splits into large parts: blocks of rows, folds, trees.

    As many as torch takes, at most the processors that this process may use.
    """
    limits = _limits_here()
    n = torch.get_num_threads() if limits is None else limits.n_coarse
    return max(1, min(n, available_threads()))


@contextmanager
def one_thread(n_coarse: int | None = None, *, torch_only: bool = False) -> Iterator[None]:
    """Keep torch, BLAS and OpenMP to one thread for the operations of the calling thread.

    What is split by `coarse_threads` is not kept to it. BLAS has one number of threads for the
    process: of several callers the first decides.

    Parameters
    ----------
    n_coarse : int, optional
        The most threads that large work takes inside; None or a negative number leaves them as
        they are.
    torch_only : bool, default=False
        Whether BLAS and OpenMP are left alone, as in predictions, which hardly use them: setting
        them takes .06 ms, and is for the whole process.
    """
    outer = _limits_here()
    if outer is not None and (torch_only or not outer.torch_only):
        yield
        return
    stop_spinning()
    limits = _Limits(n_coarse, outer, torch_only)
    try:
        limits.set()
        _here.limits = limits
        yield
    finally:
        _here.limits = outer
        limits.lift()
        if outer is not None:
            torch.set_num_threads(1)


@contextmanager
def own_threads() -> Iterator[None]:
    """Let libraries use threads of their own, torch's at most one per processor of this process.

    For few large operations, such as convolutions; also inside `one_thread`.
    """
    stop_spinning()
    limits, before = _limits_here(), torch.get_num_threads()
    n = coarse_threads()
    try:
        if limits is not None:
            _here.limits = None
            limits.lift()
        torch.set_num_threads(n)
        yield
    finally:
        torch.set_num_threads(before if limits is None else limits.n_torch)
        if limits is not None:
            limits.set()
            _here.limits = limits


def stop_spinning() -> None:
    """Keep OpenMP's threads from spinning long, unless the user has set how they wait.

    GNU's OpenMP spins 300,000 times before it sleeps, but only 100 times while it has more threads
    than processors ("GOMP_SPINCOUNT" in its manual). One more than there are processors are started
    here, once, and sleep from then on.
    """
    told = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ
    if sys.platform == "linux" and not told and torch.get_num_threads() > 1:
        _start_sleepers()


@cache
def _start_sleepers() -> None:
    started, n_torch = threading.Event(), torch.get_num_threads()

    def start() -> None:
        n = len(os.sched_getaffinity(0)) + 1
        torch.set_num_threads(n)
        torch.ones(n * 2**16).exp_()  # enough for all of them
        started.set()
        threading.Event().wait()  # OpenMP's threads end with the one that started them

    threading.Thread(target=start, name="nearwise-openmp", daemon=True).start()
    started.wait()
    torch.set_num_threads(n_torch)  # the choice made there also holds for threads born later


class Threads:
    """Runs a function on ranges of rows, in `coarse_threads`.

    Each worker computes its own matrix products in one thread and selects from them while they
    are in its cache; products in torch's pool would leave that pool spinning beside the workers.
    One pool per search: a shared one would not survive a fork.

    Parameters
    ----------
    work : int
        Multiplications to come; for few, everything runs in the calling thread.
    """

    def __init__(self, work: int) -> None:
        stop_spinning()
        self._n_torch = max(1, torch.get_num_threads())
        self.n = coarse_threads() if work > SMALL_WORK else 1
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            # A worker's choice also holds for threads born later: give them the caller's again.
            torch.set_num_threads(self._n_torch)

    def run(self, work: Callable[[slice], None], n_rows: int) -> None:
        """Call `work` on slices that cover ``range(n_rows)`` and wait for all of them."""
        # With one or two rows per thread, torch's own threads do better inside the product.
        n_slices = max(1, min(self.n, n_rows // _FEWEST_ROWS))
        if n_slices == 1:
            if n_rows:
                work(slice(0, n_rows))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.n,
                thread_name_prefix="nearwise",
                initializer=torch.set_num_threads,
                initargs=(1,),
            )
        edges = [n_rows * i // n_slices for i in range(n_slices + 1)]
        waiting = [self._pool.submit(work, slice(a, b)) for a, b in pairwise(edges)]
        for one in waiting:
            one.result()


class _Limits:
    """One thread for torch, BLAS and OpenMP, and what the calling thread had before."""

    def __init__(self, n_coarse: int | None, outer: "_Limits | None", torch_only: bool) -> None:
        self.n_torch: int = torch.get_num_threads() if outer is None else outer.n_torch
        self.n_coarse = n_coarse if n_coarse is not None and n_coarse > 0 else self.n_torch
        self.torch_only = torch_only
        self._has_blas, self._limiter = False, None

    def set(self) -> None:
        """Set the limits."""
        if not self.torch_only:
            # One at a time limits BLAS: another would take the limit for what was there before.
            self._has_blas = _blas.acquire(blocking=False)
            libraries = _libraries(len(sys.modules))
            if not self._has_blas:
                libraries = libraries.select(user_api="openmp")
            self._limiter = libraries.limit(limits=1)
        torch.set_num_threads(1)

    def lift(self) -> None:
        """Return to what was before."""
        if self._limiter is not None:  # an interrupt may come before it is set
            self._limiter.restore_original_limits()
        if self._has_blas:
            _blas.release()
        self._has_blas, self._limiter = False, None
        torch.set_num_threads(self.n_torch)


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Find the loaded libraries; anew where modules were imported since, as it takes 2 ms."""
    return ThreadpoolController()


_here = threading.local()
_blas = threading.Lock()  # held, never waited for


def _limits_here() -> _Limits | None:
    limits: _Limits | None = getattr(_here, "limits", None)
    return limits
