"""Answers about jobs, health and the Open Inference Protocol, as /openapi.json describes them."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from nearwise.serve.answers import Answer, Cell


class StartedJob(Answer):
    """A job that was started."""

    job: int
    status: str = Field(description="Where to look at its progress.")


class Job(Answer):
    """Progress of a job."""

    id: int
    kind: str
    state: Literal["waiting", "running", "done", "failed"]
    started: datetime | None
    finished: datetime | None
    memory_version: int | None = Field(description="Version when the job finished.")
    problem: str | None = Field(description="Why it failed.")


class Live(Answer):
    """Whether the service runs."""

    live: bool


class Step(Answer):
    """Preparation step of a service that has just started."""

    step: str
    progress: float = Field(description="Completed share of all steps.")


class Ready(Answer):
    """Whether the service can answer requests."""

    ready: bool
    getting_ready: Step | None


class Server(Answer):
    """Server metadata."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Answer):
    """Name, data type and shape of an input or output tensor."""

    name: str
    datatype: str
    shape: list[int] = Field(description="-1: any size.")


class ModelMetadata(Answer):
    """Inputs and outputs of the model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, list[str]]


class ModelReady(Answer):
    """Whether the model can answer requests."""

    name: str
    ready: bool


class OutputTensor(TensorMetadata):
    """An output tensor with data."""

    data: list[Cell]


class InferAnswer(Answer):
    """Predictions as tensors."""

    model_name: str
    model_version: str
    id: str = Field(default_factory=str, description="That of the request, if it had one.")
    parameters: dict[str, int | str] = Field(description="memory_version, and any warnings.")
    outputs: list[OutputTensor]
