"""Routes of the tag "predict": predictions, and explanations by neighbors."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from nearwise.serve import what_if
from nearwise.serve.asked_rows import Answers, Ask
from nearwise.serve.bodies import reader
from nearwise.serve.problems import PlainJSON
from nearwise.serve.routes.parts import typed
from nearwise.serve.rows import labels_for, rows_for
from nearwise.serve.service import Service
from nearwise.serve.what_if import WhatIf
from nearwise.warn import collected_warnings

_FEW = 100  # rows that are explained in less than a second


def add_predictions(read: APIRouter, service: Service) -> None:
    """Add /predict and /explain."""
    task = service.task

    @read.post("/predict", tags=["predict"], **typed(task.PredictRequest, task.Predictions))
    async def predict(body: Annotated[Any, Depends(reader(task.PredictRequest))]) -> Response:
        """Predict rows, with the requested additional outputs."""
        return await service.predict(
            lambda now: rows_for(now, body), body.n_rows, asked_by(body), _predictions
        )

    @read.post("/explain", tags=["predict"], **typed(task.ExplainRequest, task.Explanations))
    async def explain(body: Annotated[Any, Depends(reader(task.ExplainRequest))]) -> Response:
        """Predict rows, and show the neighbors behind each prediction.

        `without`, `relabel` and `remembered` answer as if the memory had changed.
        """
        ask = asked_by(body, body.n_neighbors)
        if not body.takes_longer:
            return await service.predict(
                lambda now: rows_for(now, body), body.n_rows, ask, _predictions
            )
        service.check_size(body.n_rows, ask)
        await service.until_ready()  # otherwise its results would be computed twice
        work = service.ask if body.n_rows <= _FEW else service.read
        return await work(lambda: _predictions(_hypothetical(service, body, ask)))


def asked_by(body: Any, n_neighbors: int | None = None) -> Ask:
    """Query with the outputs that a body asks for."""
    levels = getattr(body, "quantiles", None)
    limits = body.coverage, body.max_risk, getattr(body, "max_width", None)
    return Ask(body.confidence, body.novelty, *limits, n_neighbors, levels)


def _predictions(found: Answers) -> Response:
    return PlainJSON(members(found))


def members(found: Answers) -> dict[str, Any]:
    """Members of the response to a request for predictions."""
    content: dict[str, Any] = {"predictions": found.records()}
    if found.selection is not None:
        content["selection"] = found.selection
    return content | {"memory_version": found.version, "warnings": found.warnings}


def _hypothetical(service: Service, body: Any, ask: Ask) -> Answers:
    """Explain rows by a version with the requested changes, with column shares on request."""
    version, relabel = service.live.now, body.relabel.root
    labels = labels_for(version, list(relabel.values()), new_classes=False)
    changes = WhatIf(body.remembered, body.without, dict(zip(relabel, labels, strict=True)))
    with collected_warnings() as warnings:
        if body.remembered is None:
            rows = rows_for(version, body)
        else:
            rows = what_if.remembered_rows(version, body.remembered)
        found = what_if.answered(version, changes.applied(version), rows, ask)
        if body.column_shares:
            found = what_if.with_column_shares(version, rows, found)
    return replace(found, warnings=list(dict.fromkeys(warnings)))
