"""Ctrl-C and measurements."""

import signal
import threading
from contextlib import suppress

import pytest
from nearwise_lab.interrupts import whole_or_nothing

from nearwise.interrupts import watch_interrupt


def press():
    with suppress(KeyboardInterrupt):  # as a fit that keeps its best so far
        signal.raise_signal(signal.SIGINT)


def test_what_was_cut_short_is_raised_also_where_it_ends_in_another_error():
    with whole_or_nothing():
        pass
    with pytest.raises(KeyboardInterrupt), whole_or_nothing():
        press()
    with pytest.raises(KeyboardInterrupt), whole_or_nothing():
        press()
        min([])
    with pytest.raises(ValueError, match="empty"), whole_or_nothing():
        min([])


def test_only_the_main_thread_watches():
    seen = []

    def watch():
        with watch_interrupt() as interrupt:
            seen.append(interrupt.seen)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert seen == [False]
