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
from nearwise.metrics.calibration import ReliabilityBins, ece, reliability_bins
from nearwise.metrics.scores import nll
from nearwise.metrics.selective import RiskCoverageCurve, aurc, risk_coverage_curve

CONFIDENCES = (0.8, 0.9, 0.95, 0.99)
_N_BINS = 10


@dataclass(frozen=True)
class Trust:
    """Measures of a model on its calibration rows.

    Wrong labels count as errors of the model here, even if it has detected them.

    Attributes
    ----------
    n_rows : int
    accuracy, nll, ece, aurc : float
    reliability : ReliabilityBins
        Ten bins of about equal counts.
    risk : RiskCoverageCurve
        Share of wrong predictions if only the most confident rows are answered.
    set_sizes : dict of float to ndarray of shape (n_classes + 1,)
        Share of rows per size of the prediction set, by confidence. Confidences with too few
        calibration rows are missing.
    """

    n_rows: int
    accuracy: float
    nll: float
    ece: float
    aurc: float
    reliability: ReliabilityBins
    risk: RiskCoverageCurve
    set_sizes: dict[float, np.ndarray]

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
    return Trust(
        n_rows=len(rows.labels),
        accuracy=float(rows.correct.mean()),
        nll=nll(rows.labels, proba),
        ece=ece(rows.labels, proba),
        aurc=aurc(rows.labels, proba),
        reliability=reliability_bins(rows.labels, proba, n_bins=_N_BINS, strategy="quantile"),
        risk=risk_coverage_curve(rows.labels, proba),
        set_sizes=_set_sizes(rows),
    )


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
