"""Routes of the tag "review": rows to check, the effect of changes, and the map."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from nearwise.estimators.live import Version
from nearwise.estimators.map_values import MapColoring
from nearwise.estimators.memory_map import MapMethod
from nearwise.estimators.noise.findings import IssueKind
from nearwise.serve import answers
from nearwise.serve.answers import measures
from nearwise.serve.bodies import ProjectRequest, reader
from nearwise.serve.problems import PlainJSON
from nearwise.serve.routes.parts import Limit, Offset, typed
from nearwise.serve.rows import rows_for
from nearwise.serve.service import Service

Method = Annotated[MapMethod, Query(description="t-SNE needs the extra map.")]


def add_review(read: APIRouter, service: Service) -> None:
    """Add issues, all findings, the effect of decisions, and the map."""
    _add_map(read, service)

    @read.get("/issues", tags=["review"], response_model=service.task.Issues)
    async def list_issues(limit: Limit = 100) -> Response:
        """List remembered rows with suspected wrong labels, most suspicious first."""
        version, found = await service.read(service.issues)
        listed = {"issues": found[:limit].to_dict("records"), "n_issues": len(found)}
        return PlainJSON(listed | {"memory_version": version.number})

    @read.get("/review", tags=["review"], response_model=service.task.Review)
    async def review(
        kind: Annotated[Literal["all", IssueKind], Query(description="Kind of finding.")] = "all",
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> Response:
        """List rows and groups to check: suspected labels, copies, outliers, weak groups."""

        def work() -> tuple[Version, Any, Any]:
            return *service.findings(), service.expected_wrong()

        version, found, expected = await service.read(work)
        page = measures.review_page(found, kind, offset, limit)
        more = {"expected_wrong": expected._asdict(), "memory_version": version.number}
        return PlainJSON(page | more)

    @read.get("/review/effect", tags=["review"], response_model=measures.EffectOfChanges)
    async def get_effect() -> Response:
        """Measure the effect of all changes by this service on held-out rows."""
        found = await service.read(service.effect)
        effect = None if found is None else found._asdict()
        return PlainJSON({"effect": effect, "memory_version": service.live.version})


def _add_map(read: APIRouter, service: Service) -> None:
    @read.get("/map", tags=["review"], response_model=service.task.MemoryMap)
    async def get_map(
        request: Request,
        method: Method = "pca",
    ) -> Response:
        """Project the memory to two dimensions: at most 100,000 rows, drawn at random."""
        version, found = await service.read_map(
            method, lambda: service.map(method), request.is_disconnected
        )
        return PlainJSON(found | {"memory_version": version.number})

    @read.get("/map/values", tags=["review"], response_model=answers.MapValues)
    async def get_map_values(
        by: Annotated[MapColoring, Query(description="Kind of the values.")],
        column: Annotated[str | None, Query(description="Of by=column.")] = None,
    ) -> Response:
        """Give each row of the map a value: of a column, its last change, or its prediction.

        doubt: probability of a wrong label. right, confidence: of the prediction without the row's
        own label. error, width: for numbers, distance from the median and width of 90 %.
        """

        def work() -> Response:
            version, found = service.map_values(by, column)
            return PlainJSON(found.to_json() | {"memory_version": version.number})

        return await service.read(work)

    @read.post("/map", tags=["review"], **typed(ProjectRequest, answers.MapPoints))
    async def project_rows(
        request: Request,
        body: Annotated[ProjectRequest, Depends(reader(ProjectRequest))],
        method: Method = "pca",
    ) -> Response:
        """Project new rows onto the map of the memory."""
        service.check_rows(body.n_rows)

        def work() -> Response:
            version, _, found = service.projected(method, lambda now: rows_for(now, body))
            points = [{"x": x, "y": y} for x, y in found]
            return PlainJSON({"points": points, "memory_version": version.number})

        return await service.read_map(method, work, request.is_disconnected)
