"""HTTP application of several targets: the model of each, and answers of all of them at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Annotated, Any, ClassVar
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import Field, create_model
from starlette.responses import Response

from nearwise.estimators import LiveModel
from nearwise.estimators.live import Version
from nearwise.estimators.live_target import LiveTarget
from nearwise.estimators.online.changes import check_removal
from nearwise.estimators.several import has_same_rows, of_target
from nearwise.memory import Change
from nearwise.names import listed
from nearwise.serve.answers import Answer, status
from nearwise.serve.app import bare_app, create_app, needed
from nearwise.serve.bodies import LabeledRows, Labels, reader
from nearwise.serve.description import add_documentation
from nearwise.serve.examples import examples
from nearwise.serve.guards import Guards, checked_origins
from nearwise.serve.keys import StoredKey
from nearwise.serve.page.targets import add_targets_page, path_of
from nearwise.serve.problems import PlainJSON, ProblemError, as_problem
from nearwise.serve.routes.parts import IdempotencyKey, RowId, key_of_holder, typed
from nearwise.serve.routes.predictions import asked_by, members
from nearwise.serve.rows import labels_for, rows_for
from nearwise.serve.service import Service


class LabeledRowsOfTargets(LabeledRows):
    """Rows with their labels, or numbers, for all targets."""

    labels: dict[str, Labels] = Field(  # type: ignore[assignment]
        description="Labels of the rows by the name of the target."
    )
    groups: ClassVar[None] = None  # type: ignore[misc]

    @property
    def label_lists(self) -> dict[str, list[Any]]:
        """Lists with a label per row, by what they are called."""
        return {f"labels of {name[:60]!r}": labels for name, labels in self.labels.items()}


class TargetSummary(Answer):
    """A target of the service."""

    name: str
    path: str = Field(description="Comes before the paths of this target: PATH/predict.")
    task: str
    n_rows: int
    memory_version: int = Field(description="Number of changes since the fit.")


class Targets(Answer):
    """All targets of the service."""

    targets: list[TargetSummary]


class ChangedTargets(Answer):
    """A completed change of all targets."""

    kind: str = Field(description="add or remove.")
    ids: list[int] = Field(description="Changed rows.")


def create_targets_app(
    services: Mapping[str, Service],
    *,
    name: str = "model",
    keys: Sequence[StoredKey] = (),
    hosts: Collection[str] | None = None,
    allow_origins: Collection[str] = (),
    page: bool = True,
) -> FastAPI:
    """Make the HTTP application of several targets.

    Each target has an application of its own at ``/targets/FOLDER``, see `create_app`.
    ``POST /predict`` and the page at ``/`` answer for all of them.

    Parameters
    ----------
    services : mapping of str to Service
        Services of the targets by their names, at least one; all of one task, on the same rows.
    name, keys, hosts, allow_origins, page
        As in `create_app`.

    Raises
    ------
    ValueError
        As in `create_app`.
    """
    origins = checked_origins(allow_origins, has_keys=bool(keys))
    app_of = partial(
        create_app, keys=keys, hosts=hosts, allow_origins=allow_origins, page=page, is_one_of=True
    )
    apps = {path_of(one): app_of(one, name=one.live.folder.name) for one in services.values()}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for one in apps.values():
                await stack.enter_async_context(one.router.lifespan_context(one))
            yield

    first = next(iter(services.values()))
    app = bare_app(f"{len(services)} targets, each at its own path: see GET /targets.", lifespan)
    app.add_middleware(
        Guards,
        hosts=hosts,
        origins=origins,
        max_body=first.limits.max_body,
        patience=first.limits.deadline,
        monitoring=None,
        is_full=lambda: any(one.predictions.is_full for one in services.values()),
    )
    read, write = (APIRouter(dependencies=[needed(one, keys)]) for one in ("read", "write"))
    _add_routes(app, read, services)
    _add_changes(write, services)
    if page:
        add_targets_page(app, read, services, name)
    for router in (read, write):
        app.include_router(router)
    for path, one in apps.items():
        app.mount(f"/{path}", one)
    further: Any = {LabeledRowsOfTargets: lambda: _example(services)}
    add_documentation(app, first, name, has_keys=bool(keys), further=further)
    return app


def _add_routes(app: FastAPI, read: APIRouter, services: Mapping[str, Service]) -> None:
    """Add the list of targets, predictions of all, and whether the service is ready."""
    task = next(iter(services.values())).task
    of_one: Any = task.Predictions
    Predictions = create_model(
        "PredictionsOfTargets",
        __base__=Answer,
        __doc__="Predictions by the name of the target.",
        targets=(Mapping[str, of_one], ...),
    )

    @app.get("/v2/health/ready", tags=["model"], response_model=status.Ready)
    async def is_ready() -> Response:
        """Whether the service can answer, and its preparation step; no key is needed."""
        steps = [one.getting_ready for one in services.values() if one.getting_ready]
        return PlainJSON({"ready": True, "getting_ready": steps[0].model_dump() if steps else None})

    @read.get("/targets", tags=["model"], response_model=Targets)
    async def list_targets() -> Response:
        """List the targets, and the path of the service of each."""
        found = [
            {
                "name": name,
                "path": f"/{path_of(one)}",
                "task": one.task.TASK,
                "n_rows": one.live.now.fitted.n_remembered,
                "memory_version": one.live.version,
            }
            for name, one in services.items()
        ]
        return PlainJSON({"targets": found})

    @read.post("/predict", tags=["predict"], **typed(task.PredictRequest, Predictions))
    async def predict(body: Annotated[Any, Depends(reader(task.PredictRequest))]) -> Response:
        """Predict all targets of rows, with the requested additional outputs."""
        ask = asked_by(body)
        found = await asyncio.gather(
            *(
                one.predict(lambda now: rows_for(now, body), body.n_rows, ask, members)
                for one in services.values()
            )
        )
        content = {"targets": dict(zip(services, found, strict=True))}
        return await run_in_threadpool(PlainJSON, content)


def _add_changes(write: APIRouter, services: Mapping[str, Service]) -> None:
    """Add changes of the rows, which all targets make."""

    @write.post(
        "/rows", tags=["memory"], status_code=201, **typed(LabeledRowsOfTargets, ChangedTargets)
    )
    async def add_rows(
        request: Request,
        body: Annotated[Any, Depends(reader(LabeledRowsOfTargets))],
        key: IdempotencyKey,
    ) -> Response:
        """Remember rows in all targets. Nothing is trained."""
        _check_names(body.labels, services)

        def given(now: Version, name: str) -> tuple[Any, Any]:
            try:
                y = labels_for(now, body.labels[name], new_classes=body.new_classes)
            except ProblemError as error:
                raise ProblemError(422, f"Target {name!r}: {error.detail}") from None
            return rows_for(now, body), y

        def check(one: Service, name: str) -> None:
            now = one.live.now
            with of_target(name):
                now.fitted.checked(given(now, name)[1], body.n_rows)

        def add(live: LiveModel, name: str, key: str) -> Change:
            return live.add(*given(live.now, name), show=body.show, key=key)

        next(iter(services.values())).check_rows(body.n_rows)
        for name, one in services.items():
            await one.ask(partial(check, one, name))
        return PlainJSON(await _changed_all(services, add, key, request), 201)

    @write.delete("/rows/{id}", tags=["memory"], response_model=ChangedTargets)
    async def remove_row(request: Request, id: RowId, key: IdempotencyKey) -> Response:
        """Remove a remembered row from all targets."""

        def remove(live: LiveModel, name: str, key: str) -> Change:
            return live.remove([id], key=key)

        for name, one in services.items():
            with of_target(name):
                await one.ask(partial(check_removal, one.live.now.fitted, [id]))
        return PlainJSON(await _changed_all(services, remove, key, request))


def _check_names(labels: Mapping[str, Any], services: Mapping[str, Service]) -> None:
    """Raise ProblemError 422 unless there are labels of each target."""
    strange = [name for name in labels if name not in services]
    missing = [name for name in services if name not in labels]
    if strange or missing:
        what = f"names {listed(strange)}" if strange else f"lacks {listed(missing)}"
        raise ProblemError(422, f"labels {what}; the targets are {listed(list(services))}.")


async def _changed_all(
    services: Mapping[str, Service],
    make: Callable[[LiveModel, str, str], Change],
    key: str | None,
    request: Request,
) -> dict[str, Any]:
    """Make a change in all targets, one after the other.

    `make` takes a live model, the name of its target, and the key of the change. If a target
    cannot make it now, the message tells the key under which the request completes it.
    """
    if key is None and not has_same_rows([one.live.now.fitted for one in services.values()]):
        raise ProblemError(
            409,
            "The targets do not remember the same rows: a change was interrupted. Send it again "
            "under its Idempotency-Key, or repeat the command that made it; otherwise fit again.",
        )
    chosen = uuid4().hex
    used = key or key_of_holder(request, chosen)
    assert used is not None  # one was given

    def with_all(live: LiveModel, name: str) -> Change:
        assert isinstance(live, LiveTarget)  # as `create_targets_app` asks for
        with live.with_all():
            return make(live, name, used)

    made: list[Change] = []
    for name, one in services.items():
        try:
            made.append(await one.change(partial(with_all, name=name), used))
        except Exception as error:
            found = as_problem(error)
            if not made and found.status_code != 504:
                raise
            given = "the same Idempotency-Key" if key else f"the Idempotency-Key {chosen}"
            raise ProblemError(
                found.status_code,
                f"Target {name!r}: {found.detail} {len(made)} of {len(services)} targets have the "
                f"change. Send it again under {given} to complete it.",
            ) from error
    return {"kind": made[0].kind, "ids": made[0].ids}


def _example(services: Mapping[str, Service]) -> dict[str, Any]:
    """Return example rows with labels of all targets."""
    each = {name: examples(one.live.now, one.task)["LabeledRows"] for name, one in services.items()}
    first = next(iter(each.values()))
    rows = {form: first[form] for form in LabeledRowsOfTargets.forms if form in first}
    label = next(iter(services.values())).task.LABEL
    return rows | {"labels": {name: one[f"{label}s"] for name, one in each.items()}}
