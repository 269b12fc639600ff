"""Feedback: predictions of rows before their labels were known, and their quality."""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.inputs.labels import label_list, label_values, positions_among
from nearwise.estimators.model.fitted_model import FittedClassifier, FittedRegressor
from nearwise.estimators.number_query import NumberQuery
from nearwise.estimators.query import SET_CONFIDENCE, Query
from nearwise.estimators.storage.journaling import FEEDBACK, Judged, JudgedNumbers, undone_by
from nearwise.estimators.uncertainty.calibration_rows import calibration_rows
from nearwise.estimators.uncertainty.intervals import calibration_numbers
from nearwise.memory import Change
from nearwise.metrics.calibration import N_BINS, equal_width_bins, mean_gap
from nearwise.metrics.drift import drift_evidence
from nearwise.metrics.scores import NLL_CLIP

_CHANGED = 0.01  # largest changed share of the memory for reuse of its calibration rows


@dataclass(frozen=True)
class Yardstick:
    """Calibration rows of one version, reused for slightly later versions.

    Attributes
    ----------
    ids : int64 Tensor of shape (n_remembered,)
        Ids of the remembered rows.
    labels : ndarray of shape (n_remembered,)
        Labels, or targets, of the remembered rows.
    judged : tuple
        Calibration of the model, compared with that of a later version.
    rows : CalibrationRows or CalibrationNumbers
    """

    ids: Tensor
    labels: np.ndarray
    judged: tuple[Any, ...]
    rows: Any

    @classmethod
    def of(cls, model: FittedClassifier | FittedRegressor) -> Self:
        """Compute the calibration rows of a version."""
        return cls(model.bank.ids, model.labels_at(), _judgement(model), known_rows(model))

    def fits(self, later: FittedClassifier | FittedRegressor) -> bool:
        """Whether a later version has nearly the same rows and labels, and the same calibration."""
        if _judgement(later) != self.judged:
            return False
        ids = later.bank.ids
        now, then = (
            torch.isin(*pair, assume_unique=True) for pair in ((ids, self.ids), (self.ids, ids))
        )
        labels = later.labels_at()
        n_relabelled = int((labels[now.numpy()] != self.labels[then.numpy()]).sum())
        n_changed = int((~now).sum()) + int((~then).sum()) + n_relabelled
        return n_changed <= _CHANGED * len(ids)


def known_rows(model: FittedClassifier | FittedRegressor) -> Any:
    """Calibration rows of a classifier or regressor, cached with the memory."""
    if isinstance(model, FittedRegressor):
        return calibration_numbers(model.predictor)
    return calibration_rows(model.predictor, model.n_classes, model.predictor.n_views)


def _judgement(model: FittedClassifier | FittedRegressor) -> tuple[Any, ...]:
    """Calibration of a model: share, temperature and classes; or spread and bounds."""
    if isinstance(model, FittedRegressor):
        return model.predictor.spread.factor, model.predictor.lower, model.predictor.upper
    accepted = model.predictor.acceptance
    return accepted.share, accepted.temperature, *model.classes.tolist()


def judge(query: Query | NumberQuery, y: Any) -> Judged | JudgedNumbers:
    """Predict rows, and compare the predictions with their labels or targets.

    Parameters
    ----------
    query : Query or NumberQuery
        Query of the rows, with sets and novelty.
    y : array-like of shape (n,)
        True labels, possibly of new classes; or targets, float64.
    """
    if isinstance(query, NumberQuery):
        return _judge_numbers(query, y)
    proba, classes = np.clip(query.proba(), 0, 1), query.model.classes
    labels = label_values(y)
    positions, _ = positions_among(classes, labels)
    rows = np.arange(len(labels))
    known = positions < len(classes)
    known_positions = np.where(known, positions, 0)
    predicted = proba.argmax(axis=1)
    can_judge = query.can_judge(SET_CONFIDENCE)
    in_set = None
    if can_judge:
        in_set = (query.sets(SET_CONFIDENCE)[rows, known_positions] & known).tolist()
    return Judged(
        predicted=label_list(classes[predicted]),
        correct=(predicted == positions).tolist(),
        confidence=proba[rows, predicted].tolist(),
        proba_true=np.where(known, proba[rows, known_positions], 0.0).tolist(),
        novelty_p=query.novelty_p_value().tolist() if can_judge else None,
        n_known=len(query.calibration_rows().labels) if can_judge else None,
        in_set=in_set,
    )


