"""Measurements are complete or absent: Ctrl-C ends one even if a fit only stops early."""

from collections.abc import Iterator
from contextlib import contextmanager

from nearwise.interrupts import watch_interrupt


@contextmanager
def whole_or_nothing() -> Iterator[None]:
    """Raise `KeyboardInterrupt` after a block if Ctrl-C was pressed and handled in it.

    A fit that was stopped early keeps its best so far. Its numbers would pass for those of a whole
    one, so whoever measures and keeps them does it in this block.
    """
    with watch_interrupt() as interrupt:
        try:
            yield
        except Exception as error:  # of what an early stop left unfinished
            if interrupt.seen:
                raise KeyboardInterrupt from error
            raise
    if interrupt.seen:
        raise KeyboardInterrupt
