"""Binned calibration errors and the signed gap.

Edge rule of equal-width bins: bin i holds [i / n_bins, (i + 1) / n_bins), the last bin is
closed, so a confidence of exactly 1.0 lies in the last bin and never in a bin of its own.
Edges are the float64 quotients i / n_bins, compared with confidences in float64.

Tie rule of equal-mass bins: rows of equal confidence share one bin, the bin in which the
middle of their ranks falls. No value depends on the order of the rows.
"""

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import (
    FloatArray,
    IntArray,
    Predictions,
    check_positive_int,
    check_predictions,
)

N_BINS = 15


def ece(y: npt.ArrayLike, proba: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Compute the expected calibration error of the top label in equal-width bins.

    Sum over bins of (share of rows) x |mean confidence - accuracy|.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions.
    proba : float array-like of shape (n_rows, n_classes)
        Probabilities, each row sums to 1 within 1e-4.
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
    return ece_of(check_predictions(y, proba), n_bins)


def ece_of(predictions: Predictions, n_bins: int = N_BINS) -> float:
    """`ece` of checked predictions."""
    return _mean_gap(predictions, equal_width_bins(predictions.confidence, n_bins))


def equal_mass_ece(y: npt.ArrayLike, proba: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Compute the calibration error of the top label in bins of about equal row counts.

    Rows of equal confidence are never split: a tied group lies in the bin in which the
    middle of its ranks falls. With many ties some bins are larger and some are empty.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions.
    proba : float array-like of shape (n_rows, n_classes)
        Probabilities, each row sums to 1 within 1e-4.
    n_bins : int, default=15
        Number of bins; with fewer distinct confidences than bins each is its own bin.

    Returns
    -------
    ece : float in [0, 1]

    References
    ----------
    Nixon et al., "Measuring Calibration in Deep Learning", CVPR Workshops 2019.
    """
    check_positive_int(n_bins, "n_bins")
    return equal_mass_ece_of(check_predictions(y, proba), n_bins)


def equal_mass_ece_of(predictions: Predictions, n_bins: int = N_BINS) -> float:
    """`equal_mass_ece` of checked predictions."""
    return _mean_gap(predictions, equal_mass_bins(predictions.confidence, n_bins))


def classwise_ece(y: npt.ArrayLike, proba: npt.ArrayLike, *, n_bins: int = N_BINS) -> float:
    """Average the calibration errors of the classes' probability columns.

    Equal-width bins with the edge rule of `ece`; a class without a true row counts too
    (its probabilities should then be near 0).

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions.
    proba : float array-like of shape (n_rows, n_classes)
        Probabilities, each row sums to 1 within 1e-4.
    n_bins : int, default=15
        Bins a class.

    Returns
    -------
    ece : float in [0, 1]

    References
    ----------
    Kull et al., "Beyond Temperature Scaling", NeurIPS 2019.
    """
    check_positive_int(n_bins, "n_bins")
    return classwise_ece_of(check_predictions(y, proba), n_bins)


def classwise_ece_of(predictions: Predictions, n_bins: int = N_BINS) -> float:
    """`classwise_ece` of checked predictions."""
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
    y : integer array-like of shape (n_rows,)
        True class positions.
    proba : float array-like of shape (n_rows, n_classes)
        Probabilities, each row sums to 1 within 1e-4.

    Returns
    -------
    gap : float in [-1, 1]
    """
    return signed_gap_of(check_predictions(y, proba))


def signed_gap_of(predictions: Predictions) -> float:
    """`signed_gap` of checked predictions."""
    return float(predictions.confidence.mean() - predictions.correct.mean())


def equal_width_bins(values: FloatArray, n_bins: int) -> IntArray:
    """Bin position of each value in [0, 1], by the edge rule of this module."""
    edges = np.arange(n_bins + 1) / n_bins
    # The product may land one bin off an edge by rounding; the two comparisons mend that.
    bins = np.minimum((values * n_bins).astype(np.int64), n_bins - 1)
    bins -= values < edges[bins]
    bins += (values >= edges[bins + 1]) & (bins < n_bins - 1)
    return bins


def equal_mass_bins(values: FloatArray, n_bins: int) -> IntArray:
    """Bin position of each value, by the tie rule of this module."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    twice_middle = 2 * np.cumsum(counts) - counts
    # Whole numbers: floor(n_bins * middle / n) without rounding errors.
    bins: IntArray = (n_bins * twice_middle // (2 * values.shape[0])).astype(np.int64)
    return bins[group]


def _mean_gap(predictions: Predictions, bins: IntArray) -> float:
    gap = predictions.confidence - predictions.correct
    return float(np.abs(np.bincount(bins, weights=gap)).sum()) / predictions.n_rows
