"""Ctrl-C."""

import threading

from nearwise.interrupts import watch_interrupt


def test_only_the_main_thread_watches():
    seen = []

    def watch():
        with watch_interrupt() as interrupt:
            seen.append(interrupt.seen)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert seen == [False]
