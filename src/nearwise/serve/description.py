"""Documentation of the HTTP interface: /openapi.json with examples of this model, and /docs."""

from importlib.resources import files
from typing import Any, Literal

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema
from starlette.responses import FileResponse, Response

from nearwise.serve.examples import a_remembered_id, examples
from nearwise.serve.service import Service

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": what,
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
    for status, what in {
        400: "The body is not JSON.",
        401: "A key is missing or unknown.",
        403: "The key may not do that, or the request comes from elsewhere.",
        404: "There is no such row, change or job.",
        408: "The body did not come in time.",
        409: "The Idempotency-Key was used by another request.",
        413: "Too many rows or bytes.",
        415: "The body is of another type than JSON.",
        422: "The model cannot take these rows, or does not support this.",
        429: "Too many requests wait; Retry-After says when to try again.",
        501: "An extra is not installed.",
        503: "The model cannot be changed now, or its folder not be used.",
        504: "The answer took longer than the deadline.",
    }.items()
}
_PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}
_DOCS_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>nearwise: HTTP interface</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css"></head>
<body><div id="docs"></div>
<script src="/docs/swagger-ui-bundle.js"></script><script src="/docs/start.js"></script></body>
</html>
"""
_DOCS_START = (
    'SwaggerUIBundle({url: "/openapi.json", dom_id: "#docs", presets: '
    "[SwaggerUIBundle.presets.apis], validatorUrl: null})\n"
)
_DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' "
    "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TAGS = ("predict", "memory", "review", "jobs", "open inference protocol")  # in this order
REF = "#/components/schemas/{model}"


def add_documentation(app: FastAPI, service: Service, name: str, *, shows_model: bool) -> None:
    """Serve /openapi.json, and /docs without any network access.

    `shows_model`: whether the example requests use columns, labels and ids of the model. The
    description is public, so a service with keys leaves them out.
    """
    static = files("fastapi_offline").joinpath("static")
    policy = {"Content-Security-Policy": _DOCS_POLICY}

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(_DOCS_PAGE, media_type="text/html", headers=policy)

    @app.get("/docs/start.js", include_in_schema=False)
    async def start() -> Response:
        return Response(_DOCS_START, media_type="text/javascript")

    @app.get("/docs/{name}", include_in_schema=False)
    async def file(name: Literal["swagger-ui.css", "swagger-ui-bundle.js"]) -> Response:
        return FileResponse(str(static.joinpath(name)))

    described = app.openapi

    def openapi() -> dict[str, Any]:
        is_new, schema = app.openapi_schema is None, described()
        if is_new:
            _, parts = models_json_schema(
                [(one, "validation") for one in service.task.BODIES], ref_template=REF
            )
            schema["components"]["schemas"] |= parts["$defs"] | {"Problem": _PROBLEM_SCHEMA}
            for operation in (one for path in schema["paths"].values() for one in path.values()):
                operation["summary"] = operation["description"].partition("\n")[0].rstrip(".")
        if shows_model:
            _show_model(schema, service, name)  # each time, since a row may be removed
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _show_model(schema: dict[str, Any], service: Service, name: str) -> None:
    """Add an example to each body and to the parameters `model` and `id`."""
    version = service.live.now
    bodies, row = examples(version, service.task), a_remembered_id(version)
    for path, operations in schema["paths"].items():
        about_rows = path.startswith(("/rows/", "/issues/"))
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                kind = content["schema"]["$ref"].rpartition("/")[2]
                content["example"] = bodies[kind]
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "model":
                    parameter["example"] = name
                elif parameter["name"] == "id" and about_rows:
                    parameter["example"] = row
