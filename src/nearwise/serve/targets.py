"""HTTP application of several targets: the model of each, and answers of all of them at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.concurrency import run_in_threadpool
from pydantic import Field, create_model
from starlette.responses import Response

from nearwise.estimators import LiveModel
from nearwise.estimators.model.fitted_model import FittedModel
from nearwise.estimators.storage.journaling import ADD, FEEDBACK, REMOVE, Draft
from nearwise.memory import Change
from nearwise.serve.answers import Answer, status
from nearwise.serve.app import bare_app, create_app, needed
from nearwise.serve.bodies import reader
from nearwise.serve.description import add_documentation
from nearwise.serve.guards import Guards, checked_origins
from nearwise.serve.keys import StoredKey
from nearwise.serve.page.targets import add_targets_page, path_of
from nearwise.serve.problems import PlainJSON
from nearwise.serve.routes.parts import typed
from nearwise.serve.routes.predictions import asked_by, members
from nearwise.serve.rows import rows_for
from nearwise.serve.service import Service


class LiveTarget(LiveModel):
    """Live model of one of several targets: its labels change alone, its rows with all others."""

    def _commit(
        self, make: Callable[[FittedModel], Draft], request: list[Any], key: str | None
    ) -> Change:
        def of_labels(fitted: FittedModel) -> Draft:
            draft = make(fitted)
            if draft.kind in (ADD, FEEDBACK, REMOVE):
                raise ValueError(
                    f"All targets in {self.folder.parent.name} remember the same rows, and this is "
                    "one of them. Add and remove rows in the whole folder: nearwise add, nearwise "
                    "remove. With nearwise serve --follow the service takes them at once."
                )
            return draft

        return super()._commit(of_labels, request, key)


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
    read = APIRouter(dependencies=[needed("read", keys)])
    _add_routes(app, read, services)
    if page:
        add_targets_page(app, read, services, name)
    app.include_router(read)
    for path, one in apps.items():
        app.mount(f"/{path}", one)
    add_documentation(app, first, name, has_keys=bool(keys))
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
