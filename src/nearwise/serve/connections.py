"""Connection limits of a service: number of connections, and time to send the headers."""

import asyncio
import sys

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST, _LONGEST_QUEUE = 4096, 2048
_RESERVE = 256  # descriptors for the journal, the model's files and new connections
_NO_LIMIT = 8192  # assumed if the system has no limit


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to the allowed maximum; return the limit."""
    if sys.platform == "win32":
        return _NO_LIMIT
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, _NO_LIMIT) if hard == resource.RLIM_INFINITY else hard
    if soft not in (wanted, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def most_connections(limit: int) -> tuple[int, int]:
    """Return the limits of open and of not yet accepted connections for this many descriptors."""
    most = min(_MOST, limit - min(_RESERVE, limit // 2))
    return most, min(_LONGEST_QUEUE, (limit - most) // 2)


def connections(most: int, patience: float) -> type[HttpToolsProtocol]:
    """Return a connection class for a server that limits their number and waiting time.

    Beyond `most` connections the one that has been idle longest is closed; if none is idle, the
    new one is closed. A connection is also closed if its headers are not complete within
    `patience` seconds after connecting or after the first byte of a later request.
    """
    waiting: dict[HttpToolsProtocol, None] = {}  # idle connections, the longest idle first

    class Connection(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._start_timer()
            waiting[self] = None
            if len(self.connections) > most:
                _close(next(iter(waiting)))

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            waiting.pop(self, None)
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._timer is None:
                self._start_timer()

        def on_headers_complete(self) -> None:
            self._stop_timer()
            waiting.pop(self, None)
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.response_complete and not self.transport.is_closing():
                waiting[self] = None

        def _start_timer(self) -> None:
            self._timer = self.loop.call_later(patience, self._give_up)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            self._timer = None
            if self in waiting:  # not while an earlier request is in progress
                _close(self)

    def _close(one: HttpToolsProtocol) -> None:
        waiting.pop(one, None)
        one.transport.abort()  # descriptors are scarce: no graceful shutdown

    return Connection
