"""Ctrl-C and measurements."""

import signal
from contextlib import suppress

import pytest
from nearwise_lab.interrupts import whole_or_nothing


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
