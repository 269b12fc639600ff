"""Lanes: one worker thread each that answers queued requests, in batches if possible."""

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from nearwise.forking import heed_forks


class QueueFullError(Exception):
    """The queue is full: another request would wait too long."""


@dataclass(eq=False)
class _Waiting:
    group: Hashable | None
    request: Any
    n_rows: int
    answer: "Future[Any]" = field(default_factory=Future)


class Lane:
    """A worker thread with a bounded queue.

    Requests wait while the thread works; waiting requests of one group are then answered by one
    call. So a single request is answered at once, and batches grow with the load.

    Parameters
    ----------
    name : str
        Name of the thread.
    work : callable
        Takes a list of requests of one group, and returns one answer per request; an exception
        in the list is raised for its request only.
    max_waiting : int
        Maximum number of waiting requests.
    max_rows : int, default=1
        Maximum number of rows per batch; a request with more rows is answered alone.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[Any]], list[Any]],
        *,
        max_waiting: int,
        max_rows: int = 1,
    ) -> None:
        self._work, self._max_waiting, self._max_rows = work, max_waiting, max_rows
        self._name, self._closed = name, False
        self._begin()
        heed_forks(self, Lane._begin)  # thread and waiting requests stay with the parent

    def _begin(self) -> None:
        """Start with an empty queue."""
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None  # started by the first request

    @property
    def n_waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether the queue is full or closed."""
        return self._closed or len(self._waiting) >= self._max_waiting

    def submit(
        self, request: Any, *, group: Hashable | None = None, n_rows: int = 1
    ) -> Future[Any]:
        """Queue a request; requests of the group None are answered one by one.

        A future that is cancelled before its turn is skipped.

        Raises
        ------
        QueueFullError
            If the queue is full, or the lane is closed.
        """
        with self._changed:
            if self.is_full:  # drop requests whose clients have gone
                self._waiting = deque(one for one in self._waiting if not one.answer.cancelled())
            if self.is_full:
                raise QueueFullError
            waiting = _Waiting(group, request, n_rows)
            self._waiting.append(waiting)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return waiting.answer

    def close(self) -> None:
        """Answer all waiting requests, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            started = [one for one in batch if one.answer.set_running_or_notify_cancel()]
            if not started:
                continue
            try:
                answers = self._work([one.request for one in started])
            except BaseException as error:
                answers = [error] * len(started)
            for one, answer in zip(started, answers, strict=True):
                if isinstance(answer, BaseException):
                    one.answer.set_exception(answer)
                else:
                    one.answer.set_result(answer)

    def _next(self) -> list[_Waiting]:
        """Take the first request, and all others of its group that fit into the batch."""
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return []
                self._changed.wait()
            batch, room = [self._waiting.popleft()], self._max_rows
            room -= batch[0].n_rows
            others: deque[_Waiting] = deque()
            while self._waiting:
                one = self._waiting.popleft()
                if one.group is not None and one.group == batch[0].group and one.n_rows <= room:
                    room -= one.n_rows
                    batch.append(one)
                else:
                    others.append(one)
            self._waiting = others
            return batch
