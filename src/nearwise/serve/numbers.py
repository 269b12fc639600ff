"""Questions and answers of regression; `classes` has the same names for classification."""

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, Field, RootModel

from nearwise.estimators import NumberQuery
from nearwise.estimators.live import Version
from nearwise.estimators.model.fitted_model import FittedRegressor
from nearwise.estimators.online.feedback import known_rows
from nearwise.estimators.storage.journaling import JudgedNumbers
from nearwise.serve import answers as described
from nearwise.serve import bodies, protocol
from nearwise.serve.answers import SHOW, Answer, Row, Versioned, measures, on_request
from nearwise.serve.answers.measures import Estimate, estimate
from nearwise.serve.asked_rows import Answers, Ask
from nearwise.serve.bodies import Few, Id, Number, Share

TASK, LABEL = "regression", "target"
CONFIDENCE = 0.9  # default of the intervals in explanations
_MAIN = ("prediction", "median", "interval")  # outputs of every explanation
Width = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Levels = Annotated[tuple[Share, ...], Field(min_length=1, max_length=100, strict=False)]


class PredictRequest(bodies.PredictRequest):
    """Rows to predict, and the requested additional outputs."""

    confidence: Share | None = Field(
        None, description="Adds the interval that holds the target this often."
    )
    quantiles: Levels | None = Field(None, description="Adds the quantiles at these levels.")
    max_risk: ClassVar[None] = None  # type: ignore[misc]
    max_width: Width | None = Field(
        None, description="Adds whether to act: where the interval is at most so wide."
    )


class NewTargets(RootModel[dict[Id, Number]]):
    """Other targets of remembered rows, by id."""

    model_config = ConfigDict(strict=True)


class ExplainRequest(PredictRequest, bodies.ExplainRequest):
    """Rows to explain, optionally as if the memory had changed; intervals of confidence 0.9."""

    relabel: NewTargets = Field(  # type: ignore[assignment]
        default=NewTargets({}), description="Targets that remembered rows are given, by id."
    )


class LabeledRows(bodies.LabeledRows):
    """Rows with their targets."""

    labels: Annotated[list[Number], *Few] = Field(
        alias="targets", description="Target of each row."
    )
    new_classes: ClassVar[bool] = False  # type: ignore[misc]


class NewLabel(bodies.NewLabel):
    """A new target of a remembered row."""

    label: Number = Field(alias="target", description="The new target.")
    forget_classes: ClassVar[bool] = False  # type: ignore[misc]


class Decision(bodies.Decision):
    """Decision about a suspected wrong target."""

    label: Number | None = Field(None, alias="target", description="The new target, to relabel.")
    forget_classes: ClassVar[bool] = False  # type: ignore[misc]


class Parameters(protocol.Parameters):
    """Options of a query; the defaults apply if an output needs them."""

    quantiles: Levels = Field(default=(0.05, 0.5, 0.95), description="Levels of the quantiles.")
    max_risk: ClassVar[None] = None  # type: ignore[misc]
    max_width: Width | None = Field(default=None, description="Widest interval to act on.")


class InferRequest(protocol.InferRequest):
    """A request to predict rows."""

    parameters: Parameters = Parameters()


BODIES = (
    bodies.ProjectRequest, PredictRequest, ExplainRequest, LabeledRows, NewLabel, Decision,
    InferRequest,
)  # fmt: skip


class Prediction(Answer):
    """Prediction of one row, in the unit of the target."""

    prediction: float = Field(description="Mean of the predicted distribution.")
    median: float
    interval: list[float] = on_request("Ends between which the target lies with `confidence`.")
    quantiles: list[float] = on_request("In the order of the levels.")
    novelty_p: float = on_request("Out-of-distribution p-value.")
    accepted: bool = on_request("Whether to act on the prediction.")


class Neighbor(Answer):
    """A remembered row that a prediction used."""

    id: int
    target: float
    weight: float = Field(description="Share of the attention.")
    distance: float
    prediction_without: float = Field(description="The mean without this neighbor.")
    interval_without: list[float]
    row: Row
    column_shares: described.ColumnShares = on_request("What the row and the neighbor differ by.")
    show: str = SHOW


