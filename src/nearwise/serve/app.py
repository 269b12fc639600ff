"""HTTP application: routes, access control and OpenAPI documentation."""

import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from enum import Enum
from importlib.metadata import version as version_of
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from nearwise.estimators import LiveModel
from nearwise.estimators.memory_map import MapMethod
from nearwise.estimators.online.feedback import feedback_summary
from nearwise.memory import Change
from nearwise.serve import answers, classes
from nearwise.serve.asked_rows import Ask
from nearwise.serve.bodies import labels_for, reader, rows_for
from nearwise.serve.description import PROBLEMS, REF, TAGS, add_documentation
from nearwise.serve.guards import Guards
from nearwise.serve.keys import ANYONE, Holder, Scope, StoredKey, holder_of
from nearwise.serve.page import add_page
from nearwise.serve.problems import PlainJSON, ProblemError, explain_errors
from nearwise.serve.protocol import (
    infer_answer,
    model_metadata,
    rows_of_tensors,
    wanted_outputs,
)
from nearwise.serve.service import Service
from nearwise.warn import collected_warnings

_ABOUT = """Predictions of a model that shows the neighbors behind each answer, and changes of what
it remembers, which are on the disk before they are answered. Its task: {task}.

Predictions, changes and reviews have `memory_version`: the number of changes since the fit. Errors
are `application/problem+json` with a `detail` that says what to do."""
RowId = Annotated[int, Path(ge=0, lt=2**63, description="Id of a remembered row.")]
Page = Annotated[int, Query(ge=1, le=10_000, description="Most entries of the answer.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Names the request: sent again under the same key, it is made once.",
    ),
]
_bearer = HTTPBearer(auto_error=False, description="A key of the service's keys file.")
_api_key = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same key.")


