"""Work in a forked child."""

import multiprocessing

import pytest

FORK = multiprocessing.get_context("fork")


def in_a_child(work, *values, seconds=90):
    """Do work in a forked child, which must end well and in time."""
    child = FORK.Process(target=work, args=values)
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        pytest.fail("the child never ended")
    assert child.exitcode == 0
