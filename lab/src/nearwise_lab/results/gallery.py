"""Galleries: wrong and uncertain test rows, and the neighbors behind each prediction."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.image import imsave

from nearwise.data import Dataset
from nearwise.html.card import Card, CardNeighbor, Chip, Face, sureness
from nearwise.html.numbers import rounded_percent
from nearwise.safe_files import plain
from nearwise_lab.results.measures import Cell, Predictions, Table

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
    """Pick the most confident errors and least confident hits by y (n,) and proba (n, classes).

    Returns (test position, "wrong" or "uncertain"): at most 8 of each; wrong ones first, the surest
    first. A right answer counts as uncertain below a probability of 0.95.
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

    `model.explain` is asked once, for the rows shown, which are at `test_index` of the data set;
    `predictions` are of the same rows in the same order. The dict is ready for JSON.
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
MAX_DIFFERENCES = 3  # columns of a neighbor on a card
MAX_ROWS = 5  # of a table, each with its neighbors
SIDE = 64  # screen pixels of a small image in the PNG: whole pixels, crisp in every viewer


@dataclass(frozen=True)
class Shown:
    """A row as the page shows it: a PNG as a data URI, or cells for the gallery's columns."""

    image: str | None
    values: list[str]


@dataclass(frozen=True)
class ShownNeighbor:
    """A neighbor of a shown row; `agrees`: whether its label is the true one."""

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

    def card(self, columns: list[str]) -> Card:
        """Make a card of the example; a neighbor agrees if it has the true label."""
        sure = Chip(*sureness(self.confidence), "Predicted probability of the class.")
        truth = Chip(f"true: {self.true}, {rounded_percent(self.true_probability)}", "poor", "")
        right = Chip("right", "good", "")
        largest = max((n.weight for n in self.neighbors), default=1.0) or 1.0
        shown = [
            CardNeighbor(
                id=None,
                label=n.label,
                weight=n.weight,
                bar=n.weight / largest,
                agrees=n.agrees,
                distance=n.distance,
                face=Face(n.row.image),
                differs=self._differences(n, columns),
            )
            for n in self.neighbors
        ]
        chips = [sure, truth if self.why == "wrong" else right]
        face = Face(self.row.image)
        return Card("", self.predicted, chips, face, shown, self.null_mass, self.other_mass)

    def _differences(
        self, neighbor: ShownNeighbor, columns: list[str]
    ) -> list[tuple[str, str, str]]:
        pairs = zip(columns, neighbor.row.values, self.row.values, strict=True)
        return [one for one in pairs if one[1] not in ("", one[2])][:MAX_DIFFERENCES]

    @property
    def prediction(self) -> str:
        """Predicted label with its confidence, and the true label of an error."""
        prediction = f"{self.predicted} ({100 * self.confidence:.0f} %)"
        return f"{prediction}, true {self.true}" if self.why == "wrong" else prediction


@dataclass(frozen=True)
class Gallery:
    """Examples of one data set and method on the page."""

    dataset: str
    method: str
    seed: int
    columns: list[str]
    wrong: list[Example]
    uncertain: list[Example]

    def parts(self) -> list[tuple[str, list[Example]]]:
        """Wrong and unsure examples with title texts, without empty lists."""
        unsure = ("where {} was right but unsure", self.uncertain)
        found = [("where {} was wrong", self.wrong), unsure]
        return [part for part in found if part[1]]

    @property
    def holds_images(self) -> bool:
        """Whether the examples are images."""
        return any(e.row.image for _, examples in self.parts() for e in examples)

    def tables(self) -> list[Table]:
        """Lay examples that are no images out: each row with its strongest neighbors."""
        tables = []
        for words, examples in self.parts():
            table = Table(
                f"{self.dataset}, {words.format(self.method)}, seed {self.seed}",
                "Each test row with its strongest neighbors: labels, attention weights, distances.",
                ["row", "label", "weight", "distance", *self.columns],
            )
            for number, e in enumerate(examples[:MAX_ROWS], start=1):
                rest = f"null neighbor {100 * e.null_mass:.0f} %, others {100 * e.other_mass:.0f} %"
                query = [Cell(e.true, "best"), Cell(e.prediction, "", rest), Cell("")]
                table.rows.append((f"query {number}", [*query, *map(Cell, e.row.values)]))
                for rank, n in enumerate(e.neighbors, start=1):
                    cells = [Cell(n.label, "best" * n.agrees), Cell(f"{100 * n.weight:.1f} %"),
                             Cell(f"{n.distance:.3g}")]  # fmt: skip
                    table.rows.append((f"neighbor {rank}", [*cells, *map(Cell, n.row.values)]))
            tables.append(table)
        return tables


