"""A cached property without a lock, as in Python 3.12 and later."""

import functools
from typing import Any, Self, TypeVar, overload

T = TypeVar("T")


class cached_property(functools.cached_property[T]):
    """`functools.cached_property` without its lock.

    Up to Python 3.11 all instances of a class share this lock: predictions in several threads would
    wait for each other, and a forked child for a thread that does not exist there.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T:
        """Return the cached value of an instance; for a class the property itself."""
        if instance is None:
            return self
        name = self.attrname
        assert name is not None  # set when the class is created
        found: T = instance.__dict__.setdefault(name, self.func(instance))
        return found
