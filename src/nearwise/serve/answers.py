"""What clients get, as /openapi.json describes it: one model for the answer of each route."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from nearwise.estimators.storage.journaling import Judged
from nearwise.serve.bodies import CELL, LABEL

Label = Annotated[Any, WithJsonSchema(LABEL)]
Row = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": CELL})]
ByClass = dict[str, float]  # probabilities


class Answer(BaseModel):
    """A JSON object that has no other members than these."""

    model_config = ConfigDict(extra="forbid")


class Versioned(Answer):
    """An answer that refers to one version of the memory."""

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
    """Prediction of one row, its two halves, and the neighbors behind it, largest weight first."""

    base_proba: ByClass
    neighbor_proba: ByClass
    null_mass: float = Field(description="Share of the attention that went to no neighbor.")
    neighbors: list[NeighborSeen]


class SelectionSeen(Answer):
    """How the predictions to act on were chosen."""

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
    """A change that was made; `ids` are the rows it is about."""

    ids: list[int]


class Added(Changed):
    """Rows that were remembered."""

    evicted: list[int] = Field(description="Rows that were forgotten for the capacity.")
    warnings: list[str] = Field(description="What of the rows was read as something else.")


class Feedback(Added):
    """Rows that were predicted, judged and remembered."""

    judged: Judged


class FeedbackSummary(Versioned):
    """How good the predictions of all feedback were."""

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
    """A remembered row whose label looks wrong."""

    id: int
    given: Label
    suggested: Label
    suspicion: float


class Issues(Versioned):
    """Rows whose labels look wrong, most suspicious first; `n_issues` counts all."""

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
    """How far a job is."""

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
    """What a service that was just started computes."""

    step: str
    progress: float


class Ready(Answer):
    """Whether the service answers."""

    ready: bool
    getting_ready: Step | None


# --- the Open Inference Protocol ----------------------------------------------------------------


class Server(Answer):
    """Server metadata."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Answer):
    """A tensor that the model takes or gives."""

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
    """Whether the model answers."""

    name: str
    ready: bool


class OutputTensor(TensorMetadata):
    """A tensor of the answer."""

    data: list[Any]


class InferAnswer(Answer):
    """Predictions as tensors."""

    model_name: str
    model_version: str
    id: str = ""
    parameters: dict[str, int | str] = Field(description="memory_version, and any warnings.")
    outputs: list[OutputTensor]
