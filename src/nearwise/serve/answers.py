"""Response models of all routes, as described in /openapi.json."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from nearwise.estimators.storage.journaling import Judged
from nearwise.serve.bodies import CELL, LABEL

Label = Annotated[Any, WithJsonSchema(LABEL)]
Row = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": CELL})]
ByClass = dict[str, float]  # probabilities


class Answer(BaseModel):
    """A JSON object without further members."""

    model_config = ConfigDict(extra="forbid")


class Versioned(Answer):
    """A response that refers to one version of the memory."""

    memory_version: int = Field(description="Changes since the fit.")


# --- predictions --------------------------------------------------------------------------------


class Prediction(Answer):
    """Prediction of one row; the last three on request."""

    label: Label
    proba: ByClass
    set: list[Label] = Field([], description="Classes that hold the true one with `confidence`.")
    novelty_p: float = Field(1.0, description="Out-of-distribution p-value.")
    accepted: bool = Field(True, description="Whether to act on the prediction.")


class NeighborSeen(Answer):
    """A remembered row that a prediction used."""

    id: int
    label: Label
    weight: float = Field(description="Share of the attention.")
    distance: float
    proba_without: ByClass = Field(description="The prediction without this neighbor.")
    row: Row


class Explained(Prediction):
    """Prediction of one row, its two components, and its neighbors, largest weight first."""

    base_proba: ByClass
    neighbor_proba: ByClass
    null_mass: float = Field(description="Share of the attention that went to no neighbor.")
    neighbors: list[NeighborSeen]


class SelectionSeen(Answer):
    """Rule that selects the predictions to act on."""

    threshold: float | None
    expected_risk: float | None
    risk_bound: float | None
    confidence: float


class Predictions(Versioned):
    """Predictions in the order of the rows."""

    predictions: list[Prediction]
    selection: SelectionSeen | None = None
    warnings: list[str] = Field(description="What of the rows was read as something else.")


class Explanations(Predictions):
    """Explained predictions in the order of the rows."""

    predictions: list[Explained]  # type: ignore[assignment]


# --- memory and review --------------------------------------------------------------------------


class Changed(Versioned):
    """A completed change; `ids` are the affected rows."""

    ids: list[int]


class Added(Changed):
    """Added rows."""

    evicted: list[int] = Field(description="Rows that were forgotten for the capacity.")
    warnings: list[str] = Field(description="What of the rows was read as something else.")


class Feedback(Added):
    """Added rows with the evaluation of their earlier predictions."""

    judged: Judged


class FeedbackSummary(Versioned):
    """Quality of the predictions of all feedback rows."""

    rows: int
    accuracy: float | None
    nll: float | None
    new_classes: int
    ece: float | None
    coverage: float | None
    drift_evidence: float | None


class Remembered(Versioned):
    """A remembered row."""

    id: int
    label: Label
    weight: float
    row: Row


class ChangeSeen(Answer):
    """A change of the memory."""

    version: int
    time: Any = Field(description="When it was made.")
    kind: str
    ids: list[int]
    undoes: int | None


class Changes(Versioned):
    """The newest changes, newest first."""

    changes: list[ChangeSeen]


class Issue(BaseModel):
    """A remembered row with a suspected wrong label."""

    id: int
    given: Label
    suggested: Label
    suspicion: float


class Issues(Versioned):
    """Rows with suspected wrong labels, most suspicious first; `n_issues` counts all."""

    issues: list[Issue]
    n_issues: int


class MapSeen(Versioned):
    """Remembered rows in two dimensions, one entry of each list per row."""

    id: list[int]
    label: list[Label]
    x: list[float]
    y: list[float]
    version: list[int] = Field(description="Change with which a row came; 0 with the fit.")
    explained_variance: list[float] | None
    doubt: list[float | None] = Field([], description="Probability that a label is wrong.")


# --- jobs and health ----------------------------------------------------------------------------


class Started(Answer):
    """A job that was started."""

    job: int
    status: str = Field(description="Where to look at its progress.")


class JobSeen(Answer):
    """Progress of a job."""

    id: int
    kind: str
    state: Literal["waiting", "running", "done", "failed"]
    started: float | None
    finished: float | None
    memory_version: int | None
    problem: str | None


class Live(Answer):
    """Whether the service runs."""

    live: bool


class Step(Answer):
    """Preparation step of a service that has just started."""

    step: str
    progress: float


class Ready(Answer):
    """Whether the service can answer requests."""

    ready: bool
    getting_ready: Step | None


# --- the Open Inference Protocol ----------------------------------------------------------------


class Server(Answer):
    """Server metadata."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Answer):
    """Name, data type and shape of an input or output tensor."""

    name: str
    datatype: str
    shape: list[int]


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

    data: list[Any]


class InferAnswer(Answer):
    """Predictions as tensors."""

    model_name: str
    model_version: str
    id: str = ""
    parameters: dict[str, int | str] = Field(description="memory_version, and any warnings.")
    outputs: list[OutputTensor]
