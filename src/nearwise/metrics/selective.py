"""Selective prediction: risk if only the rows with the highest confidence are answered.

Rows of equal confidence have no defined order, so every number here is the expected value
over all orders of tied rows; no value depends on the order of the input.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import (
    BoolArray,
    FloatArray,
    Predictions,
    check_predictions,
    check_same_rows,
)


class RiskCoverageCurve(NamedTuple):
    """Risk if the i + 1 most confident of n rows are answered, for i = 0 .. n - 1.

    Attributes
    ----------
    coverage : float64 ndarray of shape (n_rows,)
        (i + 1) / n, ascending to 1.
    risk : float64 ndarray of shape (n_rows,)
        Expected share of wrong rows among the answered ones, in [0, 1].
    threshold : float64 ndarray of shape (n_rows,)
        Lowest confidence of the answered rows, descending.
    """

    coverage: FloatArray
    risk: FloatArray
    threshold: FloatArray


def aurc(
    y: npt.ArrayLike, proba: npt.ArrayLike, *, confidence: npt.ArrayLike | None = None
) -> float:
    """Compute the area under the risk-coverage curve (AURC).

    The area is the mean risk over the coverages 1/n, 2/n, .., 1.

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)
    confidence : float array-like of shape (n_rows,), optional
        Score that orders the rows; larger is more confident. Default: the top probability.

    Returns
    -------
    aurc : float in [0, 1]
        0 when no row is wrong; smaller is better.

    References
    ----------
    Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural
    Classifiers", ICLR 2019.
    """
    return float(np.mean(risk_coverage_curve(y, proba, confidence=confidence).risk))


def augrc(
    y: npt.ArrayLike, proba: npt.ArrayLike, *, confidence: npt.ArrayLike | None = None
) -> float:
    """Compute the area under the generalized risk-coverage curve (AUGRC).

    The generalized risk at a coverage is the share of ALL rows that are answered and
    wrong; its integral over coverage (trapezoids from (0, 0)) is the mean risk of
    undetected failures.

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)
    confidence : as for `aurc`

    Returns
    -------
    augrc : float in [0, 0.5]
        Equals (1 - AUROC of correct against wrong) x accuracy x (1 - accuracy)
        + (1 - accuracy)^2 / 2; smaller is better.

    References
    ----------
    Traub et al., "Overcoming Common Flaws in the Evaluation of Selective Classification
    Systems", NeurIPS 2024.
    """
    predictions = check_predictions(y, proba)
    errors = _expected_errors(_scores(predictions, confidence), predictions.correct)
    area = errors.sum() - 0.5 * errors[-1]
    return float(area / predictions.n_rows / predictions.n_rows)


def risk_coverage_curve(
    y: npt.ArrayLike, proba: npt.ArrayLike, *, confidence: npt.ArrayLike | None = None
) -> RiskCoverageCurve:
    """Compute the selective risk at every coverage.

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)
    confidence : as for `aurc`

    Returns
    -------
    curve : RiskCoverageCurve
        Its mean risk is `aurc`.
    """
    predictions = check_predictions(y, proba)
    scores = _scores(predictions, confidence)
    answered = np.arange(1, predictions.n_rows + 1)
    risk = _expected_errors(scores, predictions.correct) / answered
    return RiskCoverageCurve(answered / predictions.n_rows, risk, np.sort(scores)[::-1].copy())


def _expected_errors(scores: FloatArray, correct: BoolArray) -> FloatArray:
    """Return the expected number of wrong rows among the i + 1 most confident, for each i."""
    _, group, size = np.unique(-scores, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, weights=~correct, minlength=size.shape[0])
    # j of g tied rows hold j x (wrong of the group) / g wrong rows in the mean over orders.
    before_rows = np.repeat(np.cumsum(size) - size, size)
    before_wrong = np.repeat(np.cumsum(wrong) - wrong, size)
    taken = np.arange(1, scores.shape[0] + 1) - before_rows
    errors: FloatArray = before_wrong + taken * np.repeat(wrong, size) / np.repeat(size, size)
    return errors


def _scores(predictions: Predictions, confidence: npt.ArrayLike | None) -> FloatArray:
    if confidence is None:
        return predictions.confidence
    scores = np.asarray(confidence, dtype=np.float64)
    if scores.ndim != 1:
        raise ValueError(f"confidence must have shape (n_rows,), got {scores.shape}.")
    check_same_rows(predictions.n_rows, scores.shape[0], "confidence")
    if np.isnan(scores).any():
        row = int(np.flatnonzero(np.isnan(scores))[0])
        raise ValueError(f"confidence has NaN, first in row {row}. Give every row a score.")
    return scores
