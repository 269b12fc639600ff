"""Work on the same rows that the models of several targets share: done once, not per target."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_DONE: ContextVar[dict[tuple[Any, ...], tuple[Any, ...]] | None] = ContextVar("done", default=None)


@contextmanager
def shared_work() -> Iterator[None]:
    """Within the block, `once` does equal work a single time."""
    done = _DONE.get()
    token = _DONE.set({} if done is None else done)
    try:
        yield
    finally:
        _DONE.reset(token)


def once(name: str | Callable[[], str], given: tuple[Any, ...], work: Callable[[], T]) -> T:
    """Return the result of some work; in `shared_work` that of the first time for the same objects.

    `name`, or the result of its call, tells what is done, `given` holds the objects to which it is
    done. They must not change meanwhile, nor may the result.
    """
    done = _DONE.get()
    if done is None:
        return work()
    key = name if isinstance(name, str) else name(), *map(id, given)
    if key not in done:
        done[key] = work(), given  # kept, so that no other object gets their ids
    found: T = done[key][0]
    return found
