"""Bins of a reliability diagram, with counts and an interval for each bin."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from nearwise.metrics.calibration import N_BINS, equal_mass_bins, equal_width_bins
from nearwise.metrics.checks import (
    FloatArray,
    IntArray,
    check_level,
    check_positive_int,
    check_predictions,
)

BinStrategy = Literal["uniform", "quantile"]


@dataclass(frozen=True)
class ReliabilityBins:
    """What a reliability diagram draws; all arrays have shape (n_bins,).

    Attributes
    ----------
    lower, upper : float64 ndarray
        Ends of the bin: its edges for "uniform", the smallest and largest confidence in
        it for "quantile" (NaN when empty).
    count : int64 ndarray
        Rows in the bin.
    confidence : float64 ndarray
        Mean confidence, NaN when empty.
    accuracy : float64 ndarray
        Share of correct rows, NaN when empty.
    low, high : float64 ndarray
        Wilson interval of the accuracy, NaN when empty.
    """

    lower: FloatArray
    upper: FloatArray
    count: IntArray
    confidence: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray


def reliability_bins(
    y: npt.ArrayLike,
    proba: npt.ArrayLike,
    *,
    n_bins: int = N_BINS,
    strategy: BinStrategy = "uniform",
    level: float = 0.95,
) -> ReliabilityBins:
    """Count rows and compare accuracy with confidence in bins of the top confidence.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions.
    proba : float array-like of shape (n_rows, n_classes)
        Probabilities, each row sums to 1 within 1e-4.
    n_bins : int, default=15
        Number of bins, empty ones included.
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width as in `ece`, or of about equal counts as in `equal_mass_ece`.
    level : float in (0, 1), default=0.95
        Coverage of the intervals.

    Returns
    -------
    bins : ReliabilityBins
        sum(count x |confidence - accuracy|) / n_rows is the calibration error.

    Raises
    ------
    ValueError
        If `strategy` is unknown, or `n_bins` or `level` is out of range.

    References
    ----------
    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927.
    """
    check_positive_int(n_bins, "n_bins")
    check_level(level)
    if strategy not in get_args(BinStrategy):
        raise ValueError(f'strategy must be "uniform" or "quantile", got {strategy!r}.')
    predictions = check_predictions(y, proba)
    values = predictions.confidence
    if strategy == "uniform":
        bins = equal_width_bins(values, n_bins)
        edges = np.arange(n_bins + 1) / n_bins
        lower, upper = edges[:-1], edges[1:]
    else:
        bins = equal_mass_bins(values, n_bins)
        lower, upper = _extremes(values, bins, n_bins)
    count = np.bincount(bins, minlength=n_bins)
    hits = np.bincount(bins, weights=predictions.correct, minlength=n_bins)
    sums = np.bincount(bins, weights=values, minlength=n_bins)
    safe = np.where(count > 0, count.astype(np.float64), np.nan)
    accuracy = hits / safe
    low, high = wilson_interval(accuracy, safe, level)
    return ReliabilityBins(lower, upper, count, sums / safe, accuracy, low, high)


def wilson_interval(
    share: FloatArray, trials: FloatArray, level: float
) -> tuple[FloatArray, FloatArray]:
    """Compute the Wilson score interval of a share of trials; NaN trials give NaN."""
    z = float(ndtri(0.5 + 0.5 * level))
    center = share + z * z / (2 * trials)
    spread = z * np.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    low = np.maximum((center - spread) / scale, 0.0)
    high = np.minimum((center + spread) / scale, 1.0)
    return low, high


def _extremes(values: FloatArray, bins: IntArray, n_bins: int) -> tuple[FloatArray, FloatArray]:
    lower, upper = np.full(n_bins, np.inf), np.full(n_bins, -np.inf)
    np.minimum.at(lower, bins, values)
    np.maximum.at(upper, bins, values)
    empty = lower > upper
    lower[empty] = upper[empty] = np.nan
    return lower, upper
