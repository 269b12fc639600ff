"""Test rows worth showing: wrong and uncertain ones, with the neighbors behind them."""

import math
from typing import Any

import numpy as np
import pandas as pd

from nearwise.data import Dataset
from nearwise.json_values import plain
from nearwise.report.predictions import Predictions

GALLERY_WRONG = 8
GALLERY_UNCERTAIN = 8
GALLERY_NEIGHBORS = 8
UNSURE_BELOW = 0.95  # top probability


def image_shape(dataset: Dataset) -> tuple[int, ...] | None:
    """Height and width, and 3 for colour, where the rows of a data set are images; else None.

    Columns named pixel... (any number that is a square) are taken as one grey image, row by row.
    """
    if dataset.kind == "images":
        height, width, channels = dataset.X.shape[1:]
        return (height, width) if channels == 1 else (height, width, channels)
    if not isinstance(dataset.X, pd.DataFrame):
        return None
    names = [str(c) for c in dataset.X.columns]
    side = math.isqrt(len(names))
    square = side > 1 and side * side == len(names)
    return (side, side) if square and all(n.startswith("pixel") for n in names) else None


def choose_gallery_rows(y: np.ndarray, proba: np.ndarray) -> list[tuple[int, str]]:
    """Pick the surest mistakes and the least sure right answers.

    Parameters
    ----------
    y : int ndarray of shape (n_test,)
        True class positions.
    proba : ndarray of shape (n_test, n_classes)
        Predicted probabilities.

    Returns
    -------
    list of (test position, "wrong" or "uncertain")
        At most 8 of each; wrong ones first, the surest first. A right answer counts as
        uncertain below a probability of 0.95.
    """
    top, guess = proba.max(axis=1), proba.argmax(axis=1)
    wrong = np.flatnonzero(guess != y)
    right = np.flatnonzero((guess == y) & (top < UNSURE_BELOW))
    wrong = wrong[np.argsort(-top[wrong], kind="stable")][:GALLERY_WRONG]
    right = right[np.argsort(top[right], kind="stable")][:GALLERY_UNCERTAIN]
    return [(int(i), "wrong") for i in wrong] + [(int(i), "uncertain") for i in right]


def make_gallery(
    model: Any, dataset: Dataset, test_index: np.ndarray, predictions: Predictions
) -> dict[str, Any]:
    """Explain the wrong and uncertain test rows with the neighbors behind each.

    Parameters
    ----------
    model : fitted classifier with `explain`
        Asked once, for the rows shown.
    dataset : Dataset
        Gives the raw rows.
    test_index : int64 ndarray of shape (n_test,)
        Positions of the test rows in `dataset`.
    predictions : Predictions
        Of the same rows, in the same order.

    Returns
    -------
    dict
        JSON-ready: image_shape, columns, classes and the rows with their neighbors.
    """
    chosen = choose_gallery_rows(predictions.y, predictions.proba)
    X, _ = dataset.rows(test_index[[i for i, _ in chosen]])
    explanations = model.explain(X) if chosen else []
    rows = [
        {
            "why": why,
            "test_row": int(test_index[position]),
            "true": predictions.classes[predictions.y[position]],
            "predicted": predictions.classes[int(predictions.proba[position].argmax())],
            "proba": predictions.proba[position].round(4),
            "null_mass": float(explanation.null_mass),
            "row": _values(X, i),
            "neighbors": _neighbors(explanation),
        }
        for i, ((position, why), explanation) in enumerate(zip(chosen, explanations, strict=True))
    ]
    columns = [str(c) for c in dataset.X.columns] if isinstance(dataset.X, pd.DataFrame) else None
    return {
        "kind": dataset.kind,
        "image_shape": image_shape(dataset),
        "columns": columns,
        "classes": predictions.classes,
        "target_name": dataset.target_name,
        "rows": rows,
    }


def _values(X: Any, i: int) -> list[Any]:
    row = X.iloc[i] if isinstance(X, pd.DataFrame) else np.ravel(X[i])
    return [_short(value) for value in row.tolist()]


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value if isinstance(value, (int, str, bool)) else str(value)


def _neighbors(explanation: Any) -> list[dict[str, Any]]:
    nearest = sorted(explanation.neighbors, key=lambda n: -n.weight)[:GALLERY_NEIGHBORS]
    shown = []
    for neighbor in nearest:
        row = neighbor.row.values() if isinstance(neighbor.row, dict) else plain(neighbor.row)
        if isinstance(neighbor.row, dict) and "image" in neighbor.row:
            row = np.ravel(neighbor.row["image"])
        shown.append(
            {
                "id": neighbor.id,
                "label": plain(neighbor.label),
                "distance": float(neighbor.distance),
                "weight": float(neighbor.weight),
                "row": None if row is None else [_short(plain(v)) for v in row],
            }
        )
    return shown
