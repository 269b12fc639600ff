"""A cached property that several threads may compute at once, as Python's from 3.12 on."""

import functools
from typing import Any, Self, TypeVar, overload

T = TypeVar("T")


class cached_property(functools.cached_property[T]):
    """`functools.cached_property` without its lock.

    Up to Python 3.11 that lock is one for all instances of a class: predictions of several threads
    would wait for each other, and a forked child for a thread that it does not have.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T:
        """Give the value of an instance, computed at first use; of a class the property itself."""
        if instance is None:
            return self
        name = self.attrname
        assert name is not None  # a class was made with it
        found: T = instance.__dict__.setdefault(name, self.func(instance))
        return found
