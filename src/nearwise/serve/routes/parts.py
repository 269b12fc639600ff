"""Parts of several routes: parameters, described bodies, answers to changes."""

from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from nearwise.memory import Change
from nearwise.serve.description import REF
from nearwise.serve.problems import PlainJSON

RowId = Annotated[int, Path(ge=0, lt=2**63, description="Id of a remembered row.")]
Limit = Annotated[int, Query(ge=1, le=10_000, description="Most entries of the answer.")]
Offset = Annotated[int, Query(ge=0, lt=2**63, description="Entries to skip.")]


def typed(kind: type[BaseModel], answer: type[BaseModel]) -> dict[str, Any]:
    """Describe the response of a route, and the body that the route parses itself."""
    content = {"application/json": {"schema": {"$ref": REF.format(model=kind.__name__)}}}
    body = {"requestBody": {"required": True, "content": content}}
    return {"openapi_extra": body, "response_model": answer}


def key_of_holder(
    request: Request,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=200,
            description="Names the request: sent again under the same key, it is made once.",
        ),
    ] = None,
) -> str | None:
    """Return the idempotency key, which each holder of an access key chooses on its own."""
    holder = request.state.holder.name
    return f"{key} of {holder}" if key is not None and holder else key


IdempotencyKey = Annotated[str | None, Depends(key_of_holder)]


def changed(change: Change, status: int = 200, **more: Any) -> Response:
    """Answer a request for a change."""
    content = {
        "kind": change.kind,
        "ids": change.ids,
        "evicted": change.details.get("evicted") or [],
        **more,
        "memory_version": change.version,
    }
    return PlainJSON(content, status)
