"""What is kept beside the records so that figures can be drawn later without fitting again."""

import io
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nearwise.data import Dataset
from nearwise.json_values import plain
from nearwise.lab.experiments.records import Record
from nearwise.safe_files import write_aside

FLOAT32_CELLS = 1_000_000
GALLERY_WRONG = 8
GALLERY_UNCERTAIN = 8
GALLERY_NEIGHBORS = 8
UNSURE_BELOW = 0.95  # top probability


@dataclass(frozen=True)
class Predictions:
    """Probabilities of one method for the test part of one split.

    Attributes
    ----------
    y : int64 ndarray of shape (n_test,)
        True class positions.
    proba : float64 ndarray of shape (n_test, n_classes)
        Rows sum to 1 (stored as float32, or float16 above a million cells; renormalised).
    test_index : int64 ndarray of shape (n_test,)
        Row positions in the data set.
    classes : list of str
        Class names by position.
    """

    y: np.ndarray
    proba: np.ndarray
    test_index: np.ndarray
    classes: list[str]


def artifact_path(
    folder: str | Path, what: str, dataset: str, method: str, seed: int, suffix: str
) -> Path:
    """Where an artifact of a row lies: folder/what/dataset/method-seedN.suffix."""
    return Path(folder) / what / _safe(dataset) / f"{_safe(method)}-seed{seed}.{suffix}"


def record_folder(folder: str | Path, record: Record) -> Path:
    """Where the artifacts of a record lie: the results folder itself for a comparison's rows.

    Rows of an experiment have a folder for each preset, experiment and condition, so that
    ``artifact_path(record_folder(folder, record), ...)`` is the record's own.
    """
    if not record.experiment:
        return Path(folder)
    noise = f"{record.noise_kind}-{record.noise:g}" if record.noise else ""
    where = (record.preset, record.experiment, record.condition, noise)
    return Path(folder, "artifacts", *(_safe(part) for part in where if part))


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip(".") or "_"


def save_predictions(path: Path, predictions: Predictions) -> None:
    """Write predictions as a compressed npz, aside and renamed."""
    small = predictions.proba.size <= FLOAT32_CELLS
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        y=predictions.y.astype(np.int32),
        proba=predictions.proba.astype(np.float32 if small else np.float16),
        test_index=predictions.test_index.astype(np.int64),
        classes=np.array(predictions.classes, dtype=np.str_),
    )
    write_aside(path, buffer.getvalue())


def load_predictions(path: Path) -> Predictions | None:
    """Read predictions; None where they were not kept."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as stored:
        proba = stored["proba"].astype(np.float64)
        return Predictions(
            stored["y"].astype(np.int64),
            proba / proba.sum(axis=1, keepdims=True),
            stored["test_index"],
            [str(c) for c in stored["classes"]],
        )


def save_json(path: Path, value: Any) -> None:
    """Write JSON, aside and renamed; numbers that are not finite become null."""
    write_aside(path, json.dumps(plain(value), ensure_ascii=False, allow_nan=False).encode())


def load_json(path: Path) -> Any:
    """Read JSON; None where it was not kept."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


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
            "row": _values(X, place),
            "neighbors": _neighbors(explanation),
        }
        for place, ((position, why), explanation) in enumerate(
            zip(chosen, explanations, strict=True)
        )
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


def _values(X: Any, place: int) -> list[Any]:
    row = X.iloc[place] if isinstance(X, pd.DataFrame) else np.ravel(X[place])
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
