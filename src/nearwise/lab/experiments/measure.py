"""Peak memory of what runs inside a block."""

import ctypes
import gc
import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

MIB = 2**20
_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakMemory:
    """Resident memory of this process at its peak inside a `with` block, above its start.

    On Linux the kernel's own high-water mark is reset and read; where that is not allowed a
    thread samples the resident size every `interval` seconds; elsewhere only growth past the
    process' lifetime peak is seen. Memory that earlier work freed but the allocator kept is
    handed back first (glibc), as far as it can be. Child processes are not counted.

    Parameters
    ----------
    interval : float, default=0.005
        Seconds between samples where sampling is needed.

    Attributes
    ----------
    mib : float
        Peak minus start, in MiB (2**20 bytes); at least 0.
    """

    def __init__(self, interval: float = 0.005) -> None:
        self.interval = interval
        self.mib = 0.0

    def __enter__(self) -> Self:
        """Release what can be released and note the start."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Read the peak."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        peak = _high_water() if self._kernel else max(self._peak, _resident_bytes())
        self.mib = max(0.0, (peak - self._start) / MIB)

    def _sample(self) -> None:
        while not self._stop.wait(self.interval):
            self._peak = max(self._peak, _resident_bytes())


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
