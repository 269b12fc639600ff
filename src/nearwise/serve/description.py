"""Documentation of the HTTP interface: /openapi.json with examples of this model, and /docs."""

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import FileResponse, Response

from nearwise.serve.examples import a_remembered_id, examples
from nearwise.serve.problems import Problem
from nearwise.serve.service import Service

PROBLEMS = {
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
    500: "A fault of nearwise; the log of the service says more.",
    501: "An extra is not installed.",
    503: "The model cannot be changed now, or its folder not be used.",
    504: "The answer took longer than the deadline.",
}
_PROBLEM = {
    "description": "A problem; `status` and `detail` say which.",
    "headers": {
        "Retry-After": {
            "description": "Seconds to wait, with 429 and 503.",
            "schema": {"type": "integer"},
        }
    },
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_DOCS_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>nearwise: HTTP interface</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css"></head>
<body><div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script><script src="docs/start.js"></script></body>
</html>
"""
_DOCS_START = (
    'SwaggerUIBundle({url: "openapi.json", dom_id: "#docs", presets: '
    "[SwaggerUIBundle.presets.apis], validatorUrl: null})\n"
)
_DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' "
    "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TAGS = {  # in this order
    "predict": "Predictions, and the neighbors behind them.",
    "memory": "Remembered rows, and changes of them.",
    "review": "Rows to check, decisions about them, and the map.",
    "model": "What is served, and how far to trust it.",
    "jobs": "Background work and metrics.",
    "open inference protocol": "Version 2 of the protocol: health, metadata, tensors.",
}
REF = "#/components/schemas/{model}"


def add_documentation(
    app: FastAPI,
    service: Service,
    name: str,
    *,
    has_keys: bool,
    further: Mapping[type[BaseModel], Callable[[], Any]] | None = None,
) -> None:
    """Serve /openapi.json, and /docs without any network access.

    `further` are bodies beside those of the task, each with a function that returns an example. The
    description is public. A service with keys leaves out the examples, which use columns,
    labels and ids of the model.
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
            _complete(schema, (*service.task.BODIES, *(further or ())), has_keys=has_keys)
        if not has_keys:
            more = {kind.__name__: make() for kind, make in (further or {}).items()}
            _show_model(schema, service, name, more)  # each time, since a row may be removed
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(schema: dict[str, Any], bodies: Sequence[type[BaseModel]], *, has_keys: bool) -> None:
    """Add the bodies, which routes parse themselves, and the one response to all errors."""
    kinds: Any = [(one, "validation") for one in (*bodies, Problem)]
    parts = models_json_schema(kinds, ref_template=REF)[1]["$defs"]
    for part in parts.values():
        _without_defaults(part)
    for body in bodies:
        parts |= _of_each_form(body, parts[body.__name__])
    components = schema["components"]
    components["schemas"] |= parts
    components["responses"] = {"Problem": _PROBLEM}
    for part in components["schemas"].values():
        for about in part.get("properties", {}).values():
            about.pop("title", None)  # the name once more
    for operation in (one for path in schema["paths"].values() for one in path.values()):
        _complete_operation(operation, components["schemas"])
        if not has_keys:
            operation.pop("security", None)
    if not has_keys:
        components.pop("securitySchemes")


def _complete_operation(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Add the summary, the description of the answer, and the response to all errors."""
    operation["summary"] = operation["description"].partition("\n")[0].rstrip(".")
    responses = operation["responses"]
    (answer,) = (one for status, one in responses.items() if status != "default")
    kind = answer["content"].get("application/json", {}).get("schema", {}).get("$ref", "")
    about = schemas.get(kind.rpartition("/")[2], operation)
    answer["description"] = about["description"].partition("\n")[0]
    responses["default"] = {"$ref": "#/components/responses/Problem"}


def _without_defaults(part: dict[str, Any]) -> None:
    """Move defaults to the descriptions: generators take a member with a default for required."""
    for about in part.get("properties", {}).values():
        default = about.pop("default", None)
        if default and not isinstance(default, bool | dict):
            about["description"] = f"{about.get('description', '')} Default: {default}.".lstrip()


def _of_each_form(body: type[BaseModel], whole: dict[str, Any]) -> dict[str, Any]:
    """Describe a body with rows as one of several, by the form of the rows."""
    forms, schemas = getattr(body, "forms", ()), {}
    if not forms:
        return {}
    for form in forms:
        left_out = {*forms, *([] if form == "images" else ["resize"])} - {form}
        members = {name: of for name, of in whole["properties"].items() if name not in left_out}
        given = {name: of for name, of in members[form].items() if name != "anyOf"}
        members[form] = given | members[form]["anyOf"][0]  # not null
        if form == "rows":
            members[form]["items"] = {"$ref": REF.format(model="Row")}
        title = f"{body.__name__}Of{form.title()}"
        required = [form, *whole.get("required", ())]
        schemas[title] = whole | {"title": title, "properties": members, "required": required}
    each = [{"$ref": REF.format(model=title)} for title in schemas]
    return schemas | {body.__name__: {"description": whole["description"], "oneOf": each}}


def _show_model(schema: dict[str, Any], service: Service, name: str, more: dict[str, Any]) -> None:
    """Add an example to each body and to the parameters `model` and `id`."""
    version = service.live.now
    bodies, row = examples(version, service.task) | more, a_remembered_id(version)
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
