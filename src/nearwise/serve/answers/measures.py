"""Answers about the model as a whole: summary, findings of a review, effect of changes, trust."""

from datetime import datetime
from typing import Any, Literal

import numpy as np
from pydantic import Field, RootModel
from scipy.special import ndtri

from nearwise.estimators.live import Version
from nearwise.estimators.noise.findings import KINDS, IssueKind
from nearwise.estimators.settings import Settings
from nearwise.estimators.uncertainty.trust import Trust as Measured
from nearwise.serve.answers import SHOW, Answer, Label, Versioned
from nearwise.serve.bodies import Form
from nearwise.serve.rows import form_of

_LEVEL = 0.95  # confidence of the intervals
_MOST_POINTS = 400  # of the risk-coverage curve


class Estimate(Answer):
    """A mean over rows with the ends of its 95 % interval."""

    estimate: float
    low: float
    high: float


def estimate(values: np.ndarray, n_units: float) -> dict[str, float]:
    """Return the mean of values (n,) and its 95 % interval, for so many independent units."""
    half = ndtri(0.5 + _LEVEL / 2) * values.std() / n_units**0.5
    mean, spread = float(values.mean()), float(half)
    return {"estimate": mean, "low": mean - spread, "high": mean + spread}


class Quality(Answer):
    """Quality of predictions of `n_rows` calibration rows, each predicted without its label."""

    n_rows: int
    accuracy: Estimate
    nll: Estimate = Field(description="Negative log-likelihood of the label, in nats.")


class Column(Answer):
    """A column of the training rows."""

    name: str
    use: str = Field(description="number, category, date or left out; of images their size.")


class ClassCount(Answer):
    """A class and its remembered rows."""

    label: Label
    n_rows: int


class ModelSummary(Versioned):
    """The model that is served."""

    name: str
    task: Literal["classification", "regression"]
    target_name: str
    input: Form = Field(description="Member of a body that rows are given in.")
    columns: list[Column]
    n_rows: int = Field(description="Number of remembered rows.")
    fitted_at: datetime | None = Field(description="When the fit ended; null if not known.")
    capacity: int | None = Field(description="Most rows to remember; null: no limit.")
    read_only: bool = Field(description="Whether changes are refused.")


class ClassifierSummary(ModelSummary):
    """The classifier that is served."""

    classes: list[ClassCount]
    quality: Quality | None = Field(description="Null without calibration rows.")


def summary(
    version: Version, of_task: dict[str, Any], task: Any, name: str, *, read_only: bool
) -> dict[str, Any]:
    """Summarize the model: its name, task, columns and rows; `of_task` has its quality."""
    fitted = version.fitted
    return {
        "name": name,
        "task": task.TASK,
        "target_name": fitted.target_name,
        "input": form_of(version),
        "columns": [
            {"name": name, "use": use} for name, use in fitted.predictor.encoder.kinds.items()
        ],
        "n_rows": fitted.n_remembered,
        "fitted_at": fitted.fitted_at,
        "capacity": Settings.of(version.estimator.settings).capacity,
        "read_only": read_only,
        "memory_version": version.number,
        **of_task,
    }


# --- review -------------------------------------------------------------------------------------


class Issue(Answer):
    """A remembered row with a suspected wrong label."""

    id: int
    given: Label
    suggested: Label
    proba_given: float = Field(description="Probability that the given label is true.")
    proba_suggested: float = Field(description="Probability that the suggested one is true.")
    suspicion: float = Field(description="Probability that the given label is wrong.")
    independent: bool = Field(description="Whether the prediction is independent of the label.")
    neighbors: list[int] = Field(description="Nearest remembered rows, nearest first.")


class Issues(Versioned):
    """Rows with suspected wrong labels, most suspicious first; `n_issues` counts all."""

    issues: list[Issue]
    n_issues: int


class Finding(Answer):
    """A remembered row, or a group of rows, to check."""

    kind: IssueKind
    id: int | None = Field(description="The row; null for a group.")
    given: Label | None
    suggested: Label | None
    score: float = Field(description="Larger is worse; comparable within a kind.")
    ids: list[int] = Field(
        description="Related rows, at most 500: neighbors, copies, members of the group."
    )
    what: str = Field(description="What was found.")
    show: str = SHOW


