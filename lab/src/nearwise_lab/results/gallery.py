"""Galleries: wrong and uncertain test rows, and the neighbors behind each prediction."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.image import imsave

from nearwise.data import Dataset
from nearwise.safe_files import plain
from nearwise_lab.results.measures import Predictions

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

    Returns list of (test position, "wrong" or "uncertain"): at most 8 of each; wrong ones first,
    the surest first. A right answer counts as uncertain below a probability of 0.95.

    Parameters
    ----------
    y : int ndarray of shape (n_test,)
        True class positions.
    proba : ndarray of shape (n_test, n_classes)
        Predicted probabilities.
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

    Returns dict: JSON-ready: image_shape, columns, classes and the rows with their neighbors.

    Parameters
    ----------
    model : fitted classifier with `explain`
        Queried once, for the rows shown.
    dataset : Dataset
        Gives the raw rows.
    test_index : int64 ndarray of shape (n_test,)
        Positions of the test rows in `dataset`.
    predictions : Predictions
        Of the same rows, in the same order.
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


MAX_COLUMNS = 8
SIDE = 64  # screen pixels of a small image in the PNG: whole pixels, crisp in every viewer


@dataclass(frozen=True)
class Shown:
    """A row as the page shows it.

    Attributes
    ----------
    image : str, optional
        PNG as a data URI, for rows that are images.
    values : list of str
        Cells in the order of the gallery's columns, for rows of a table.
    """

    image: str | None
    values: list[str]


@dataclass(frozen=True)
class ShownNeighbor:
    """A neighbor beside its query; `agrees`: whether its label is the true one."""

    label: str
    weight: float
    distance: float
    agrees: bool
    row: Shown


@dataclass(frozen=True)
class Example:
    """A test row with its prediction and its neighbors, strongest first."""

    why: str
    true: str
    predicted: str
    confidence: float
    true_probability: float
    null_mass: float
    other_mass: float
    row: Shown
    neighbors: list[ShownNeighbor]


@dataclass(frozen=True)
class Gallery:
    """What the page shows of one data set and method."""

    dataset: str
    method: str
    seed: int
    columns: list[str]
    wrong: list[Example]
    uncertain: list[Example]


def make_page_gallery(dataset: str, method: str, seed: int, stored: dict[str, Any]) -> Gallery:
    """Turn a stored gallery into what the page shows.

    Returns Gallery: images as PNG; tables cut to the columns in which the shown rows differ most.

    Parameters
    ----------
    dataset, method, seed
        Whose gallery it is.
    stored : dict
        As `make_gallery` makes it, read from JSON: image_shape, columns, classes, rows.
    """
    rows = stored["rows"]
    shape = stored.get("image_shape")
    if not shape and stored.get("kind") == "images" and rows:
        shape = np.shape(rows[0]["row"])
    names = stored.get("columns") or [f"f{i}" for i in range(len(rows[0]["row"]) if rows else 0)]
    # Single numbers of an image or an embedding mean nothing to a reader.
    bare = bool(shape) or stored.get("kind") == "embeddings"
    kept = [] if bare else _telling_columns(rows, len(names))
    show: _ImageShower | _PhotoShower | _TableShower = _TableShower(kept)
    if shape:
        photos = stored.get("kind") == "images"
        show = _PhotoShower(shape) if photos else _ImageShower(shape, rows)
    examples = [_example(row, stored["classes"], show) for row in rows]
    return Gallery(
        dataset,
        method,
        seed,
        [names[i] for i in kept],
        [e for e in examples if e.why == "wrong"],
        [e for e in examples if e.why == "uncertain"],
    )


def _example(row: dict[str, Any], classes: list[str], show: Any) -> Example:
    neighbors = [
        ShownNeighbor(
            str(n["label"]), n["weight"], n["distance"], str(n["label"]) == row["true"],
            show(n["row"]),
        )
        for n in row["neighbors"]
    ]  # fmt: skip
    shown = sum(n.weight for n in neighbors)
    return Example(
        row["why"],
        row["true"],
        row["predicted"],
        max(row["proba"]),
        row["proba"][classes.index(row["true"])],
        row["null_mass"],
        max(0.0, 1.0 - row["null_mass"] - shown),
        show(row["row"]),
        neighbors,
    )


class _ImageShower:
    """Draw rows as grey images, dark ink on white, one scale for the gallery."""

    def __init__(self, shape: Sequence[int], rows: Sequence[dict[str, Any]]) -> None:
        self.shape = tuple(shape)
        values = [row["row"] for row in rows]
        values += [n["row"] for row in rows for n in row["neighbors"] if n["row"] is not None]
        self.low = float(np.min(values)) if values else 0.0
        self.high = float(np.max(values)) if values else 1.0

    def __call__(self, row: Sequence[float] | None) -> Shown:
        if row is None:
            return Shown(None, [])
        pixels = np.asarray(row, dtype=np.float64).reshape(self.shape)
        return Shown(png_uri(pixels, self.low, self.high), [])


class _PhotoShower:
    """Draw rows of uint8 pixels as they are: (h, w), (h, w, 1) or (h, w, 3), 0 is black."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)

    def __call__(self, row: Any) -> Shown:
        if row is None:
            return Shown(None, [])
        pixels = np.asarray(row, dtype=np.float64).reshape(self.shape)
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels[:, :, 0]
        return Shown(png_uri(pixels, 255.0, 0.0), [])


class _TableShower:
    """Pick the chosen columns of a row, numbers shortened."""

    def __init__(self, kept: Sequence[int]) -> None:
        self.kept = kept

    def __call__(self, row: Sequence[Any] | None) -> Shown:
        return Shown(None, ["" if row is None else _text(row[i]) for i in self.kept])


def png_uri(pixels: np.ndarray, low: float, high: float) -> str:
    """Draw an image as a PNG data URI.

    Parameters
    ----------
    pixels : ndarray of shape (h, w) or (h, w, 3)
        Grey values, or red, green and blue in 0..255.
    low, high : float
        Grey values that are white and black; colors are drawn as they are.
    """
    times = max(1, SIDE // max(pixels.shape[:2]))
    enlarged = pixels.repeat(times, axis=0).repeat(times, axis=1)
    buffer = io.BytesIO()
    if enlarged.ndim == 3:
        imsave(buffer, enlarged.round().clip(0, 255).astype(np.uint8), format="png")
        return _uri(buffer)
    if low > high:
        map_name, low, high = "gray", high, low
    else:
        map_name, high = "gray_r", max(high, low + 1e-9)
    imsave(buffer, enlarged, cmap=map_name, vmin=low, vmax=high, format="png")
    return _uri(buffer)


def _uri(buffer: io.BytesIO) -> str:
    return _PREFIX + base64.b64encode(buffer.getvalue()).decode()


_PREFIX = "data:image/png;base64,"


def _telling_columns(rows: Sequence[dict[str, Any]], n_columns: int) -> list[int]:
    """At most eight columns, in their order: those with the most distinct values shown."""
    shown = [row["row"] for row in rows]
    shown += [n["row"] for row in rows for n in row["neighbors"] if n["row"] is not None]
    distinct = [-len({str(row[i]) for row in shown}) for i in range(n_columns)]
    return sorted(np.argsort(distinct, kind="stable")[:MAX_COLUMNS].tolist())


def _text(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, float):
        return "missing" if value != value else f"{value:.4g}"
    return str(value)