def create_app(
    service: Service,
    *,
    name: str = "model",
    keys: Sequence[StoredKey] = (),
    hosts: Collection[str] | None = None,
    page: bool = True,
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
    page : bool, default=True
        Whether to serve the web page too, at ``/``.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()  # here, since the answering process may be a fork
        service.get_ready()
        yield
        service.close()

    app = FastAPI(
        title="nearwise",
        version=version_of("nearwise"),
        description=_ABOUT.format(task=service.task.TASK),
        openapi_tags=[{"name": name} for name in TAGS],
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=PlainJSON,
        generate_unique_id_function=lambda route: route.name,
        responses=PROBLEMS,
        separate_input_output_schemas=False,
    )
    explain_errors(app)
    app.add_middleware(
        Guards,
        hosts=hosts,
        max_body=service.limits.max_body,
        patience=service.limits.deadline,
        monitoring=service.monitoring,
        is_full=lambda: service.predictions.is_full,
    )

    def holder(scope: Scope) -> Any:
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

    read = APIRouter(dependencies=[holder("read")])
    write = APIRouter(dependencies=[holder("write")])
    admin = APIRouter(dependencies=[holder("admin")])
    _add_predictions(read, service)
    _add_rows(read, write, service)
    _add_review(read, service)
    _add_jobs(read, admin, service)
    _add_protocol(app, read, service, name)
    if page:
        add_page(app, read, write, service, name=name, needs_key=bool(keys))
    for router in (read, write, admin):
        app.include_router(router)
    add_documentation(app, service, name, shows_model=not keys)
    return app


def _typed(kind: type[BaseModel], answer: type[BaseModel]) -> dict[str, Any]:
    """Describe the response of a route, and the body that the route parses itself."""
    content = {"application/json": {"schema": {"$ref": REF.format(model=kind.__name__)}}}
    body = {"requestBody": {"required": True, "content": content}}
    return {"openapi_extra": body, "response_model": answer}


# --- predictions --------------------------------------------------------------------------------


def _add_predictions(read: APIRouter, service: Service) -> None:
    task = service.task

    async def answered(body: Any, n_neighbors: int | None = None) -> Response:
        levels = getattr(body, "quantiles", None)
        limits = body.coverage, body.max_risk, getattr(body, "max_width", None)
        ask = Ask(body.confidence, body.novelty, *limits, n_neighbors, levels)
        return await service.predict(
            lambda now: rows_for(now, body), body.n_rows, ask, _predictions
        )

    @read.post("/predict", tags=["predict"], **_typed(task.Question, task.Predictions))
    async def predict(body: Annotated[Any, Depends(reader(task.Question))]) -> Response:
        """Predict rows, with the requested additional outputs."""
        return await answered(body)

    @read.post("/explain", tags=["predict"], **_typed(task.WhyQuestion, task.Explanations))
    async def explain(body: Annotated[Any, Depends(reader(task.WhyQuestion))]) -> Response:
        """Predict rows, and show the neighbors behind each prediction."""
        return await answered(body, body.n_neighbors)


def _predictions(found: Any) -> Response:
    content: dict[str, Any] = {"predictions": found.records()}
    if found.selection is not None:
        content["selection"] = found.selection
    return PlainJSON(content | {"memory_version": found.version, "warnings": found.warnings})


# --- rows ---------------------------------------------------------------------------------------


def _add_rows(read: APIRouter, write: APIRouter, service: Service) -> None:
    task = service.task
    Labelled = Annotated[Any, Depends(reader(task.Labelled))]
    NewLabel = Annotated[Any, Depends(reader(task.NewLabel))]
    Decision = Annotated[Any, Depends(reader(task.Decision))]

    async def taken(body: Any, key: str | None, *details: str) -> Response:
        service.check_rows(body.n_rows)
        warnings: list[str] = []

        def make(live: LiveModel) -> Change:
            X = rows_for(live.now, body)
            y = labels_for(live.now, body.labels, new_classes=body.new_classes)
            take = live.feedback if "judged" in details else live.add
            with collected_warnings() as said:
                change = take(X, y, groups=body.groups, key=key)
            warnings.extend(dict.fromkeys(said))
            return change

        change = await service.change(make)
        found = {name: change.details[name] for name in details} | {"warnings": warnings}
        return _changed(change, 201, **found)

    async def decided(id: int, action: str, label: Any, forget: bool, key: str | None) -> Response:
        def make(live: LiveModel) -> Change:
            if action == "keep":
                return live.keep([id], key=key)
            if action == "remove":
                return live.remove([id], forget_classes=forget, key=key)
            y = labels_for(live.now, [label], new_classes=False)
            return live.relabel([id], y, forget_classes=forget, key=key)

        return _changed(await service.change(make))

    @write.post("/rows", tags=["memory"], status_code=201, **_typed(task.Labelled, answers.Added))
    async def add_rows(body: Labelled, key: IdempotencyKey = None) -> Response:
        """Remember rows; the next prediction may use them. Nothing is trained."""
        return await taken(body, key, "evicted")

    @write.post(
        "/feedback", tags=["memory"], status_code=201, **_typed(task.Labelled, task.Feedback)
    )
    async def feedback(body: Labelled, key: IdempotencyKey = None) -> Response:
        """Predict rows with known labels, record the errors, and remember the rows."""
        return await taken(body, key, "evicted", "judged")

    @read.get("/feedback", tags=["memory"], response_model=task.FeedbackSummary)
    async def feedback_so_far(
        last: Annotated[int | None, Query(ge=1, description="Only the newest rows.")] = None,
    ) -> Response:
        """Measure the predictions of all feedback, and the evidence of drift."""
        history = await service.ask(service.live.history)
        version = history[-1].version if history else service.live.version
        found = feedback_summary(history, last, of_numbers=task is not classes)
        return PlainJSON(found | {"memory_version": version})

    @read.get("/rows/{id}", tags=["memory"], response_model=task.Remembered)
    async def row(id: RowId) -> Response:
        """Show a remembered row."""
        version, found = service.remembered(id)
        return PlainJSON(found | {"memory_version": version.number})

    @write.patch("/rows/{id}", tags=["memory"], **_typed(task.NewLabel, answers.Changed))
    async def relabel(id: RowId, body: NewLabel, key: IdempotencyKey = None) -> Response:
        """Replace the label or target of a remembered row."""
        return await decided(id, "relabel", body.label, body.forget_classes, key)

    @write.delete("/rows/{id}", tags=["memory"], response_model=answers.Changed)
    async def remove(
        id: RowId,
        forget_classes: Annotated[
            bool,
            Query(
                description="Even if a class loses its last row.",
                include_in_schema=task is classes,
            ),
        ] = False,
        key: IdempotencyKey = None,
    ) -> Response:
        """Remove a remembered row."""
        return await decided(id, "remove", None, forget_classes, key)

    @write.post("/issues/{id}", tags=["review"], **_typed(task.Decision, answers.Changed))
    async def decide(id: RowId, body: Decision, key: IdempotencyKey = None) -> Response:
        """Decide about a row's label: replace it, keep it, or remove the row."""
        return await decided(id, body.action, body.label, body.forget_classes, key)

    @read.get("/changes", tags=["memory"], response_model=answers.Changes)
    async def changes(limit: Page = 100) -> Response:
        """List the newest changes, newest first."""
        found = await service.ask(lambda: service.live.history(limit))
        names = ("version", "time", "kind", "ids")
        listed = [
            {name: getattr(one, name) for name in names} | {"undoes": one.details.get("undoes")}
            for one in reversed(found)
        ]
        version = found[-1].version if found else service.live.version
        return PlainJSON({"changes": listed, "memory_version": version})

    @write.post("/changes/{version}/undo", tags=["memory"], response_model=answers.Changed)
    async def undo(
        version: Annotated[int, Path(ge=1, lt=2**63)], key: IdempotencyKey = None
    ) -> Response:
        """Reverse a change."""
        return _changed(await service.undo(version, key))


def _changed(change: Change, status: int = 200, **more: Any) -> Response:
    content = {"ids": change.ids, **more, "memory_version": change.version}
    return PlainJSON(content, status)


# --- review -------------------------------------------------------------------------------------


def _add_review(read: APIRouter, service: Service) -> None:
    @read.get("/issues", tags=["review"], response_model=answers.Issues)
    async def issues(limit: Page = 100) -> Response:
        """List remembered rows with suspected wrong labels, most suspicious first."""
        version, found = await service.read(service.issues)
        listed = {"issues": found[:limit].to_dict("records"), "n_issues": len(found)}
        return PlainJSON(listed | {"memory_version": version.number})

    @read.get("/map", tags=["review"], response_model=service.task.MapSeen)
    async def memory_map(
        request: Request,
        method: Annotated[MapMethod, Query(description="t-SNE needs the extra map.")] = "pca",
        doubt: Annotated[
            bool, Query(description="Also the probability that each label is wrong.")
        ] = False,
    ) -> Response:
        """Project the memory to two dimensions: at most 20,000 rows, drawn at random."""
        version, found = await service.read_map(
            method, lambda: service.map(method, doubt=doubt), request.is_disconnected
        )
        return PlainJSON(found | {"memory_version": version.number})


# --- jobs and monitoring ------------------------------------------------------------------------


def _add_jobs(read: APIRouter, admin: APIRouter, service: Service) -> None:
    def started(kind: str, work: Callable[[LiveModel], object]) -> Response:
        job = service.start_job(kind, work)
        where = f"/jobs/{job.id}"
        return PlainJSON({"job": job.id, "status": where}, 202, headers={"Location": where})

    @admin.post("/compact", tags=["jobs"], status_code=202, response_model=answers.Started)
    async def compact() -> Response:
        """Fold all changes into the model's folder, and delete removed rows for good."""
        return started("compact", lambda live: live.compact())

    @admin.post("/refresh", tags=["jobs"], status_code=202, response_model=answers.Started)
    async def refresh() -> Response:
        """Refit the model on the present memory; predictions continue meanwhile."""
        return started("refresh", lambda live: live.refresh())

    @read.get("/jobs/{id}", tags=["jobs"], response_model=answers.JobSeen)
    async def job(id: RowId) -> Response:
        """Report the state of a job: waiting, running, done or failed."""
        return PlainJSON(asdict(service.job(id)))

    @read.get("/metrics", tags=["jobs"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.monitoring.text(), media_type="text/plain; version=0.0.4")


# --- the Open Inference Protocol ----------------------------------------------------------------


def _add_protocol(app: FastAPI, read: APIRouter, service: Service, name: str) -> None:
    tags: list[str | Enum] = ["open inference protocol"]
    Model = Annotated[str, Path(description=f"The model's name: {name}.")]

    def check(model: str) -> None:
        if model != name:
            raise ProblemError(404, f"There is no model {model[:80]!r}; this one is {name!r}.")

    @app.get("/v2/health/live", tags=tags, response_model=answers.Live)
    async def is_live() -> Response:
        """Whether the service runs; no key is needed."""
        return PlainJSON({"live": True})

    @app.get("/v2/health/ready", tags=tags, response_model=answers.Ready)
    async def is_ready() -> Response:
        """Whether the service can answer, and its preparation step; no key is needed."""
        step = service.getting_ready
        return PlainJSON({"ready": True, "getting_ready": step and step.model_dump()})

    @read.get("/v2", tags=tags, response_model=answers.Server)
    async def server() -> Response:
        """Server metadata."""
        found = {"name": "nearwise", "version": version_of("nearwise"), "extensions": []}
        return PlainJSON(found)

    @read.get("/v2/models/{model}", tags=tags, response_model=answers.ModelMetadata)
    async def metadata(model: Model) -> Response:
        """Model metadata: inputs and outputs."""
        check(model)
        return PlainJSON(model_metadata(name, service.live.now, service.task))

    @read.get("/v2/models/{model}/ready", tags=tags, response_model=answers.ModelReady)
    async def is_model_ready(model: Model) -> Response:
        """Whether the model can answer requests."""
        check(model)
        return PlainJSON({"name": name, "ready": True})

    kind = service.task.InferRequest
    Tensors = Annotated[Any, Depends(reader(kind))]

    @read.post("/v2/models/{model}/infer", tags=tags, **_typed(kind, answers.InferAnswer))
    async def infer(model: Model, body: Tensors) -> Response:
        """Predict rows given as tensors."""
        check(model)
        wanted, ask = wanted_outputs(body, service.task.outputs(service.live.now.fitted))
        return await service.predict(
            lambda now: rows_of_tensors(now, body.inputs),
            body.inputs[0].shape[0],
            ask,
            lambda found: PlainJSON(infer_answer(name, body, wanted, found)),
        )


def model_name(folder: str) -> str:
    """Derive a model name from its folder: letters, digits, dots, dashes."""
    return re.sub(r"[^\w.-]+", "-", folder.removesuffix(".model")) or "model"
