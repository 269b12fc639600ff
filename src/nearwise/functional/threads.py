"""Thread limits: large work uses many threads, small operations use one.

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

# With fewer multiplications a search ends before a second thread has started.
SMALL_WORK = 2**24
_FEWEST_ROWS = 4


def coarse_threads() -> int:
    """Return the number of threads for large parts: blocks of rows, folds, trees.

    It is torch's number, at most the number of processors available to this process.
    """
    limits = _limits_here()
    n = torch.get_num_threads() if limits is None else limits.n_coarse
    return max(1, min(n, available_threads()))


@contextmanager
def one_thread(n_coarse: int | None = None, *, torch_only: bool = False) -> Iterator[None]:
    """Limit torch, BLAS and OpenMP to one thread for operations of the calling thread.

    Work split by `coarse_threads` is not limited. BLAS has one number of threads per process: with
    several callers the first one decides.

    Parameters
    ----------
    n_coarse : int, optional
        Most threads of large work inside; None or a negative number leaves the limit
        unchanged.
    torch_only : bool, default=False
        Whether to leave BLAS and OpenMP unchanged, as in predictions, which hardly use them:
        setting them takes 0.06 ms and affects the whole process.
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
    """Allow libraries their own threads, in torch at most one per available processor.

    For a few large operations, such as convolutions; also inside `one_thread`.
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
    """Shorten the spinning of OpenMP's threads, unless the user has configured it.

    GNU's OpenMP spins 300,000 times before it sleeps, but only 100 times while it has more threads
    than processors ("GOMP_SPINCOUNT" in its manual). So this starts, once, one more sleeping thread
    than there are processors.
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
        torch.ones(n * 2**16).exp_()  # enough work for all of them
        started.set()
        threading.Event().wait()  # OpenMP's threads end with the one that started them

    threading.Thread(target=start, name="nearwise-openmp", daemon=True).start()
    started.wait()
    torch.set_num_threads(n_torch)  # the other thread's setting applies to new threads, too


class Threads:
    """Runs a function on ranges of rows, in `coarse_threads`.

    Each worker computes its own matrix products in one thread and selects from them while they
    are in its cache; torch's own pool would keep spinning beside the workers. Each search makes a
    new pool, since a shared one would not survive a fork.

    Parameters
    ----------
    work : int
        Number of multiplications; small work runs in the calling thread.
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
            # A worker's setting also applies to new threads: restore the caller's.
            torch.set_num_threads(self._n_torch)

    def run(self, work: Callable[[slice], None], n_rows: int) -> None:
        """Call `work` on slices that cover ``range(n_rows)`` and wait for all of them."""
        # With one or two rows per thread, torch's own threads are faster.
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
    """Limit of torch, BLAS and OpenMP to one thread, with the former settings."""

    def __init__(self, n_coarse: int | None, outer: "_Limits | None", torch_only: bool) -> None:
        self.n_torch: int = torch.get_num_threads() if outer is None else outer.n_torch
        self.n_coarse = n_coarse if n_coarse is not None and n_coarse > 0 else self.n_torch
        self.torch_only = torch_only
        self._has_blas, self._limiter = False, None

    def set(self) -> None:
        """Set the limits."""
        if not self.torch_only:
            # Only one at a time: another would record the limit as the former setting.
            self._has_blas = _blas.acquire(blocking=False)
            libraries = _libraries(len(sys.modules))
            if not self._has_blas:
                libraries = libraries.select(user_api="openmp")
            self._limiter = libraries.limit(limits=1)
        torch.set_num_threads(1)

    def lift(self) -> None:
        """Restore the former settings."""
        if self._limiter is not None:  # None after an early interrupt
            self._limiter.restore_original_limits()
        if self._has_blas:
            _blas.release()
        self._has_blas, self._limiter = False, None
        torch.set_num_threads(self.n_torch)


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Find the loaded libraries; cached until more modules are imported, as it takes 2 ms."""
    return ThreadpoolController()


_here = threading.local()
_blas = threading.Lock()  # acquired without waiting


def _limits_here() -> _Limits | None:
    limits: _Limits | None = getattr(_here, "limits", None)
    return limits
