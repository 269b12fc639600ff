"""Questions and answers of classification; `numbers` has the same names for regression."""

from typing import Any

import numpy as np

from nearwise.estimators.live import Version
from nearwise.estimators.model.fitted_model import FittedClassifier
from nearwise.estimators.online.feedback import known_rows
from nearwise.estimators.query import Query
from nearwise.estimators.uncertainty.trust import measure_trust
from nearwise.metrics.scores import NLL_CLIP
from nearwise.serve import answers as described
from nearwise.serve import bodies, protocol
from nearwise.serve.answers import measures
from nearwise.serve.answers.measures import estimate
from nearwise.serve.asked_rows import Answers, Ask

TASK, LABEL = "classification", "label"
PredictRequest, ExplainRequest = bodies.PredictRequest, bodies.ExplainRequest
LabeledRows, NewLabel, Decision = bodies.LabeledRows, bodies.NewLabel, bodies.Decision
InferRequest = protocol.InferRequest
Predictions, Explanations = described.Predictions, described.Explanations
RememberedRow, MemoryMap = described.RememberedRow, described.MemoryMap
Feedback, FeedbackSummary = described.Feedback, described.FeedbackSummary
ModelSummary, Issues, Review = measures.ClassifierSummary, measures.Issues, measures.Review
_BOUND_CONFIDENCE = 0.95  # of the upper bound on the error rate
_OF_SELECTION = ("threshold", "expected_risk", "risk_bound", "confidence")
BODIES = (
    bodies.ProjectRequest, PredictRequest, ExplainRequest, LabeledRows, NewLabel, Decision,
    InferRequest,
)  # fmt: skip


def answers(version: Version, requests: list[Any], ask: Ask, judged_by: Any = None) -> Answers:
    """Compute the requested outputs for the encoded rows of some requests.

    `judged_by`: calibration rows of another version, see `Query`.
    """
    n_shown = ask.n_neighbors or False
    query: Query = version.query(requests, explain=n_shown, judged_by=judged_by)
    proba, labels, chosen = query.proba(), query.model.classes, None
    values = {"label": labels[proba.argmax(axis=1)], "proba": proba}
    if ask.confidence is not None:
        values["prediction_set"] = query.sets(ask.confidence)
    if ask.novelty:
        values["novelty_p"] = query.novelty_p_value()
    if ask.is_selective:
        found = query.selection(
            coverage=ask.coverage, max_risk=ask.max_risk, confidence=_BOUND_CONFIDENCE
        )
        values["act"] = found.accepted
        chosen = {name: getattr(found, name) for name in _OF_SELECTION}
    shown = None if ask.n_neighbors is None else query.explanations()
    return Answers(version.number, values, shown, chosen, classes=labels)


def outputs(fitted: FittedClassifier) -> protocol.Outputs:
    """Describe the outputs of the Open Inference Protocol; the first two are the default."""
    label, by_class = protocol.datatype_of(fitted.classes), [-1, fitted.n_classes]
    return {
        "label": (label, [-1]),
        **dict.fromkeys(("proba", "base_proba", "neighbor_proba"), ("FP64", by_class)),
        **dict.fromkeys(("null_mass", "novelty_p"), ("FP64", [-1])),
        "neighbor_id": ("INT64", [-1, -1]),
        "neighbor_label": (label, [-1, -1]),
        **dict.fromkeys(("neighbor_weight", "neighbor_distance"), ("FP64", [-1, -1])),
        "prediction_set": ("BOOL", by_class),
        "act": ("BOOL", [-1]),
    }


def summary(fitted: FittedClassifier) -> dict[str, Any]:
    """Return the classes with their rows, and the quality on the calibration rows."""
    counts = zip(fitted.classes.tolist(), fitted.rows_per_class.tolist(), strict=True)
    rows, quality = known_rows(fitted), None
    if len(rows.labels):
        trust, at = measure_trust(fitted), np.arange(len(rows.labels))
        low, high = trust.accuracy_interval
        losses = -np.log(np.clip(rows.parts.proba[at, rows.labels], NLL_CLIP, 1))
        quality = {
            "n_rows": trust.n_rows,
            "accuracy": {"estimate": trust.accuracy, "low": low, "high": high},
            "nll": estimate(losses, trust.n_units),
        }
    classes = [{"label": label, "n_rows": n_rows} for label, n_rows in counts]
    return {"classes": classes, "quality": quality}
