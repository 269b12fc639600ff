"""Questions and answers of regression; `classes` has the same names for classification."""

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from nearwise.estimators import NumberQuery
from nearwise.estimators.live import Version
from nearwise.estimators.model.fitted_model import FittedRegressor
from nearwise.estimators.storage.journaling import JudgedNumbers
from nearwise.serve import answers as described
from nearwise.serve import bodies, protocol
from nearwise.serve.answers import Answer, Row, Versioned
from nearwise.serve.asked_rows import Answers, Ask
from nearwise.serve.bodies import Few, Neighbors, Number, Share

TASK, LABEL = "regression", "target"
CONFIDENCE = 0.9  # default of the intervals in explanations
_MAIN = ("prediction", "median", "interval")  # outputs of every explanation
Width = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Levels = Annotated[tuple[Share, ...], Field(min_length=1, max_length=100, strict=False)]


class Question(bodies.Question):
    """Rows to predict, and the requested additional outputs."""

    confidence: Share | None = Field(
        None, description="Adds the interval that holds the target this often."
    )
    quantiles: Levels | None = Field(None, description="Adds the quantiles at these levels.")
    max_risk: ClassVar[None] = None  # type: ignore[misc]
    max_width: Width | None = Field(
        None, description="Adds whether to act: where the interval is at most so wide."
    )


class WhyQuestion(Question):
    """Rows to explain, with intervals of confidence 0.9 by default."""

    n_neighbors: Neighbors = 5


class Labelled(bodies.Labelled):
    """Rows with their targets."""

    labels: Annotated[list[Number], *Few] = Field(alias="targets")
    new_classes: ClassVar[bool] = False  # type: ignore[misc]


class NewLabel(bodies.NewLabel):
    """A new target of a remembered row."""

    label: Number = Field(alias="target")
    forget_classes: ClassVar[bool] = False  # type: ignore[misc]


class Decision(bodies.Decision):
    """Decision about a suspected wrong target."""

    label: Number | None = Field(None, alias="target")
    forget_classes: ClassVar[bool] = False  # type: ignore[misc]


class Parameters(protocol.Parameters):
    """Options of a query; the defaults apply if an output needs them."""

    quantiles: Levels = (0.05, 0.5, 0.95)
    max_risk: ClassVar[None] = None  # type: ignore[misc]
    max_width: Width | None = None


class InferRequest(protocol.InferRequest):
    """A request to predict rows."""

    parameters: Parameters = Parameters()


BODIES = (Question, WhyQuestion, Labelled, NewLabel, Decision, InferRequest)


class Prediction(Answer):
    """Prediction of one row, in the unit of the target; further members on request."""

    prediction: float = Field(description="Mean of the predicted distribution.")
    median: float
    interval: list[float] = Field([], description="Holds the target with `confidence`.")
    quantiles: list[float] = Field([], description="In the order of the levels.")
    novelty_p: float = Field(1.0, description="Out-of-distribution p-value.")
    accepted: bool = Field(True, description="Whether to act on the prediction.")


class NeighborSeen(Answer):
    """A remembered row that a prediction used."""

    id: int
    target: float
    weight: float = Field(description="Share of the attention.")
    distance: float
    prediction_without: float = Field(description="The mean without this neighbor.")
    interval_without: list[float]
    row: Row


class Explained(Prediction):
    """Prediction of one row, and its neighbors, largest weight first."""

    confidence: float = Field(description="Of the intervals.")
    base_prediction: float
    null_mass: float = Field(description="Share of the attention that went to no neighbor.")
    neighbors: list[NeighborSeen]


class SelectionSeen(Answer):
    """Rule that selects the predictions to act on: interval width at most `threshold`."""

    threshold: float
    coverage: float
    expected_error: float | None
    interval_coverage: float | None
    confidence: float


class Predictions(described.Predictions):
    """Predictions in the order of the rows."""

    predictions: list[Prediction]  # type: ignore[assignment]
    selection: SelectionSeen | None = None  # type: ignore[assignment]


class Explanations(Predictions):
    """Explained predictions in the order of the rows."""

    predictions: list[Explained]  # type: ignore[assignment]


class Remembered(described.Remembered):
    """A remembered row."""

    label: float = Field(alias="target")


class MapSeen(described.MapSeen):
    """Remembered rows in two dimensions, one entry of each list per row."""

    label: list[float] = Field(alias="target")


class Feedback(described.Added):
    """Added rows with the evaluation of their earlier predictions."""

    judged: JudgedNumbers


class FeedbackSummary(Versioned):
    """Quality of the predictions of all feedback rows; errors in the unit of the target."""

    rows: int
    rmse: float | None
    mae: float | None
    crps: float | None
    coverage: float | None
    drift_evidence: float | None


def answers(version: Version, requests: list[Any], ask: Ask) -> Answers:
    """Compute the requested outputs for the encoded rows of some requests."""
    query: NumberQuery = version.query(requests)
    if ask.n_neighbors is None:
        shown, values = None, {"prediction": query.predict(), "median": query.predict("median")}
        if ask.confidence is not None:
            values["interval"] = query.interval(ask.confidence)
    else:
        shown = query.explanations(ask.n_neighbors, ask.confidence or CONFIDENCE)
        values = {name: np.array([getattr(one, name) for one in shown]) for name in _MAIN}
    if ask.quantiles is not None:
        values["quantiles"] = query.quantiles(ask.quantiles)
    if ask.novelty:
        values["novelty_p"] = query.novelty_p_value()
    chosen = None
    if ask.is_selective:
        found = query.selection(ask.coverage, ask.max_width, ask.confidence or CONFIDENCE)
        values["act"] = found.accepted
        chosen = {name: getattr(found, name) for name in SelectionSeen.model_fields}
    return Answers(version.number, values, shown, chosen)


def outputs(fitted: FittedRegressor) -> protocol.Outputs:
    """Describe the outputs of the Open Inference Protocol; the first two are the default."""
    of_rows = ("prediction", "median", "base_prediction", "null_mass", "novelty_p")
    of_neighbors = ("target", "weight", "distance", "prediction_without")
    return {
        **dict.fromkeys(of_rows, ("FP64", [-1])),
        "interval": ("FP64", [-1, 2]),
        "quantiles": ("FP64", [-1, -1]),
        "act": ("BOOL", [-1]),
        "neighbor_id": ("INT64", [-1, -1]),
        **{f"neighbor_{name}": ("FP64", [-1, -1]) for name in of_neighbors},
    }
