"""Measures of prediction sets: coverage of the true label, size, and both by class and by size."""

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import (
    BoolArray,
    FloatArray,
    IntArray,
    check_labels,
    check_level,
    check_same_rows,
)


def set_coverage(y: npt.ArrayLike, sets: npt.ArrayLike) -> float:
    """Compute the share of rows whose set holds the true class.

    Parameters
    ----------
    y, sets : true class positions (n_rows,), bool array (n_rows, n_classes)

    Returns
    -------
    coverage : float in [0, 1]
    """
    return float(_covered(*_check_sets(y, sets)).mean())


def mean_set_size(sets: npt.ArrayLike) -> float:
    """Average the number of classes in a set; 1 is the best a sure and right classifier can do.

    Parameters
    ----------
    sets : bool array-like of shape (n_rows, n_classes)
        True where a class is in the row's set.

    Returns
    -------
    size : float in [0, n_classes]
    """
    return float(_check_matrix(sets).sum(axis=1).mean())


def coverage_by_class(y: npt.ArrayLike, sets: npt.ArrayLike) -> FloatArray:
    """Compute the coverage among the rows of each class.

    Parameters
    ----------
    y, sets : true class positions (n_rows,), bool array (n_rows, n_classes)

    Returns
    -------
    coverage : float64 ndarray of shape (n_classes,)
        NaN for a class without a row.
    """
    labels, matrix = _check_sets(y, sets)
    counts = np.bincount(labels, minlength=matrix.shape[1]).astype(np.float64)
    held = np.bincount(labels, weights=_covered(labels, matrix), minlength=matrix.shape[1])
    return np.divide(held, counts, out=np.full_like(held, np.nan), where=counts > 0)


def class_coverage_gap(y: npt.ArrayLike, sets: npt.ArrayLike, confidence: float) -> float:
    """Average over classes how far their coverage lies from the given confidence.

    Parameters
    ----------
    y, sets : true class positions (n_rows,), bool array (n_rows, n_classes)
    confidence : float in (0, 1)
        What the sets were made for.

    Returns
    -------
    gap : float in [0, 1]
        0 where every class is covered at that confidence. Classes without a row do not count.

    References
    ----------
    Ding et al., "Class-Conditional Conformal Prediction with Many Classes", NeurIPS 2023 (CovGap).
    """
    check_level(confidence, "confidence")
    return float(np.nanmean(np.abs(coverage_by_class(y, sets) - confidence)))


def coverage_by_size(y: npt.ArrayLike, sets: npt.ArrayLike) -> dict[int, tuple[int, float]]:
    """Count the rows with a set of each size, and compute their coverage.

    Parameters
    ----------
    y, sets : true class positions (n_rows,), bool array (n_rows, n_classes)

    Returns
    -------
    by_size : dict of int to (int, float)
        Size to (rows, coverage among them), sizes ascending; empty sets are size 0.
    """
    labels, matrix = _check_sets(y, sets)
    covered, size = _covered(labels, matrix), matrix.sum(axis=1)
    return {
        int(n): (int((size == n).sum()), float(covered[size == n].mean())) for n in np.unique(size)
    }


def size_stratified_coverage(y: npt.ArrayLike, sets: npt.ArrayLike, *, least: int = 1) -> float:
    """Compute the lowest coverage among rows whose sets have the same size.

    Parameters
    ----------
    y, sets : true class positions (n_rows,), bool array (n_rows, n_classes)
    least : int, default=1
        Sizes that fewer rows have do not count, unless none has as many. Empty sets, which can
        hold nothing, never count.

    Returns
    -------
    coverage : float in [0, 1]
        NaN where every set is empty.

    References
    ----------
    Angelopoulos et al., "Uncertainty Sets for Image Classifiers using Conformal Prediction",
    ICLR 2021, sec. 4.
    """
    filled = [pair for size, pair in coverage_by_size(y, sets).items() if size > 0]
    enough = [coverage for n, coverage in filled if n >= least]
    return min(enough or [coverage for _, coverage in filled], default=float("nan"))


def evaluate_sets(y: npt.ArrayLike, sets: npt.ArrayLike, confidence: float) -> dict[str, float]:
    """Measure prediction sets with every metric of this module.

    Parameters
    ----------
    y, sets, confidence : as for `class_coverage_gap`

    Returns
    -------
    metrics : dict of str to float
        coverage, mean_size, empty (share of empty sets), singletons (share of sets of one),
        class_gap, lowest_class_coverage, size_stratified_coverage (sizes that at least 20 rows
        have).
    """
    size = _check_matrix(sets).sum(axis=1)
    return {
        "coverage": set_coverage(y, sets),
        "mean_size": float(size.mean()),
        "empty": float((size == 0).mean()),
        "singletons": float((size == 1).mean()),
        "class_gap": class_coverage_gap(y, sets, confidence),
        "lowest_class_coverage": float(np.nanmin(coverage_by_class(y, sets))),
        "size_stratified_coverage": size_stratified_coverage(y, sets, least=20),
    }


def _covered(labels: IntArray, matrix: BoolArray) -> BoolArray:
    return matrix[np.arange(len(labels)), labels]


def _check_sets(y: npt.ArrayLike, sets: npt.ArrayLike) -> tuple[IntArray, BoolArray]:
    matrix = _check_matrix(sets)
    labels = check_labels(y, n_classes=matrix.shape[1])
    check_same_rows(len(labels), len(matrix), "sets")
    return labels, matrix


def _check_matrix(sets: npt.ArrayLike) -> BoolArray:
    matrix = np.asarray(sets)
    if matrix.ndim != 2 or matrix.dtype != np.bool_ or not matrix.size:
        raise ValueError(
            "sets must be a bool matrix of shape (n_rows, n_classes) with a row, got "
            f"{matrix.dtype} of shape {matrix.shape}. Pass what predict_set returned."
        )
    return matrix