class FindingCounts(RootModel[dict[IssueKind, int]]):
    """Number of findings of each kind."""


class ExpectedWrong(Answer):
    """Expected number of wrong labels, or targets, with its 95 % interval."""

    number: float
    low: float
    high: float
    n_rows: int = Field(description="Remembered rows.")
    source: str = Field(description="noise model, or predictions without each row's label.")


class Review(Versioned):
    """Findings of a kind, the worst first; `n_findings` counts those of all pages."""

    findings: list[Finding]
    n_findings: int
    counts: FindingCounts
    expected_wrong: ExpectedWrong


def review_page(found: Any, kind: str, offset: int, limit: int) -> dict[str, Any]:
    """Select a page of the findings of one kind, or of all."""
    of_kind = found if kind == "all" else found[found["kind"] == kind]
    listed = of_kind[offset : offset + limit].to_dict("records")
    return {
        "findings": [{n: one[n] for n in one if n != "show" or one[n]} for one in listed],
        "n_findings": len(of_kind),
        "counts": {one: int((found["kind"] == one).sum()) for one in KINDS},
    }


class Effect(Answer):
    """Effect of changes on the loss of `n_rows` held-out rows: NLL, or CRPS of targets."""

    before: float = Field(description="Mean loss without the changes.")
    difference: float = Field(description="Mean loss with the changes minus `before`.")
    spread: float = Field(description="Half width of the 95 % interval of the difference.")
    n_rows: int


class EffectOfChanges(Versioned):
    """Effect of all changes since the service started; null if there is none to measure."""

    effect: Effect | None


# --- trust --------------------------------------------------------------------------------------


class ReliabilityBin(Answer):
    """Predictions of similar confidence, with the 95 % interval of their accuracy."""

    count: int
    confidence: float | None = Field(description="Mean confidence; null without rows.")
    accuracy: float | None
    low: float | None
    high: float | None


class RiskPoint(Answer):
    """Share of wrong predictions if only the most confident rows are answered."""

    coverage: float = Field(description="Share of rows that are answered.")
    risk: float
    threshold: float = Field(description="Lowest confidence of an answered row.")


class SetSizes(Answer):
    """Sizes of the prediction sets of one confidence."""

    confidence: float
    shares: list[float] = Field(description="Share of rows with a set of 0, 1, 2, ... classes.")


class ClassQuality(Answer):
    """Predictions of one class; a share without rows is null."""

    label: Label
    n_rows: int = Field(description="Calibration rows with the label.")
    recall: float | None
    precision: float | None
    confidence: float | None = Field(description="Mean confidence of its predictions.")


class Trust(Versioned):
    """Quality of predictions of the calibration rows; wrong labels count as errors."""

    n_rows: int
    accuracy: float
    nll: float = Field(description="Negative log-likelihood of the label, in nats.")
    ece: float = Field(description="Expected calibration error.")
    aurc: float = Field(description="Area under the risk-coverage curve.")
    reliability: list[ReliabilityBin] = Field(description="Bins of about equal counts.")
    risk: list[RiskPoint] = Field(description=f"At most {_MOST_POINTS} points of the curve.")
    set_sizes: list[SetSizes]
    classes: list[ClassQuality]
    confusion: list[list[int]] = Field(
        description="Rows by given label, and by predicted class, in the order of `classes`."
    )


def risk_points(trust: Measured) -> list[dict[str, float]]:
    """Return the risk-coverage curve, thinned to at most 400 points."""
    points = np.unique(np.linspace(0, trust.n_rows - 1, _MOST_POINTS).astype(int))
    curve = {name: values[points].tolist() for name, values in trust.risk._asdict().items()}
    return [dict(zip(curve, one, strict=True)) for one in zip(*curve.values(), strict=True)]


def trust_members(trust: Measured) -> dict[str, Any]:
    """Return the members of `Trust`."""
    return {
        **{name: getattr(trust, name) for name in ("n_rows", "accuracy", "nll", "ece", "aurc")},
        "reliability": trust.to_frame().to_dict("records"),
        "risk": risk_points(trust),
        "set_sizes": [
            {"confidence": level, "shares": shares} for level, shares in trust.set_sizes.items()
        ],
        "classes": trust.by_class()
        .rename(columns={"class": "label", "rows": "n_rows"})
        .to_dict("records"),
        "confusion": trust.confusion,
    }
