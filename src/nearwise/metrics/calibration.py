"""Calibration errors, reliability bins and the signed gap.

Edge rule of equal-width bins: bin i holds [i / n_bins, (i + 1) / n_bins), the last bin is
closed, so a confidence of exactly 1.0 lies in the last bin and never in a separate bin.
Edges are the float64 quotients i / n_bins, compared with confidences in float64.

Tie rule of equal-mass bins: rows of equal confidence share one bin, the bin in which the
middle of their ranks falls. No value depends on the order of the rows.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.fft import dct, idct
from scipy.special import ndtri

from nearwise.metrics.checks import (
    BoolArray,
    FloatArray,
    IntArray,
    check_level,
    check_positive_int,
    check_predictions,
)

N_BINS = 15


def ece(y: npt.ArrayLike, proba: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Compute the expected calibration error of the top label in equal-width bins.

    Sum over bins of (share of rows) x abs(mean confidence - accuracy).

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)
    n_bins : int, default=15
        Bins of width 1 / n_bins, left-closed; the last one is closed on both sides.

    Returns
    -------
    ece : float in [0, 1]

    References
    ----------
    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, sec. 2.
    """
    check_positive_int(n_bins, "n_bins")
    predictions = check_predictions(y, proba)
    bins = equal_width_bins(predictions.confidence, n_bins)
    return mean_gap(predictions.confidence, predictions.correct, bins)


def equal_mass_ece(y: npt.ArrayLike, proba: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Compute the calibration error of the top label in bins of about equal row counts.

    Rows of equal confidence are never split: a tied group lies in the bin in which the
    middle of its ranks falls. With many ties some bins are larger and some are empty.

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)
    n_bins : int, default=15
        Number of bins; with fewer distinct confidences each one has its own bin.

    Returns
    -------
    ece : float in [0, 1]

    References
    ----------
    Nixon et al., "Measuring Calibration in Deep Learning", CVPR Workshops 2019.
    """
    check_positive_int(n_bins, "n_bins")
    predictions = check_predictions(y, proba)
    bins = equal_mass_bins(predictions.confidence, n_bins)
    return mean_gap(predictions.confidence, predictions.correct, bins)


def classwise_ece(y: npt.ArrayLike, proba: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Average the calibration errors of the probability columns of all classes.

    Equal-width bins with the edge rule of `ece`; a class without a true row counts too
    (its probabilities should then be near 0).

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)
    n_bins : int, default=15
        Bins per class.

    Returns
    -------
    ece : float in [0, 1]

    References
    ----------
    Kull et al., "Beyond Temperature Scaling", NeurIPS 2019.
    """
    check_positive_int(n_bins, "n_bins")
    predictions = check_predictions(y, proba)
    gap = predictions.proba.copy()
    gap[np.arange(predictions.n_rows), predictions.labels] -= 1.0
    cells = equal_width_bins(predictions.proba.ravel(), n_bins).reshape(gap.shape)
    cells += np.arange(predictions.n_classes) * n_bins
    sums = np.bincount(cells.ravel(), weights=gap.ravel())
    return float(np.abs(sums).sum()) / (predictions.n_rows * predictions.n_classes)


def signed_gap(y: npt.ArrayLike, proba: npt.ArrayLike) -> float:
    """Subtract accuracy from mean confidence: above 0 is over-, below 0 under-confident.

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)

    Returns
    -------
    gap : float in [-1, 1]
    """
    predictions = check_predictions(y, proba)
    return float(predictions.confidence.mean() - predictions.correct.mean())


def equal_width_bins(values: FloatArray, n_bins: int) -> IntArray:
    """Return the bin position of each value in [0, 1], by the edge rule of this module."""
    edges = np.arange(n_bins + 1) / n_bins
    # Rounding may put the product one bin off at an edge; two comparisons correct it.
    bins = np.minimum((values * n_bins).astype(np.int64), n_bins - 1)
    bins -= values < edges[bins]
    bins += (values >= edges[bins + 1]) & (bins < n_bins - 1)
    return bins