def _judge_numbers(query: NumberQuery, y: np.ndarray) -> JudgedNumbers:
    mixture, rows = query.mixture, query.calibration_numbers()
    can_judge = rows.can_judge(SET_CONFIDENCE)
    in_interval = None
    if can_judge:
        low, high = query.interval(SET_CONFIDENCE).T
        in_interval = ((low <= y) & (y <= high)).tolist()
    return JudgedNumbers(
        target=y.tolist(),
        predicted=mixture.mean().tolist(),
        crps=mixture.crps(y).tolist(),
        level=np.clip(mixture.cdf(y), 0, 1).tolist(),
        novelty_p=query.novelty_p_value().tolist() if can_judge else None,
        n_known=len(rows.counts) if can_judge else None,
        in_interval=in_interval,
    )


def feedback_summary(
    history: Sequence[Change], last: int | None = None, *, of_numbers: bool = False
) -> dict[str, Any]:
    """Summarise the feedback of a history, except undone changes; `LiveModel.feedback_summary`."""
    judged = _judged(history)

    def of_rows(name: str) -> np.ndarray:
        values = _values(judged, name)
        return values if last is None else values[len(values) - min(last, len(values)) :]

    p_values = _among_all([one for one in judged if one["novelty_p"] is not None])
    evidence = float(drift_evidence(p_values)[-1]) if len(p_values) else None
    if of_numbers:
        error = of_rows("predicted") - of_rows("target")
        return {
            "rows": len(error),
            "rmse": float(np.sqrt((error**2).mean())) if len(error) else None,
            "mae": _mean(np.abs(error)),
            "crps": _mean(of_rows("crps")),
            "coverage": _mean(of_rows("in_interval")),
            "drift_evidence": evidence,
        }
    correct, confidence, true = of_rows("correct"), of_rows("confidence"), of_rows("proba_true")
    known = true[true > 0]
    bins, n_rows = equal_width_bins(confidence, N_BINS), len(correct)
    return {
        "rows": n_rows,
        "accuracy": _mean(correct),
        "nll": _mean(-np.log(np.maximum(known, NLL_CLIP))),
        "new_classes": n_rows - len(known),
        "ece": mean_gap(confidence, correct, bins) if n_rows else None,
        "coverage": _mean(of_rows("in_set")),
        "drift_evidence": evidence,
    }


def judged_rows(history: Sequence[Change], name: str) -> np.ndarray:
    """Values of a field of `Judged` for all rows of feedback, in order, except undone changes."""
    return _values(_judged(history), name)


def _judged(history: Sequence[Change]) -> list[dict[str, Any]]:
    undone = undone_by(history)
    return [
        change.details["judged"]
        for change in history
        if change.kind == FEEDBACK and change.version not in undone
    ]


def _values(judged: list[dict[str, Any]], name: str) -> np.ndarray:
    found = [one[name] for one in judged if one[name] is not None]
    return np.concatenate([np.empty(0), *found]).astype(float)


def _among_all(judged: list[dict[str, Any]]) -> list[float]:
    """P-values of rows among the calibration rows and all earlier rows of feedback.

    The p-values from `judge` compare every row with the same calibration rows, so they depend on
    each other; a drift test by betting on them could win by chance.
    """
    before: list[float] = []
    found = []
    for one in judged:
        for p in one["novelty_p"]:
            as_novel = p * (one["n_known"] + 1) + bisect_right(before, p)
            found.append(min(1.0, as_novel / (one["n_known"] + 1 + len(before))))
            insort(before, p)
    return found


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
