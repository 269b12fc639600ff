"""Quality of a classifier's predictions, measured on its calibration rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nearwise.estimators.model.fitted_model import FittedClassifier
from nearwise.estimators.uncertainty.calibration_rows import CalibrationRows, calibration_rows
from nearwise.estimators.uncertainty.conformal import (
    nonconformity,
    p_values,
    rows_needed,
    sets_from_p_values,
)
from nearwise.metrics.calibration import (
    ReliabilityBins,
    ece,
    reliability_bins,
    wilson_interval,
)
from nearwise.metrics.scores import nll
from nearwise.metrics.selective import RiskCoverageCurve, aurc, risk_coverage_curve

CONFIDENCES = (0.8, 0.9, 0.95, 0.99)
_N_BINS = 10
_LEVEL = 0.95  # of the interval of the accuracy


@dataclass(frozen=True, repr=False)
class Trust:
    """Measures of a model on its calibration rows.

    Wrong labels count as errors of the model here, even if it has detected them.

    Attributes
    ----------
    n_rows : int
    n_units : int
        Number of groups of these rows; without groups the rows.
    accuracy, nll, ece, aurc : float
    reliability : ReliabilityBins
        Ten bins of about equal counts.
    risk : RiskCoverageCurve
        Share of wrong predictions if only the most confident rows are answered.
    set_sizes : dict of float to ndarray of shape (n_classes + 1,)
        Share of rows per size of the prediction set, by confidence. Confidences with too few
        calibration rows are missing.
    classes : ndarray of shape (n_classes,)
    confusion : int64 ndarray of shape (n_classes, n_classes)
        Rows by given label (first axis) and predicted class.
    confidence : float64 ndarray of shape (n_classes,)
        Mean confidence of the rows predicted as each class; NaN without such rows.
    """

    n_rows: int
    n_units: int
    accuracy: float
    nll: float
    ece: float
    aurc: float
    reliability: ReliabilityBins
    risk: RiskCoverageCurve
    set_sizes: dict[float, np.ndarray]
    classes: np.ndarray
    confusion: np.ndarray
    confidence: np.ndarray

    @property
    def accuracy_interval(self) -> tuple[float, float]:
        """Wilson interval of the accuracy, at 95 %; rows of a group count as one."""
        share, trials = np.array([self.accuracy]), np.array([float(self.n_units)])
        low, high = wilson_interval(share, trials, _LEVEL)
        return float(low[0]), float(high[0])

    def by_class(self) -> pd.DataFrame:
        """Table per class: rows, recall, precision, and mean confidence of its predictions.

        A share without rows is NaN.
        """
        right, rows = np.diag(self.confusion), self.confusion.sum(axis=1)
        predicted = self.confusion.sum(axis=0)
        return pd.DataFrame(
            {
                "class": self.classes,
                "rows": rows,
                "recall": _ratio(right, rows),
                "precision": _ratio(right, predicted),
                "confidence": self.confidence,
            }
        )

    def confused(self, n: int = 10) -> pd.DataFrame:
        """Table of the `n` most frequent confusions: given label, predicted class, rows, share.

        `share` is that of the rows with the given label.
        """
        counts = self.confusion - np.diag(np.diag(self.confusion))
        given, predicted = np.unravel_index(
            np.argsort(-counts, axis=None, kind="stable")[:n], counts.shape
        )
        rows = counts[given, predicted]
        of_label = _ratio(rows, self.confusion.sum(axis=1)[given])
        pairs = {"given": self.classes[given], "predicted": self.classes[predicted]}
        return pd.DataFrame(pairs | {"rows": rows, "share": of_label})[rows > 0]

    def to_frame(self) -> pd.DataFrame:
        """Table of the confidence bins: count, mean confidence, accuracy and its 95 % interval."""
        bins = self.reliability
        return pd.DataFrame(
            {
                "count": bins.count,
                "confidence": bins.confidence,
                "accuracy": bins.accuracy,
                "low": bins.low,
                "high": bins.high,
            }
        )

    def __repr__(self) -> str:
        low, high = self.accuracy_interval
        return (
            f"<Trust accuracy {self.accuracy:.3f} [{low:.3f}, {high:.3f}], NLL {self.nll:.4f}, "
            f"ECE {self.ece:.4f}, AURC {self.aurc:.4f}, {self.n_rows} rows>"
        )

    def _repr_html_(self) -> str:
        from nearwise.html import notebook

        return notebook("trust.html", trust=self)


def measure_trust(model: FittedClassifier) -> Trust:
    """Measure a model on its calibration rows.

    Raises
    ------
    ValueError
        If there are no calibration rows.
    """
    rows = calibration_rows(model.predictor, model.n_classes, model.predictor.n_views)
    proba = np.clip(rows.parts.proba, 0.0, 1.0)
    if not len(rows.labels):
        raise ValueError("No remembered row was predicted without its label. Fit with more rows.")
    best, n_classes = proba.argmax(axis=1), model.n_classes
    confusion = np.zeros((n_classes, n_classes), dtype=np.int64)
    np.add.at(confusion, (rows.labels, best), 1)
    sure = np.bincount(best, proba.max(axis=1), minlength=n_classes)
    return Trust(
        n_rows=len(rows.labels),
        n_units=len(rows.labels) if rows.groups is None else len(np.unique(rows.groups)),
        accuracy=float(rows.correct.mean()),
        nll=nll(rows.labels, proba),
        ece=ece(rows.labels, proba),
        aurc=aurc(rows.labels, proba),
        reliability=reliability_bins(rows.labels, proba, n_bins=_N_BINS, strategy="quantile"),
        risk=risk_coverage_curve(rows.labels, proba),
        set_sizes=_set_sizes(rows),
        classes=model.classes,
        confusion=confusion,
        confidence=_ratio(sure, confusion.sum(axis=0)),
    )


def _ratio(some: np.ndarray, of_all: np.ndarray) -> np.ndarray:
    """Share of `of_all`; NaN where that is 0."""
    found: np.ndarray = np.divide(some, of_all, np.full(len(of_all), np.nan), where=of_all > 0)
    return found


def _set_sizes(rows: CalibrationRows) -> dict[float, Any]:
    """Shares of set sizes, by confidence; a row's own score is among the calibration scores."""
    judged = nonconformity(rows.parts.proba, "lac")
    p = p_values(judged, judged, rows.truth)
    n_classes, n_rows = judged.shape[1], float(rows.truth.sum())
    return {
        level: np.bincount(sets_from_p_values(p, level).sum(axis=1), minlength=n_classes + 1)
        / len(judged)
        for level in CONFIDENCES
        if round(n_rows, 1) >= rows_needed(level)
    }
