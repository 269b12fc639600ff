"""Metrics of prediction sets: coverage, size, coverage by class and by size."""

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import check_labels, check_level, check_same_rows

_ENOUGH = 20  # least rows of a set size in the stratified coverage


def evaluate_sets(y: npt.ArrayLike, sets: npt.ArrayLike, confidence: float) -> dict[str, float]:
    """Compute coverage and size of prediction sets.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions.
    sets : bool array-like of shape (n_rows, n_classes)
        True where a class is in the row's set.
    confidence : float in (0, 1)
        Nominal coverage of the sets.

    Returns
    -------
    metrics : dict of str to float
        coverage; mean_size; empty (share of empty sets); singletons (share of sets of one);
        class_gap (mean absolute difference between the classes' coverage and the confidence) and
        lowest_class_coverage, both over classes with rows; size_stratified_coverage, the lowest
        coverage among sets of one nonzero size, over sizes with at least 20 rows, or all sizes if
        none has as many; NaN if every set is empty.

    References
    ----------
    Ding et al., "Class-Conditional Conformal Prediction with Many Classes", NeurIPS 2023 (CovGap).
    Angelopoulos et al., "Uncertainty Sets for Image Classifiers using Conformal Prediction",
    ICLR 2021, sec. 4.
    """
    check_level(confidence, "confidence")
    matrix = np.asarray(sets)
    if matrix.ndim != 2 or matrix.dtype != np.bool_ or not matrix.size:
        raise ValueError(
            "sets must be a bool matrix of shape (n_rows, n_classes) with a row, got "
            f"{matrix.dtype} of shape {matrix.shape}. Pass what predict_set returned."
        )
    labels = check_labels(y, n_classes=matrix.shape[1])
    check_same_rows(len(labels), len(matrix), "sets")
    covered, size = matrix[np.arange(len(labels)), labels], matrix.sum(axis=1)
    by_class = [float(covered[labels == one].mean()) for one in np.unique(labels)]
    by_size = [covered[size == one] for one in np.unique(size[size > 0])]
    enough = [rows for rows in by_size if len(rows) >= _ENOUGH] or by_size
    return {
        "coverage": float(covered.mean()),
        "mean_size": float(size.mean()),
        "empty": float((size == 0).mean()),
        "singletons": float((size == 1).mean()),
        "class_gap": float(np.abs(np.array(by_class) - confidence).mean()),
        "lowest_class_coverage": min(by_class),
        "size_stratified_coverage": min(
            (float(rows.mean()) for rows in enough), default=float("nan")
        ),
    }