def equal_mass_bins(values: FloatArray, n_bins: int) -> IntArray:
    """Return the bin position of each value, by the tie rule of this module."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    twice_middle = 2 * np.cumsum(counts) - counts
    # Integers: floor(n_bins * middle / n) without rounding errors.
    bins: IntArray = (n_bins * twice_middle // (2 * values.shape[0])).astype(np.int64)
    return bins[group]


def mean_gap(confidence: FloatArray, correct: FloatArray | BoolArray, bins: IntArray) -> float:
    """Sum over bins of (share of rows) x abs(mean confidence - accuracy), of at least one row."""
    gap = confidence - correct
    return float(np.abs(np.bincount(bins, weights=gap)).sum()) / len(bins)


BinStrategy = Literal["uniform", "quantile"]


@dataclass(frozen=True)
class ReliabilityBins:
    """Data of a reliability diagram; all arrays have shape (n_bins,).

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
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)
    n_bins : int, default=15
        Number of bins, empty ones included.
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width as in `ece`, or of about equal counts as in `equal_mass_ece`.
    level : float in (0, 1), default=0.95
        Coverage of the intervals.

    Returns
    -------
    bins : ReliabilityBins
        sum(count x abs(confidence - accuracy)) / n_rows is the calibration error.

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


_GRID_CELLS = 2**15
_SMALLEST_WIDTH = 4.0 / _GRID_CELLS
"""Narrowest kernel the grid resolves: four cells, about 1.2e-4."""
_BISECTIONS = 24


def smooth_ece(y: npt.ArrayLike, proba: npt.ArrayLike) -> float:
    """Compute the smooth calibration error of the top label (smECE).

    The residuals confidence - correct are smoothed over [0, 1] with a Gaussian that is
    reflected at both ends; the error is the integral of the absolute result. The width is
    chosen such that the error equals the width, so there is no parameter.

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)

    Returns
    -------
    error : float in [0, 1]
        Below the narrowest width, 1.2e-4, the error at that width.

    References
    ----------
    Blasiok and Nakkiran, "Smooth ECE: Principled Reliability Diagrams via Kernel
    Smoothing", ICLR 2024.
    """
    predictions = check_predictions(y, proba)
    residual = predictions.confidence - predictions.correct
    spectrum = _residual_spectrum(predictions.confidence, residual / predictions.n_rows)
    # The error falls as the width grows, so error - width has one root, in [0, 1].
    error = _error_at_width(spectrum, _SMALLEST_WIDTH)
    if error <= _SMALLEST_WIDTH:
        return error
    low, high = _SMALLEST_WIDTH, 1.0
    for _ in range(_BISECTIONS):
        width = 0.5 * (low + high)
        error = _error_at_width(spectrum, width)
        low, high = (width, high) if error > width else (low, width)
    return error


def _residual_spectrum(position: FloatArray, mass: FloatArray) -> FloatArray:
    """Return the cosine transform of the masses, each split linearly between two grid points."""
    scaled = position * _GRID_CELLS
    left = np.minimum(scaled.astype(np.int64), _GRID_CELLS - 1)
    to_right = (scaled - left) * mass
    points = _GRID_CELLS + 1
    grid = np.zeros(points)
    grid += np.bincount(left, weights=mass - to_right, minlength=points)
    grid += np.bincount(left + 1, weights=to_right, minlength=points)
    # A mass at an end coincides with its own reflection, so it counts twice.
    grid[0] *= 2.0
    grid[-1] *= 2.0
    spectrum: FloatArray = dct(grid, type=1)
    return spectrum


def _error_at_width(spectrum: FloatArray, width: float) -> float:
    """Integral over [0, 1] of the absolute smoothed residual.

    The reflected Gaussian multiplies the k-th cosine by exp(-(pi k width)^2 / 2).
    """
    # Beyond 9 / (pi width) the factor is under 3e-18 and treated as 0.
    kept = min(spectrum.shape[0], int(9.0 / (np.pi * width)) + 1)
    smoothed = np.zeros_like(spectrum)
    frequency = np.pi * width * np.arange(kept)
    smoothed[:kept] = spectrum[:kept] * np.exp(-0.5 * frequency**2)
    density = np.abs(idct(smoothed, type=1))
    return float(density.sum() - 0.5 * (density[0] + density[-1]))
