"""Detection of Ctrl-C, for measurements that must not count a fit stopped early."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed in the block."""

    seen: bool = False


@contextmanager
def watch_interrupt() -> Iterator[Interrupt]:
    """Record a Ctrl-C during the block; fits then stop early with the best result so far.

    The `KeyboardInterrupt` is raised as usual. Only the main thread receives it.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.seen = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
