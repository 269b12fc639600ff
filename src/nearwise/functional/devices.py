"""Devices by name, and threads for compiled loops that do not fight with torch's own."""

import ctypes
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import torch
from threadpoolctl import threadpool_limits

import nearwise.forking  # noqa: F401  forked children go on


def choose_device(name: str | torch.device) -> torch.device:
    """Return the device of a name, if it is available.

    Raises ValueError if torch has no such device, or it is not available.

    Parameters
    ----------
    name : str or torch.device
        "cpu", "cuda", "cuda:1", "mps"; "auto" is CUDA where there is a GPU, else the CPU.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if cuda else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(
            f'device={name!r} is not known. Use "auto", "cpu", "cuda", "cuda:0" or "mps".'
        ) from None
    if (device.type == "cuda" and not cuda) or (device.type == "mps" and not mps):
        raise ValueError(f'device={str(device)!r} is not available. Use "auto" or "cpu".')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={str(device)!r} is not available: the last GPU is "
            f"cuda:{torch.cuda.device_count() - 1}."
        )
    return device


def fast_bfloat16(name: str | torch.device) -> bool:
    """Whether a device multiplies in bfloat16 faster than in float32, by its maker's data."""
    if torch.device(name).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Not there in every version of torch, nor on every processor.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(found() for found in (getattr(torch.cpu, name, None) for name in names) if found)


# Below this many multiplications a search is over before a second thread has started.
SMALL_WORK = 2**24
_FEWEST_ROWS = 4
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch, BLAS and OpenMP to one thread.

    Many small steps are faster like this: threads that wait for each other spin, and on a busy
    machine they take most of the time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Let the C library keep large blocks that are freed inside, where it is glibc.

    Otherwise it returns them to the system, and every training step pays for new pages: a
    quarter of the time of a convolutional network on a CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, 2**30)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, 2**25)  # the largest that glibc chooses by itself
        mallopt(_TRIM_THRESHOLD, 2**26)


class Threads:
    """Runs a function on ranges of rows, in as many threads as torch uses.

    Each worker computes its own matrix products in one thread and selects from them while they
    are in its cache; products in torch's pool would leave that pool spinning beside the workers.
    One pool per search: a shared one would not survive a fork.

    Parameters
    ----------
    work : int
        Multiplications to come; for few, everything runs in the calling thread.
    """

    def __init__(self, work: int) -> None:
        self._n_torch = max(1, torch.get_num_threads())
        self.n = self._n_torch if work > SMALL_WORK else 1
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
