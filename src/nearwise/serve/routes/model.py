"""Routes of the tag "model": what is served, and how far to trust it."""

from fastapi import APIRouter
from starlette.responses import Response

from nearwise.serve import classes
from nearwise.serve.answers import measures
from nearwise.serve.problems import PlainJSON
from nearwise.serve.service import Service


def add_model(read: APIRouter, service: Service, name: str) -> None:
    """Add the summary of the model, and the measures of trust."""

    @read.get("/model", tags=["model"], response_model=service.task.ModelSummary)
    async def get_model() -> Response:
        """Summarize the model: columns, classes or targets, rows, quality, changes."""

        def work() -> Response:
            task, read_only = service.task, service.read_only
            return PlainJSON(measures.summary(*service.summary(), task, name, read_only=read_only))

        await service.until_ready()  # otherwise its results would be computed twice
        return await service.ask(work)

    @read.get(
        "/trust",
        tags=["model"],
        response_model=measures.Trust,
        include_in_schema=service.task is classes,
    )
    async def get_trust() -> Response:
        """Measure calibration and risk of the predictions on the calibration rows."""
        version, trust = await service.read(service.trust)
        return PlainJSON(measures.trust_members(trust) | {"memory_version": version.number})
