"""Cost of a model: peak memory of a block, time per row, size on disk."""

import ctypes
import gc
import io
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

MIB = 2**20
MB = 10**6
ONE_ROW_TIMES = 20
ONE_ROW_SECONDS = 2.0
INTERVAL = 0.005  # seconds between samples of memory, where sampling is needed
_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakMemory:
    """Resident memory of this process at its peak inside a `with` block, above its start.

    `mib` is the difference in MiB (2**20 bytes), at least 0. On Linux the kernel's own high-water
    mark is reset and read; where that is not allowed a thread samples the resident size every
    `INTERVAL` seconds; elsewhere only growth past the process' lifetime peak is seen. Memory that
    earlier work freed but the allocator kept is handed back first (glibc), as far as it can be.
    Child processes are not counted.
    """

    mib = 0.0

    def __enter__(self) -> Self:
        """Free unused memory and record the starting value."""
        gc.collect()
        _trim_heap()
        self._start = self._peak = _resident_bytes()
        self._kernel = _reset_high_water()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if not self._kernel and _STATM.exists():
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Read the peak."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        peak = _high_water() if self._kernel else max(self._peak, _resident_bytes())
        self.mib = max(0.0, (peak - self._start) / MIB)

    def _sample(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._peak = max(self._peak, _resident_bytes())


def one_row_ms(predict: Callable[[int], Any], n_rows: int) -> float:
    """Median wall milliseconds of ``predict(row)`` for one row, given by its position.

    The first of `n_rows` warms up; then up to 20 are timed, in turn, for no more than 2 seconds.
    """
    predict(0)
    seconds: list[float] = []
    begin = time.perf_counter()
    for number in range(ONE_ROW_TIMES):
        start = time.perf_counter()
        predict(number % n_rows)
        seconds.append(time.perf_counter() - start)
        if time.perf_counter() - begin > ONE_ROW_SECONDS:
            break
    return 1e3 * float(np.median(seconds))


def stored_mb(model: Any) -> float | None:
    """Size of a fitted model on disk in MB (10**6 bytes).

    A model with `save` is saved to a folder that is thrown away; of others it is the size of a
    pickle, arrays uncompressed. None where it cannot be pickled, such as an object of a class that
    was made inside a function.
    """
    if hasattr(model, "save"):
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder, "model"))
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            return sum(path.stat().st_size for path in files) / MB
    pickled = io.BytesIO()
    try:
        torch.save(model, pickled)
    except Exception:  # each class refuses in its own way; size is no reason to lose the row
        return None
    return pickled.tell() / MB


def _resident_bytes() -> int:
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource  # absent on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _reset_high_water() -> bool:
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:  # not Linux, or not allowed here
        return False
    return True


def _high_water() -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return _resident_bytes()


def _trim_heap() -> None:
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)
