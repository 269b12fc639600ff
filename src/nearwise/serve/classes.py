"""Questions and answers of classification; `numbers` has the same names for regression."""

from typing import Any

from nearwise.estimators.live import Version
from nearwise.estimators.model.fitted_model import FittedClassifier
from nearwise.estimators.query import Query
from nearwise.serve import answers as described
from nearwise.serve import bodies, protocol
from nearwise.serve.asked_rows import Answers, Ask

TASK, LABEL = "classification", "label"
Question, WhyQuestion = bodies.Question, bodies.WhyQuestion
Labelled, NewLabel, Decision = bodies.Labelled, bodies.NewLabel, bodies.Decision
InferRequest = protocol.InferRequest
Predictions, Explanations = described.Predictions, described.Explanations
Remembered, MapSeen = described.Remembered, described.MapSeen
Feedback, FeedbackSummary = described.Feedback, described.FeedbackSummary
_BOUND_CONFIDENCE = 0.95  # of the upper bound on the error rate
_OF_SELECTION = ("threshold", "expected_risk", "risk_bound", "confidence")
BODIES = (Question, WhyQuestion, Labelled, NewLabel, Decision, InferRequest)


def answers(version: Version, requests: list[Any], ask: Ask) -> Answers:
    """Compute the requested outputs for the encoded rows of some requests."""
    query: Query = version.query(requests, explain=ask.n_neighbors or False)
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
