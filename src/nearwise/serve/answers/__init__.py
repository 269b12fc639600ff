"""Answers about predictions, rows and changes, as /openapi.json describes them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, WithJsonSchema

from nearwise.estimators.storage.journaling import Judged
from nearwise.serve.bodies import CELL, LABEL

Label = Annotated[Any, WithJsonSchema(LABEL)]
Cell = Annotated[Any, WithJsonSchema(CELL)]
MOST_IDS = 100  # ids of a change in a list of changes


class Answer(BaseModel):
    """A JSON object without further members."""

    model_config = ConfigDict(extra="forbid")


class Versioned(Answer):
    """A response that refers to one version of the memory."""

    memory_version: int = Field(description="Number of changes since the fit.")


def on_request(about: str) -> Any:
    """Declare a member of an answer that is there only if the request asks for it."""
    return Field(default_factory=dict, description=about)  # described as optional, without default


SHOW: Any = Field(
    default_factory=str, description="File, URL or text to show with the row, if it has one."
)


# --- predictions --------------------------------------------------------------------------------


class Row(RootModel[dict[str, Cell]]):
    """A row of a table: column to value, null for a missing one."""


class Probabilities(RootModel[dict[str, float]]):
    """Probability of each class."""


class Prediction(Answer):
    """Prediction of one row."""

    label: Label = Field(description="The most probable class.")
    proba: Probabilities
    set: list[Label] = on_request("Classes that hold the true one with `confidence`.")
    novelty_p: float = on_request("Out-of-distribution p-value.")
    accepted: bool = on_request("Whether to act on the prediction.")


class ColumnShares(RootModel[dict[str, float]]):
    """Share of each column in the distance between two rows, largest first; 0 is left out."""


class Neighbor(Answer):
    """A remembered row that a prediction used."""

    id: int
    label: Label
    weight: float = Field(description="Share of the attention.")
    distance: float
    proba_without: Probabilities = Field(description="The prediction without this neighbor.")
    row: Row
    column_shares: ColumnShares = on_request("What the row and the neighbor differ by.")
    show: str = SHOW


class Explanation(Prediction):
    """Prediction of one row, its two parts, and its neighbors, largest weight first."""

    base_proba: Probabilities = Field(description="Prediction of the base alone.")
    neighbor_proba: Probabilities = Field(description="Prediction of the neighbors alone.")
    null_mass: float = Field(description="Share of the attention that went to no neighbor.")
    neighbors: list[Neighbor]


class Selection(Answer):
    """Rule that selects the predictions to act on."""

    threshold: float | None = Field(description="Lowest confidence of an accepted prediction.")
    expected_risk: float | None = Field(description="Expected share of wrong ones among them.")
    risk_bound: float | None = Field(description="Upper bound of that share.")
    confidence: float = Field(description="Of the bound.")


class Predictions(Versioned):
    """Predictions in the order of the rows."""

    predictions: list[Prediction]
    selection: Selection = on_request("How the accepted predictions were selected.")
    warnings: list[str] = Field(description="What of the rows was read as something else.")


class Explanations(Predictions):
    """Explained predictions in the order of the rows."""

    predictions: list[Explanation]  # type: ignore[assignment]


# --- rows and changes ---------------------------------------------------------------------------


class Changed(Versioned):
    """A completed change."""

    kind: str = Field(description="add, feedback, relabel, remove or keep; refresh.")
    ids: list[int] = Field(description="Changed rows; rows that an undo adds again have new ids.")
    evicted: list[int] = Field(description="Rows that were forgotten for the capacity.")


class Added(Changed):
    """Added rows."""

    warnings: list[str] = Field(description="What of the rows was read as something else.")


class Feedback(Added):
    """Added rows with the evaluation of their earlier predictions."""

    judged: Judged


class FeedbackSummary(Versioned):
    """Quality of the predictions of all feedback rows; null where no row has the measure."""

    rows: int
    accuracy: float | None
    nll: float | None = Field(description="Mean negative log-likelihood of known classes.")
    new_classes: int = Field(description="Rows of a class that was new.")
    ece: float | None = Field(description="Expected calibration error.")
    coverage: float | None = Field(description="Share of 90 % sets that hold the true class.")
    drift_evidence: float | None = Field(description="From 100 on, new rows differ from known.")


class RememberedRow(Versioned):
    """A remembered row; pixels are left out."""

    id: int
    label: Label
    weight: float
    row: Row
    show: str = SHOW


class Change(Answer):
    """A change of the memory."""

    version: int
    time: datetime
    kind: str
    ids: list[int] = Field(description=f"Changed rows; the first {MOST_IDS}.")
    n_ids: int = Field(description="Number of changed rows.")
    undoes: int | None = Field(description="Version of the change that it reversed.")


class Changes(Versioned):
    """The newest changes, newest first."""

    changes: list[Change]


class MemoryMap(Versioned):
    """Remembered rows in two dimensions; lists have one entry per row, except `classes`."""

    n_remembered: int = Field(description="Rows of the memory, of which a map shows a part.")
    id: list[int]
    label: list[int] = Field(description="Position of each row's label in `classes`.")
    classes: list[Label]
    x: list[float]
    y: list[float]
    explained_variance: list[float] | None = Field(description="By the two axes of PCA.")


class MapValues(Versioned):
    """A value per row of a map, in its order; null where missing."""

    kind: Literal["category", "number", "date"]
    values: list[float | None] = Field(
        description="Positions in `categories`, numbers, or days since 1970."
    )
    categories: list[str]
    missing: str = Field(description="What a missing value means.")
    ends: list[float] | None = Field(description="Fixed ends of the scale.")


class MapPoint(Answer):
    """A row in the coordinates of the map."""

    x: float
    y: float


class MapPoints(Versioned):
    """Points of new rows on the map, in the order of the rows."""

    points: list[MapPoint]
