"""Routes of the Open Inference Protocol v2."""

from enum import Enum
from importlib.metadata import version as version_of
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path
from starlette.responses import Response

from nearwise.serve.answers import status
from nearwise.serve.bodies import reader
from nearwise.serve.problems import PlainJSON, ProblemError
from nearwise.serve.protocol import (
    infer_answer,
    model_metadata,
    rows_of_tensors,
    wanted_outputs,
)
from nearwise.serve.routes.parts import typed
from nearwise.serve.service import Service


def add_inference(app: FastAPI, read: APIRouter, service: Service, name: str) -> None:
    """Add health, metadata and predictions of the protocol."""
    tags: list[str | Enum] = ["open inference protocol"]
    Model = Annotated[str, Path(description=f"The model's name: {name}.")]

    def check(model: str) -> None:
        if model != name:
            raise ProblemError(404, f"There is no model {model[:80]!r}; this one is {name!r}.")

    @app.get("/v2/health/live", tags=tags, response_model=status.Live)
    async def is_live() -> Response:
        """Whether the service runs; no key is needed."""
        return PlainJSON({"live": True})

    @app.get("/v2/health/ready", tags=tags, response_model=status.Ready)
    async def is_ready() -> Response:
        """Whether the service can answer, and its preparation step; no key is needed."""
        step = service.getting_ready
        return PlainJSON({"ready": True, "getting_ready": step and step.model_dump()})

    @read.get("/v2", tags=tags, response_model=status.Server)
    async def get_server() -> Response:
        """Server metadata."""
        found = {"name": "nearwise", "version": version_of("nearwise"), "extensions": []}
        return PlainJSON(found)

    @read.get("/v2/models/{model}", tags=tags, response_model=status.ModelMetadata)
    async def get_model_metadata(model: Model) -> Response:
        """Model metadata: inputs and outputs."""
        check(model)
        return PlainJSON(model_metadata(name, service.live.now, service.task))

    @read.get("/v2/models/{model}/ready", tags=tags, response_model=status.ModelReady)
    async def is_model_ready(model: Model) -> Response:
        """Whether the model can answer requests."""
        check(model)
        return PlainJSON({"name": name, "ready": True})

    kind = service.task.InferRequest
    Tensors = Annotated[Any, Depends(reader(kind))]

    @read.post("/v2/models/{model}/infer", tags=tags, **typed(kind, status.InferAnswer))
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
