"""View "Map": the memory in two dimensions, and the rows of a selection."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from nearwise.estimators.memory_map import MapMethod
from nearwise.serve.page.asking import predicted
from nearwise.serve.page.parts import MOST_LISTED, Body, is_image, part
from nearwise.serve.problems import PlainJSON
from nearwise.serve.service import Service

_MOST_PICTURES = 60


def add_map(read: APIRouter, service: Service) -> None:
    """Add the map and the list of a selection."""

    @read.get("/page/map/view", include_in_schema=False)
    async def view() -> Response:
        left_out = service.live.now.fitted.predictor.encoder.left_out
        return part("map.html", left_out=json.dumps(left_out), label=service.task.LABEL)

    @read.post("/page/map/query", include_in_schema=False)
    async def place(
        request: Request, body: Body, method: Annotated[MapMethod, Query()] = "pca"
    ) -> Response:
        def work() -> Response:
            version, laid = service.laid_out(method)
            rows, label = predicted(version, body.root)
            keys = version.fitted.predictor.feature_keys(version.encoded(rows)[0])
            ((x, y),) = laid.project(keys.float().numpy()).tolist()
            return PlainJSON({"x": x, "y": y, "label": label})

        return await service.read_map(method, work, request.is_disconnected)

    @read.get("/page/map/progress", include_in_schema=False)
    async def progress() -> Response:
        return PlainJSON({"progress": service.layout_progress})

    @read.post("/page/map/rows", include_in_schema=False)
    async def rows(body: Body) -> Response:
        def work() -> Response:
            ids = [int(one) for one in str(body.root.get("ids", "")).split(",") if one.isdecimal()]
            return part("rows.html", known_as=service.task.LABEL, **_listed(service, ids))

        return await service.ask(work)


def _listed(service: Service, ids: list[int]) -> dict[str, Any]:
    """Remembered rows for a table; removed ids are left out."""
    fitted = service.live.now.fitted
    there = set(fitted.bank.ids.tolist())
    found = [one for one in ids if one in there]
    shown = found[: _MOST_PICTURES if is_image(service) else MOST_LISTED]
    return {
        "rows": [(one.id, one.label, one.row) for one in fitted.look_up(shown)],
        "n_rows": len(found),
        "is_image": is_image(service),
        "left_out": fitted.predictor.encoder.left_out,
    }
