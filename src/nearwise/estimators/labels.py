"""Checks on labels: their classes, the sizes of these, and labels that come later."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d


def check_labels(y: Any, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes and each row's class position, int64 (n,)."""
    if y is None:
        raise ValueError(
            "This AttnKNNClassifier estimator requires y to be passed, but the target y is None."
        )
    if isinstance(y, torch.Tensor):
        y = y.detach().cpu().numpy()
    values = column_or_1d(y, warn=True)
    if len(values) != n_rows:
        raise ValueError(
            f"X has {n_rows} rows but y has {len(values)} labels. Give one label a row."
        )
    missing = pd.isna(values)
    if missing.any():
        raise ValueError(
            f"y holds NaN or missing labels in {int(missing.sum())} of {n_rows} rows. Drop them."
        )
    try:
        check_classification_targets(values)
    except ValueError as error:
        if "continuous" not in str(error):
            raise
        raise ValueError(
            f"Unknown label type: continuous. y holds numbers such as {values[0]}, a quantity "
            f"rather than a class ({len(np.unique(values))} different ones in {n_rows} rows). Name "
            "the column that holds classes, or cut the numbers into ranges first (pandas.cut)."
        ) from error
    classes, codes = np.unique(values, return_inverse=True)
    return classes, codes.astype(np.int64)


def positions_among(known: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """Positions of labels among known classes, new ones after them; and the new classes.

    Raises
    ------
    ValueError
        If text meets numbers: "1" and 1 would become two classes.
    """
    is_text = [values.dtype.kind in "OUST" for values in (known, labels)]
    if is_text[0] != is_text[1]:
        kinds = ["text" if text else "numbers" for text in is_text]
        raise ValueError(
            f"The labels are {kinds[1]} ({labels.tolist()[0]!r}) but the classes are {kinds[0]} "
            f"({known.tolist()[0]!r}). Give labels of the kind the model was fitted with."
        )
    places = {label: place for place, label in enumerate(known.tolist())}
    fresh = [label for label in dict.fromkeys(labels.tolist()) if label not in places]
    places |= {label: len(places) + i for i, label in enumerate(fresh)}
    return np.array([places[label] for label in labels.tolist()], dtype=np.int64), fresh


def check_class_sizes(classes: np.ndarray, codes: np.ndarray) -> None:
    """Refuse a single class, and classes with one row, which nothing can be left out of."""
    counts = np.bincount(codes)
    if len(classes) < 2:
        raise ValueError(
            f"All {len(codes)} rows belong to one class, {classes.tolist()[0]!r}. A classifier "
            "needs at least 2 classes: add rows of another one."
        )
    single = [str(c) for c, count in zip(classes, counts, strict=True) if count == 1]
    if single:
        named = ", ".join(single[:5]) + (" ..." if len(single) > 5 else "")
        many = f"{len(single)} classes have a" if len(single) > 1 else "One class has a"
        raise ValueError(
            f"{many} single row ({named}); leaving it out leaves nothing to learn from. Fit "
            "without, and add such rows afterwards ('nearwise add', or add()), which learns new "
            "classes; or give at least 2 rows of each class."
        )