def make_page_gallery(dataset: str, method: str, seed: int, stored: dict[str, Any]) -> Gallery:
    """Convert a gallery of `make_gallery`, read from JSON, for the page.

    Images become PNGs, tables are cut to the columns in which the shown rows differ most.
    """
    rows = stored["rows"]
    shape = stored.get("image_shape")
    if not shape and stored.get("kind") == "images" and rows:
        shape = np.shape(rows[0]["row"])
    names = stored.get("columns") or [f"f{i}" for i in range(len(rows[0]["row"]) if rows else 0)]
    # Single numbers of an image or an embedding mean nothing to a reader.
    bare = bool(shape) or stored.get("kind") == "embeddings"
    kept = [] if bare else _telling_columns(rows, len(names))
    show = _shower(rows, shape, stored.get("kind") == "images", kept)
    examples = [_example(row, stored["classes"], show) for row in rows]
    wrong, uncertain = ([e for e in examples if e.why == why] for why in ("wrong", "uncertain"))
    return Gallery(dataset, method, seed, [names[i] for i in kept], wrong, uncertain)


def _example(row: dict[str, Any], classes: list[str], show: Any) -> Example:
    neighbors = [
        ShownNeighbor(
            str(n["label"]), n["weight"], n["distance"], str(n["label"]) == row["true"],
            show(n["row"]),
        )
        for n in row["neighbors"]
    ]  # fmt: skip
    rest = 1.0 - row["null_mass"] - sum(n.weight for n in neighbors)
    return Example(
        row["why"], row["true"], row["predicted"], max(row["proba"]),
        row["proba"][classes.index(row["true"])], row["null_mass"], max(0.0, rest),
        show(row["row"]), neighbors,
    )  # fmt: skip


def _shower(
    rows: Sequence[dict[str, Any]], shape: Any, photos: bool, kept: Sequence[int]
) -> Callable[[Any], Shown]:
    """Show rows as photos (uint8, 0 is black), as grey images (dark ink on white), or as cells."""
    values = _shown_rows(rows) if shape and not photos else []
    low, high = (255.0, 0.0) if photos else (float(np.min(values or 0)), float(np.max(values or 1)))

    def show(row: Any) -> Shown:
        if not shape:
            return Shown(None, ["" if row is None else _text(row[i]) for i in kept])
        if row is None:
            return Shown(None, [])
        pixels = np.asarray(row, dtype=np.float64).reshape(tuple(shape))
        grey = pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels
        return Shown(png_uri(grey, low, high), [])

    return show


def _shown_rows(rows: Sequence[dict[str, Any]]) -> list[Any]:
    shown = [row["row"] for row in rows]
    return shown + [n["row"] for row in rows for n in row["neighbors"] if n["row"] is not None]


def png_uri(pixels: np.ndarray, low: float, high: float) -> str:
    """Draw an image, grey (h, w) or in color (h, w, 3) of 0..255, as a PNG data URI.

    `low` and `high` are the grey values that are white and black.
    """
    times = max(1, SIDE // max(pixels.shape[:2]))
    image = pixels.repeat(times, axis=0).repeat(times, axis=1)
    if image.ndim == 2:
        ink = np.clip((image - low) / ((high - low) or 1e-9), 0, 1)
        image = np.repeat(255 * (1 - ink)[:, :, None], 3, axis=2)
    buffer = io.BytesIO()
    imsave(buffer, image.round().clip(0, 255).astype(np.uint8), format="png")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _telling_columns(rows: Sequence[dict[str, Any]], n_columns: int) -> list[int]:
    """Choose at most eight columns with the most distinct values, in their order."""
    distinct = [-len({str(row[i]) for row in _shown_rows(rows)}) for i in range(n_columns)]
    return sorted(np.argsort(distinct, kind="stable")[:MAX_COLUMNS].tolist())


def _text(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, float):
        return "missing" if value != value else f"{value:.4g}"
    return str(value)
