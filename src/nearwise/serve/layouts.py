"""Slow layouts of the map, computed in their own thread while a client waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from nearwise.serve.batching import Lane

T = TypeVar("T")
_LOOK_EVERY = 0.5  # seconds between checks that a client is still connected
_COMES_BACK = 60.0  # seconds within which a client retries after a 504


class AbandonedError(TimeoutError):
    """No client waits for the layout any more."""


class Layouts:
    """A lane for slow layouts, with progress, that cancels a layout without waiting clients.

    A client that disconnects, as the page does when another layout is chosen, no longer waits; a
    client that got a 504 has a minute to retry.
    """

    def __init__(self, work: Callable[[list[Callable[[], T]]], list[T]], max_waiting: int) -> None:
        self.lane = Lane("layouts", work, max_waiting=max_waiting)
        self.progress: float | None = None
        self._n_waiting, self._until, self._is_closing = 0, 0.0, False

    def close(self) -> None:
        """Cancel the present layout, and end the thread."""
        self._is_closing = True
        self.lane.close()

    def report(self, share: float) -> None:
        """Record the progress of the layout; called by the thread that computes it.

        Raises
        ------
        AbandonedError
            If no client waits for it.
        """
        is_wanted = self._n_waiting or time.monotonic() <= self._until
        if self._is_closing or not is_wanted:
            self.progress = None
            raise AbandonedError
        self.progress = share if share < 1 else None

    async def answer(
        self, work: Callable[[], T], deadline: float, is_gone: Callable[[], Awaitable[bool]]
    ) -> T:
        """Do the work in the lane; TimeoutError after the deadline or if the client disconnects."""
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
