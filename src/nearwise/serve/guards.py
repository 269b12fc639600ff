"""Checks before a request is parsed (host, origin, size, type), and response headers."""

import asyncio
import re
from collections.abc import Callable, Collection
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearwise.serve.monitoring import Monitoring
from nearwise.serve.problems import ProblemError, fault, own_path, problem, queue_is_full

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_SHARED = {  # for pages of allowed origins; keys travel in a header, never as cookies
    "Access-Control-Expose-Headers": "Location, Retry-After, WWW-Authenticate",
    "Vary": "Origin",
}
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, X-API-Key",
    "Access-Control-Max-Age": "600",
}
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:\d{1,5})?")
_WITH_BODY = ("POST", "PUT", "PATCH")
_METHODS = (*_WITH_BODY, "GET", "HEAD", "DELETE", "OPTIONS")  # method names in the metrics
_CLIENT_LEFT = 499  # in metrics: the client has disconnected
_PREDICTIONS = re.compile(r"/predict|/explain|/v2/models/[^/]*/infer")


class Guards:
    """Middleware: rejects unsafe requests, and adds metrics and security headers.

    Parameters
    ----------
    app : ASGI application
    hosts : collection of str, or None
        Allowed host names of the service; None allows any. Protects against DNS rebinding: a page
        of another site whose name resolves to this host would send that name.
    origins : collection of str
        Origins whose pages may call the service, as `checked_origins` returns them.
    max_body : int
        Maximum number of bytes of a body.
    monitoring : Monitoring, or None
        None counts nothing: mounted applications count their own requests.
    patience : float
        Maximum seconds to receive a body.
    is_full : callable
        Returns whether the queue of predictions is full.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str] | None,
        origins: Collection[str],
        max_body: int,
        monitoring: Monitoring | None,
        patience: float,
        is_full: Callable[[], bool],
    ) -> None:
        self._hosts = None if hosts is None else {name.lower() for name in hosts}
        self._app, self._max_body, self._origins = app, max_body, origins
        self._monitoring, self._patience, self._is_full = monitoring, patience, is_full

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, received = perf_counter(), Headers(scope=scope)
        status: int | None = None
        shared = _SHARED if self._is_allowed(received) else {}

        async def sealed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if shared:
                    headers.update(shared | {"Access-Control-Allow-Origin": received["origin"]})
            await send(message)

        try:
            try:
                self._check(received, scope)
                if shared and scope["method"] == "OPTIONS":
                    await Response(status_code=204, headers=_PREFLIGHT)(scope, receive, sealed)
                    return
                body = _Bounded(receive, self._max_body, self._patience)
                await self._app(scope, body, sealed)
            except ProblemError as error:
                await problem(error, own_path(scope))(scope, receive, sealed)
            except ClientDisconnect:
                status = _CLIENT_LEFT
            except Exception as error:
                said = fault(error, scope["method"], scope["path"])
                if status is not None:  # the response has begun and cannot be replaced
                    raise
                await problem(said, own_path(scope))(scope, receive, sealed)
        finally:
            route = getattr(scope.get("route"), "path", "none")  # not the client's path
            method = scope["method"] if scope["method"] in _METHODS else "other"
            if self._monitoring is not None:
                self._monitoring.requests.labels(method, route, status).inc()
                self._monitoring.seconds.labels(route).observe(perf_counter() - start)

    def _check(self, headers: Headers, scope: Scope) -> None:
        method, host = scope["method"], headers.get("host", "")
        if self._hosts is not None and host_name(host) not in self._hosts:
            raise ProblemError(
                403, f"This service is not called {host!r}. Name it with --allow-host if it is."
            )
        origin = headers.get("origin")
        is_foreign = origin is not None and not _is_own(origin, scope["scheme"], host)
        follows_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        at_home = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        is_at_odds = is_foreign or not (at_home or follows_link)
        if is_at_odds and not self._is_allowed(headers):
            raise ProblemError(
                403,
                "Pages of other sites may not call this service. To let those of an origin, start "
                "it with --allow-origin ORIGIN, such as https://app.example.org.",
            )
        length = headers.get("content-length", "0")
        if not re.fullmatch(r"\d{1,18}", length):
            raise ProblemError(400, "Content-Length is not a number.")
        if int(length) > self._max_body:
            raise _too_large(self._max_body)
        if "inference-header-content-length" in headers:
            raise ProblemError(
                415,
                "This service takes tensors as JSON. With tritonclient, give binary_data=False to "
                "set_data_from_numpy and InferRequestedOutput.",
            )
        has_body = int(length) > 0 or "transfer-encoding" in headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method in _WITH_BODY and has_body and kind not in ("", "application/json"):
            raise ProblemError(415, f"The body is {kind[:80]!r}; send application/json.")
        if method == "POST" and self._is_full() and _PREDICTIONS.fullmatch(own_path(scope)):
            raise queue_is_full()  # before the body is received
        if headers.get("content-encoding", "identity") != "identity":
            raise ProblemError(415, "The body is compressed; send it as it is.")

    def _is_allowed(self, headers: Headers) -> bool:
        """Whether a request comes from a page of an allowed other origin."""
        origin = headers.get("origin")
        return origin is not None and ("*" in self._origins or origin.lower() in self._origins)


def checked_origins(origins: Collection[str], *, has_keys: bool) -> frozenset[str]:
    """Return origins of web pages in lower case; ValueError if one is none, or opens too much."""
    found = frozenset(origin.lower() for origin in origins)
    wrong = sorted(one for one in found if one != "*" and not _ORIGIN.fullmatch(one))
    if wrong:
        raise ValueError(
            f"{wrong[0]!r} is not the origin of a page. Give scheme, host and port without a path, "
            "such as http://localhost:3000."
        )
    if "*" in found and not has_keys:
        raise ValueError(
            "The origin '*' without keys lets every page that is opened on this machine read and "
            "change the model. Name the origins, or require keys."
        )
    return found


def _is_own(origin: str, scheme: str, host: str) -> bool:
    """Whether an origin is this service, called directly or through a TLS proxy."""
    schemes = {scheme} if host_name(host) in LOOPBACK else {scheme, "https"}
    return origin.lower() in {f"{one}://{host.lower()}" for one in schemes}


class _Bounded:
    """Receives a body; rejects one that is too large or too slow."""

    def __init__(self, receive: Receive, max_body: int, patience: float) -> None:
        self._receive, self._max_body, self._n_bytes = receive, max_body, 0
        self._end = asyncio.get_running_loop().time() + patience
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:  # a further read waits for the client to disconnect
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            raise ProblemError(408, "The body did not come in time.") from None
        self._is_whole = not message.get("more_body", False)
        self._n_bytes += len(message.get("body", b""))
        if self._n_bytes > self._max_body:
            raise _too_large(self._max_body)
        return message


def _too_large(max_body: int) -> ProblemError:
    return ProblemError(413, f"The body is larger than {max_body} bytes. Send fewer rows at once.")


def host_name(host: str) -> str:
    """Name in a Host header, without the port."""
    found = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](:\d+)?|([^:\[\]]*)(:\d+)?", host)
    return (found[1] or found[3] or "").lower() if found else ""
