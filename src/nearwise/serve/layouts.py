"""Layouts of the map that take minutes: made in a thread of their own, while somebody waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from nearwise.serve.batching import Lane

T = TypeVar("T")
_LOOK_EVERY = 0.5  # seconds between looks whether a client is still there
_COMES_BACK = 60.0  # seconds within which a client asks again after a 504


class AbandonedError(TimeoutError):
    """Nobody waited for a layout any more."""


class Layouts:
    """A lane for slow layouts: how far the present one is, and an end to it when nobody waits.

    A client that leaves, as the page does when another layout is chosen, no longer waits; one that
    got a 504 has a minute to ask again.
    """

    def __init__(self, work: Callable[[list[Callable[[], T]]], list[T]], max_waiting: int) -> None:
        self.lane = Lane("layouts", work, max_waiting=max_waiting)
        self.progress: float | None = None
        self._n_waiting, self._until, self._is_closing = 0, 0.0, False

    def close(self) -> None:
        """Give the present layout up, and end the thread."""
        self._is_closing = True
        self.lane.close()

    def report(self, share: float) -> None:
        """Note how far the layout is; called by the thread that makes it.

        Raises
        ------
        AbandonedError
            If nobody waits for it.
        """
        is_wanted = self._n_waiting or time.monotonic() <= self._until
        if self._is_closing or not is_wanted:
            self.progress = None
            raise AbandonedError
        self.progress = share if share < 1 else None

    async def answer(
        self, work: Callable[[], T], deadline: float, is_gone: Callable[[], Awaitable[bool]]
    ) -> T:
        """Do the work in the lane; TimeoutError after the deadline, or when the client is gone."""
        self._n_waiting += 1
        try:
            asked: Future[T] = self.lane.submit(work)
            answer = asyncio.wrap_future(asked)
            end = time.monotonic() + deadline
            while not answer.done() and time.monotonic() < end:
                await asyncio.wait({answer}, timeout=min(_LOOK_EVERY, deadline))
                if not answer.done() and await is_gone():
                    self._until = 0.0
                    break
            if answer.done():
                return answer.result()
            answer.cancel()
            if time.monotonic() >= end:
                self._until = time.monotonic() + _COMES_BACK
            raise TimeoutError
        finally:
            self._n_waiting -= 1
