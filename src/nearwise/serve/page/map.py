"""View "Map": the memory in two dimensions, and the rows of a selection."""

import json
from typing import Annotated, Any

import numpy as np
import pandas as pd
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from nearwise.estimators.memory_map import MapMethod
from nearwise.estimators.model.fitted_model import FittedModel
from nearwise.estimators.query import kneighbors
from nearwise.html import picture
from nearwise.html.card import face_of
from nearwise.names import are_positions
from nearwise.serve import classes
from nearwise.serve.page.asking import N_NEIGHBORS, Form, predicted, row_in
from nearwise.serve.page.palette import PALETTE
from nearwise.serve.page.parts import MOST_LISTED, Body, RowId, is_image, part
from nearwise.serve.problems import PlainJSON
from nearwise.serve.service import Service

_MOST_PICTURES = 60
_SIDE = 128  # of a picture beside a point, in pixels


def add_map(read: APIRouter, service: Service) -> None:
    """Add the map, the tip of a point, and the summary, list and file of a selection."""
    label = service.task.LABEL

    @read.get("/page/map/view", include_in_schema=False)
    async def view() -> Response:
        encoder: Any = service.live.now.fitted.predictor.encoder
        columns = [] if is_image(service) else encoder.columns
        return part(
            "map.html",
            label=label,
            columns=columns,
            of_classes=service.task is classes,
            palette=json.dumps(PALETTE),
        )

    @read.post("/page/map/query", include_in_schema=False)
    async def query(
        request: Request, body: Body, method: Annotated[MapMethod, Query()] = "pca"
    ) -> Response:
        def work() -> Response:
            version, keys, ((x, y),) = service.projected(method, lambda now: row_in(now, body.root))
            said = predicted(version, body.root)
            n_near = min(N_NEIGHBORS + 1, version.fitted.predictor.views.n_findable)
            near = kneighbors(version.fitted, lambda: keys, n_near)[1][0].tolist()
            own = body.root.get("remembered")
            others = [one for one in near if str(one) != own][:N_NEIGHBORS]
            return PlainJSON({"x": x, "y": y, "label": said, "neighbors": others})

        return await service.read_map(method, work, request.is_disconnected)

    @read.get("/page/map/progress", include_in_schema=False)
    async def progress() -> Response:
        return PlainJSON({"progress": service.layout_progress})

    @read.get("/page/map/tip/{id}", include_in_schema=False)
    async def tip(id: RowId) -> Response:
        return await service.read(lambda: PlainJSON(_tip(service, id)))

    @read.post("/page/map/columns", include_in_schema=False)
    async def columns(body: Body) -> Response:
        def work() -> Response:
            if is_image(service):
                return PlainJSON({"differences": []})
            version, profile = service.column_profile()
            positions = _positions(version.fitted, body.root)
            found = [one._asdict() for one in profile.against_the_rest(positions)]
            return PlainJSON({"differences": found})

        return await service.read(work)  # the first comparison encodes all rows

    @read.post("/page/map/rows", include_in_schema=False)
    async def rows(body: Body) -> Response:
        def work() -> Response:
            return part("rows.html", known_as=label, **_listed(service, body.root))

        return await service.ask(work)

    @read.post("/page/map/export", include_in_schema=False)
    async def export(body: Body) -> Response:
        def work() -> Response:
            fitted = service.live.now.fitted
            text = _table(fitted, _positions(fitted, body.root), label).to_csv(index=False)
            return Response(text.encode("utf-8", "replace"), media_type="text/csv")

        return await service.read(work)


def _positions(fitted: FittedModel, form: Form) -> np.ndarray:
    """Bank positions of the ids of a form, in their order; removed ids are left out."""
    given = (one for one in str(form.get("ids", "")).split(",") if one.isdecimal())
    ids = np.array([int(one) for one in given if len(one) < 19], dtype=np.int64)
    there = ids[np.isin(ids, fitted.bank.ids.numpy())]
    return fitted.bank.positions(there).numpy() if len(there) else there


def _listed(service: Service, form: Form) -> dict[str, Any]:
    """Remembered rows for a table; removed ids are left out."""
    fitted = service.live.now.fitted
    found = fitted.bank.ids.numpy()[_positions(fitted, form)].tolist()
    shown = found[: _MOST_PICTURES if is_image(service) else MOST_LISTED]
    return {
        "rows": fitted.look_up(shown),
        "n_rows": len(found),
        "is_image": is_image(service),
        "left_out": fitted.predictor.encoder.left_out,
    }


def _tip(service: Service, row: int) -> dict[str, Any]:
    """Label of a remembered row, what is shown with it, and its most unusual values."""
    version, known = service.remembered(row)
    (one,) = version.fitted.look_up([row])
    face, columns = face_of(one), []
    if face.show and face.picture is None:
        columns.append(("shown", face.show))
    if not (is_image(service) or are_positions(version.fitted.predictor.encoder.columns)):
        version, profile = service.column_profile()
        columns += profile.of_row(int(version.fitted.bank.positions([row])[0]))
    drawn = None if face.picture is None else picture(face.picture, _SIDE)
    label = known[service.task.LABEL]
    return {"id": row, "label": label, "columns": columns, "picture": drawn}


def _table(fitted: FittedModel, positions: np.ndarray, label: str) -> pd.DataFrame:
    """Ids, labels and columns of remembered rows; of images their files, if known."""
    encoder: Any = fitted.predictor.encoder
    given, names = fitted.given(positions)
    if encoder.kind == "images":
        frame = pd.DataFrame(index=range(len(positions)))
        if names is not None:
            frame["file"] = names
    else:
        frame = encoder.frame(given).reset_index(drop=True)
    frame.insert(0, label, fitted.labels_at(positions), allow_duplicates=True)
    frame.insert(0, "id", fitted.bank.ids.numpy()[positions], allow_duplicates=True)
    return frame
