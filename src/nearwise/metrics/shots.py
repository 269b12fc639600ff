"""Accuracy of classes with many, medium and few training rows."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import BoolArray, check_predictions

GROUPS = ("many", "medium", "few")
MANY, FEW = 100, 20  # many-shot: more than MANY rows; few-shot: fewer than FEW
Thresholds = tuple[int, int] | Literal["auto", "thirds"]


def shot_groups(
    train_counts: npt.ArrayLike, thresholds: Thresholds = "auto"
) -> tuple[dict[str, BoolArray], str]:
    """Group classes by their number of training rows.

    Parameters
    ----------
    train_counts : integer array-like of shape (n_classes,)
        Training rows of each class.
    thresholds : (few, many), "thirds" or "auto", default="auto"
        Classes with more than `many` rows are many-shot, classes with fewer than `few` few-shot.
        "thirds" sorts by size and splits the classes into three. "auto" is (20, 100), or
        "thirds" if all classes would be in one group.

    Returns
    -------
    groups : dict of str to bool ndarray of shape (n_classes,)
        "many", "medium" and "few"; every class is in one.
    rule : str
        Description of the rule.

    Raises
    ------
    ValueError
        If the counts are invalid, or the thresholds are not ascending.

    References
    ----------
    Liu et al., "Large-Scale Long-Tailed Recognition in an Open World", CVPR 2019, sec. 4.
    """
    counts = np.asarray(train_counts)
    if counts.ndim != 1 or not len(counts) or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ValueError(
            f"train_counts has shape {counts.shape} and kind {counts.dtype}; give one whole number "
            "of training rows per class."
        )
    if thresholds == "auto":
        groups, rule = shot_groups(counts, (FEW, MANY))
        if max(int(mask.sum()) for mask in groups.values()) < len(counts):
            return groups, rule
        thresholds = "thirds"
    if thresholds == "thirds":
        rank = np.empty(len(counts), dtype=np.int64)
        rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
        third = rank * 3 // len(counts)
        return {name: third == i for i, name in enumerate(GROUPS)}, "thirds of the classes by size"
    few, many = thresholds
    if not 0 < few <= many:
        raise ValueError(f"thresholds={thresholds} must ascend: (fewer than, more than).")
    masks = {
        "many": counts > many,
        "medium": (counts >= few) & (counts <= many),
        "few": counts < few,
    }
    return masks, f"more than {many}, {few} to {many}, fewer than {few} training rows"


def shot_breakdown(
    y: npt.ArrayLike,
    proba: npt.ArrayLike,
    train_counts: npt.ArrayLike,
    thresholds: Thresholds = "auto",
) -> dict[str, Any]:
    """Compute the accuracy over the test rows of many-, medium- and few-shot classes.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
    proba : float array-like of shape (n_rows, n_classes)
    train_counts : integer array-like of shape (n_classes,)
    thresholds : (few, many), "thirds" or "auto", default="auto"
        As in `shot_groups`.

    Returns
    -------
    breakdown : dict
        many, medium, few : float or None, accuracy over the rows of these classes, None without
        rows; balanced : float, mean accuracy of the classes with test rows;
        classes : dict of str to int, number of classes in each group; rule : str.
    """
    predictions = check_predictions(y, proba)
    groups, rule = shot_groups(train_counts, thresholds)
    n_classes = len(groups["many"])
    if n_classes != predictions.n_classes:
        raise ValueError(
            f"train_counts names {n_classes} classes but proba has {predictions.n_classes} columns."
        )
    right = predictions.correct.astype(float)
    result: dict[str, Any] = {}
    for name, mask in groups.items():
        rows = mask[predictions.labels]
        result[name] = float(right[rows].mean()) if rows.any() else None
    counts = np.bincount(predictions.labels, minlength=n_classes)
    hits = np.bincount(predictions.labels, weights=right, minlength=n_classes)
    there = counts > 0
    result["balanced"] = float((hits[there] / counts[there]).mean())
    result["classes"] = {name: int(mask.sum()) for name, mask in groups.items()}
    return result | {"rule": rule}


def uneven(train_counts: npt.ArrayLike) -> bool:
    """Whether the largest class has at least twice the rows of the smallest."""
    counts = np.asarray(train_counts)
    return bool(len(counts) > 1 and counts.max() >= 2 * counts.min())
