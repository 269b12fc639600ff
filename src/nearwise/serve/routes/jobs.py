"""Routes of the tag "jobs": background work and metrics."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import PlainTextResponse, Response

from nearwise.estimators import LiveModel
from nearwise.serve.answers import status
from nearwise.serve.problems import PlainJSON
from nearwise.serve.service import Service


def add_jobs(read: APIRouter, admin: APIRouter, service: Service) -> None:
    """Add jobs, and figures for Prometheus."""

    def started(request: Request, kind: str, work: Callable[[LiveModel], object]) -> Response:
        job = service.start_job(kind, work)
        where = f"{request.scope['root_path']}/jobs/{job.id}"
        return PlainJSON({"job": job.id, "status": where}, 202, headers={"Location": where})

    @admin.post("/compact", tags=["jobs"], status_code=202, response_model=status.StartedJob)
    async def compact(request: Request) -> Response:
        """Fold all changes into the model's folder, and delete removed rows for good."""
        return started(request, "compact", lambda live: live.compact())

    @admin.post("/refresh", tags=["jobs"], status_code=202, response_model=status.StartedJob)
    async def refresh(request: Request) -> Response:
        """Refit the model on the present memory; predictions continue meanwhile."""
        return started(request, "refresh", lambda live: live.refresh())

    @read.get("/jobs/{id}", tags=["jobs"], response_model=status.Job)
    async def get_job(
        id: Annotated[int, Path(ge=0, lt=2**63, description="Number of the job.")],
    ) -> Response:
        """Report the state of a job: waiting, running, done or failed."""
        return PlainJSON(asdict(service.job(id)))

    @read.get("/metrics", tags=["jobs"], response_class=PlainTextResponse)
    async def get_metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.monitoring.text(), media_type="text/plain; version=0.0.4")
