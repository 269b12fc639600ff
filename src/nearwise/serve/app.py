"""HTTP application: routes, access control and OpenAPI documentation."""

import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version as version_of
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from nearwise.serve.description import PROBLEMS, TAGS, add_documentation
from nearwise.serve.guards import Guards, checked_origins
from nearwise.serve.keys import ANYONE, SCOPES, Holder, Scope, StoredKey, holder_of
from nearwise.serve.page import add_page
from nearwise.serve.problems import PlainJSON, ProblemError, explain_errors
from nearwise.serve.routes import add_routes
from nearwise.serve.service import Service

_ABOUT = """Predictions of a model that shows the neighbors behind each answer, and changes of what
it remembers, which are on the disk before they are answered. {about}

Predictions, changes and reviews have `memory_version`: the number of changes since the fit. Errors
are `application/problem+json` with a `detail` that says what to do:

{problems}"""
_bearer = HTTPBearer(auto_error=False, description="A key of the service's keys file.")
_api_key = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same key.")


def create_app(
    service: Service,
    *,
    name: str = "model",
    keys: Sequence[StoredKey] = (),
    hosts: Collection[str] | None = None,
    allow_origins: Collection[str] = (),
    page: bool = True,
    is_one_of: bool = False,
) -> FastAPI:
    """Make the HTTP application of a service.

    Parameters
    ----------
    service : Service
        Closed when the application shuts down.
    name : str, default="model"
        Name of the model in the Open Inference Protocol.
    keys : sequence of StoredKey, default=()
        Access keys. Without keys every request is allowed, so listen to this machine only.
    hosts : collection of str, optional
        Allowed host names in requests; by default any.
    allow_origins : collection of str, default=()
        Origins whose web pages may call the service, such as ``"https://app.example.org"``, or
        ``"*"`` for all, which needs keys. Cookies and other credentials of browsers are not used.
    page : bool, default=True
        Whether to serve the web page too, at ``/``.
    is_one_of : bool, default=False
        Whether the application is mounted in one of several targets, to which its page has a link.

    Raises
    ------
    ValueError
        If an allowed origin is none, or ``"*"`` without keys.
    """
    origins = checked_origins(allow_origins, has_keys=bool(keys))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()  # here, since the answering process may be a fork
        service.get_ready()
        yield
        service.close()

    app = bare_app(f"Its task: {service.task.TASK}.", lifespan)
    app.add_middleware(
        Guards,
        hosts=hosts,
        origins=origins,
        max_body=service.limits.max_body,
        patience=service.limits.deadline,
        monitoring=service.monitoring,
        is_full=lambda: service.predictions.is_full,
    )
    read, write, admin = (APIRouter(dependencies=[needed(one, keys)]) for one in SCOPES)
    add_routes(app, service, name, read=read, write=write, admin=admin)
    if page:
        add_page(app, read, write, service, name=name, needs_key=bool(keys), is_one_of=is_one_of)
    for router in (read, write, admin):
        app.include_router(router)
    add_documentation(app, service, name, has_keys=bool(keys))
    return app


def bare_app(about: str, lifespan: Any) -> FastAPI:
    """Make an application without routes, whose errors are problems; `about` completes its text."""
    app = FastAPI(
        title="nearwise",
        version=version_of("nearwise"),
        description=_ABOUT.format(
            about=about,
            problems="\n".join(f"- {status}: {what}" for status, what in PROBLEMS.items()),
        ),
        openapi_tags=[{"name": tag, "description": about} for tag, about in TAGS.items()],
        servers=[{"url": "/", "description": "The service that this description comes from."}],
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=PlainJSON,
        generate_unique_id_function=lambda route: route.name,
        responses={"default": {"description": "A problem."}},  # see `add_documentation`
        separate_input_output_schemas=False,
    )
    explain_errors(app)
    return app


def needed(scope: Scope, keys: Sequence[StoredKey]) -> Any:
    """Return a dependency: the key holder of a request, if allowed to make it."""

    async def check(
        request: Request,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
        api_key: Annotated[str | None, Security(_api_key)],
    ) -> Holder:
        request.state.holder = ANYONE
        if not keys:
            return ANYONE
        token = api_key if bearer is None else bearer.credentials
        found = None if token is None else holder_of(token, keys)
        if found is None:
            what = "The key is unknown" if token else "A key is needed"
            raise ProblemError(
                401, f"{what}: send Authorization: Bearer KEY.", {"WWW-Authenticate": "Bearer"}
            )
        if not found.may(scope):
            raise ProblemError(
                403, f"The key {found.name!r} is for scope {found.scope}, not for {scope}."
            )
        request.state.holder = found
        return found

    return Depends(check)


def model_name(folder: str) -> str:
    """Derive a model name from its folder: letters, digits, dots, dashes."""
    return re.sub(r"[^\w.-]+", "-", folder.removesuffix(".model")) or "model"
