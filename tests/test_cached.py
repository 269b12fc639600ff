"""Cached properties: computed once for each instance, and never waiting for another one."""

import threading
from concurrent.futures import ThreadPoolExecutor

from nearwise.cached import cached_property


class Counted:
    """Counts how often its value is computed."""

    n_computed = 0

    @cached_property
    def value(self):
        self.n_computed += 1
        return object()


def test_a_value_is_computed_once_for_each_instance():
    one, other = Counted(), Counted()
    assert one.value is one.value and one.value is not other.value
    assert one.n_computed == other.n_computed == 1
    assert Counted.value.attrname == "value"


def test_two_instances_are_computed_at_once():
    both = threading.Barrier(2)

    class Waiting:
        @cached_property
        def value(self):
            return both.wait(20)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda one: one.value, [Waiting(), Waiting()])) == [0, 1]