class Explanation(Prediction):
    """Prediction of one row, and its neighbors, largest weight first."""

    interval: list[float] = Field(description="Ends between which the target lies.")
    confidence: float = Field(description="Of the intervals.")
    base_prediction: float = Field(description="Prediction of the base alone.")
    null_mass: float = Field(description="Share of the attention that went to no neighbor.")
    neighbors: list[Neighbor]


class Selection(Answer):
    """Rule that selects the predictions to act on: interval width at most `threshold`."""

    threshold: float
    coverage: float
    expected_error: float | None
    interval_coverage: float | None
    confidence: float


class Predictions(described.Predictions):
    """Predictions in the order of the rows."""

    predictions: list[Prediction]  # type: ignore[assignment]
    selection: Selection = on_request(  # type: ignore[assignment]
        "How the accepted predictions were selected."
    )


class Explanations(Predictions):
    """Explained predictions in the order of the rows."""

    predictions: list[Explanation]  # type: ignore[assignment]


class RememberedRow(described.RememberedRow):
    """A remembered row; pixels are left out."""

    label: float = Field(alias="target")


class MemoryMap(described.MemoryMap):
    """Remembered rows in two dimensions, one entry of each list per row."""

    label: list[float] = Field(alias="target")  # type: ignore[assignment]
    classes: ClassVar[None] = None  # type: ignore[assignment, misc]


class Feedback(described.Added):
    """Added rows with the evaluation of their earlier predictions."""

    judged: JudgedNumbers


class FeedbackSummary(Versioned):
    """Quality of the predictions of all feedback rows; errors in the unit of the target."""

    rows: int
    rmse: float | None
    mae: float | None
    crps: float | None
    coverage: float | None = Field(description="Share of 90 % intervals that hold the target.")
    drift_evidence: float | None = Field(description="From 100 on, new rows differ from known.")


class Issue(Answer):
    """A remembered row with a suspected wrong target."""

    id: int
    given: float
    suggested: float = Field(description="Median of the prediction without the row.")
    low: float = Field(description="5 % quantile of that prediction.")
    high: float = Field(description="95 % quantile of that prediction.")
    suspicion: float = Field(description="Probability that the target is wrong.")
    neighbors: list[int] = Field(description="Nearest remembered rows, nearest first.")


class Issues(measures.Issues):
    """Rows with suspected wrong targets, most suspicious first; `n_issues` counts all."""

    issues: list[Issue]  # type: ignore[assignment]


class Finding(measures.Finding):
    """A remembered row, or a group of rows, to check."""

    given: float | None
    suggested: float | None


class Review(measures.Review):
    """Findings of a kind, the worst first; `n_findings` counts those of all pages."""

    findings: list[Finding]  # type: ignore[assignment]


class Quality(Answer):
    """Quality of predictions of `n_rows` calibration rows, each predicted without its target."""

    n_rows: int
    crps: Estimate = Field(description="In the unit of the target.")


class ModelSummary(measures.ModelSummary):
    """The regressor that is served."""

    range: list[float] = Field(description="Smallest and largest remembered target.")
    quality: Quality | None = Field(description="Null without calibration rows.")


def answers(version: Version, requests: list[Any], ask: Ask, judged_by: Any = None) -> Answers:
    """Compute the requested outputs for the encoded rows of some requests.

    `judged_by`: calibration rows of another version, see `NumberQuery`.
    """
    query: NumberQuery = version.query(requests, judged_by=judged_by)
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
        chosen = {name: getattr(found, name) for name in Selection.model_fields}
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


def summary(fitted: FittedRegressor) -> dict[str, Any]:
    """Return the range of the targets, and the CRPS on the calibration rows."""
    rows = known_rows(fitted)
    crps, n_units = rows.mixture.crps(rows.targets), float(rows.counts.sum())
    quality = {"n_rows": len(crps), "crps": estimate(crps, n_units)} if n_units else None
    return {"range": [fitted.numbers.min(), fitted.numbers.max()], "quality": quality}
