"""Error responses: application/problem+json (RFC 9457)."""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from nearwise.memory import StoreError
from nearwise.safe_files import plain
from nearwise.serve.batching import QueueFullError

_LOG = logging.getLogger("nearwise.serve")
_SHOWN = 10  # mistakes of a body
RETRY_AFTER = 1  # seconds


class Mistake(BaseModel):
    """A mistake in a body."""

    at: str = Field(description="Path of the member, such as rows.0.")
    what: str


class Problem(BaseModel):
    """Why a request was not answered (RFC 9457)."""

    type: Literal["about:blank"]
    title: str = Field(description="Name of the status.")
    status: int = Field(description="HTTP status.")
    detail: str = Field(description="What was wrong, what was seen, and what to do.")
    errors: list[Mistake] = Field(
        default_factory=list, description=f"Mistakes of an invalid body; the first {_SHOWN}."
    )
    error: str = Field(
        default_factory=str, description="The detail once more, under /v2 (its protocol)."
    )


class ProblemError(HTTPException):
    """Error of a request, with a message for the client.

    Parameters
    ----------
    status : int
        HTTP status code.
    detail : str
        The error, the value seen, and the remedy.
    headers : mapping of str to str, optional
    more : Any
        Further members of the response.
    """

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(status, detail, headers)
        self.more = more


class PlainJSON(JSONResponse):
    """JSON response that supports numpy types, in ASCII: labels may be invalid in UTF-8."""

    def render(self, content: Any) -> bytes:
        """Encode content as bytes."""
        try:  # several times as fast if few values need a conversion
            text = json.dumps(content, allow_nan=False, default=plain, separators=(",", ":"))
        except ValueError:  # infinity, which becomes null
            text = json.dumps(plain(content), separators=(",", ":"))
        return text.encode("ascii")


class _ProblemJSON(PlainJSON):
    media_type = "application/problem+json"


def own_path(scope: Scope) -> str:
    """Path of a request in its application, which may be mounted in another one."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def problem(error: ProblemError, path: str) -> Response:
    """Return the error response to a request to `path` of its application."""
    status = error.status_code
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    if path.startswith("/v2"):
        content["error"] = error.detail  # member of the Open Inference Protocol
    headers = dict(error.headers or {})
    if status in (429, 503):
        headers.setdefault("Retry-After", str(RETRY_AFTER))
    return _ProblemJSON(content | {"detail": error.detail} | error.more, status, headers=headers)


def queue_is_full() -> ProblemError:
    """Return the error for a request that finds the queue full."""
    return ProblemError(429, "Too many requests are waiting. Send it again in a second.")


def explain_errors(app: FastAPI) -> None:
    """Make an app answer every error with problem+json."""
    for kind in (
        HTTPException, RequestValidationError, QueueFullError, StoreError, BlockingIOError,
        TimeoutError, OSError,
    ):  # fmt: skip
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    return problem(as_problem(error), own_path(request.scope))


def as_problem(error: Exception) -> ProblemError:
    """Return the error of a request, or of the model's folder, as a problem."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, HTTPException):  # 404 and 405 of routes
        detail = f"{error.detail}. /docs describes the routes."
        return ProblemError(error.status_code, detail, error.headers)
    if isinstance(error, RequestValidationError):  # of a path, a query or a header
        first = error.errors()[0]
        return ProblemError(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    if isinstance(error, QueueFullError):
        return queue_is_full()
    if isinstance(error, TimeoutError):
        return ProblemError(504, "The answer took longer than the deadline of this service.")
    if isinstance(error, BlockingIOError):
        return ProblemError(503, f"{error} Send it again in a second.")
    _LOG.error("the model's folder cannot be used: %s", error)  # StoreError, OSError
    return ProblemError(503, "The model's folder cannot be read or written; the log says more.")


def problem_of_body(error: ValidationError, kind: type[BaseModel]) -> ProblemError:
    """Return the error for an invalid body, without repeating its values."""
    members = ", ".join(field.alias or name for name, field in kind.model_fields.items())
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return ProblemError(400, f"The body is not readable JSON: {found[0]['msg']}.")
    mistakes = [
        {
            "at": ".".join(map(str, one["loc"])) or "body",
            "what": f"not known here; the members are {members}"
            if one["type"] == "extra_forbidden"
            else one["msg"].removeprefix("Value error, "),
        }
        for one in found[:_SHOWN]
    ]
    first = mistakes[0]
    return ProblemError(422, f"{first['at']}: {first['what']}", errors=mistakes)


def fault(error: Exception, method: str, path: str) -> ProblemError:
    """Log an internal error; the client gets only a short message."""
    _LOG.error("%s %s failed", method, path, exc_info=error)
    return ProblemError(500, "This is a fault of nearwise; the service's log says more.")
