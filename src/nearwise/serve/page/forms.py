"""Forms of the query view: a field per column, and what people type into them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nearwise.estimators.inputs.by_text import in_text
from nearwise.estimators.inputs.table import TableEncoder, ready_embeddings
from nearwise.estimators.live import Version
from nearwise.estimators.uncertainty.column_shares import column_shares
from nearwise.html.neighbors import is_missing
from nearwise.names import are_positions
from nearwise.serve.bodies import Rows
from nearwise.serve.problems import ProblemError
from nearwise.serve.rows import rows_for
from nearwise.serve.what_if import remembered_rows

Form = dict[str, str | list[str]]
_MOST_CHOICES = 30  # categories in a plain list; more get a search field
_N_BINS = 24  # of a histogram
_MOST_LISTED = 10_000  # categories in a form; rarer ones can be typed


@dataclass(frozen=True)
class Field:
    """A column in a form: `options` of a category, `hint` and `value` of all others.

    The value of a category is its position among the options. For many options (`is_searched`) it
    is the text instead, which may also be no option.
    """

    name: str
    kind: str
    hint: str
    value: str
    options: list[str]
    is_searched: bool = False
    histogram: "Histogram | None" = None


@dataclass(frozen=True)
class Histogram:
    """Remembered values of a column of numbers.

    `shares` (n_bins,) are bin heights from 0 to 1 between the values `low` and `high`, which hold
    98 % of the values; values beyond are in the outer bins. `ends` are the extreme values.
    """

    shares: list[float]
    low: float
    high: float
    ends: tuple[float, float]

    @classmethod
    def of(cls, values: np.ndarray) -> "Histogram | None":
        """Histogram of finite values; None for fewer than two different ones."""
        known = values[np.isfinite(values)]
        low, high = np.quantile(known, [0.01, 0.99]).tolist() if len(known) else (0.0, 0.0)
        if not low < high:
            low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
        if not low < high:
            return None
        counts, _ = np.histogram(known.clip(low, high), _N_BINS, (low, high))
        ends = float(known.min()), float(known.max())
        return cls((counts / counts.max()).round(3).tolist(), float(low), float(high), ends)


@dataclass(frozen=True)
class FormContent:
    """Content of the form: kind "table", "embedding" or "image".

    `remembered` is the id of the row that fills the form, and `picture` its pixels.
    """

    kind: str
    fields: list[Field]
    features: str
    remembered: int | None
    picture: Any


class _TableForm:
    """A form with a field for each column that the model uses."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.encoder: Any = version.fitted.predictor.encoder

    def content(self, remembered: int | None) -> FormContent:
        """Make the form, filled with a remembered row if an id is given."""
        encoder, values = self.encoder, dict[str, Any]()
        if remembered is not None:
            row = encoder.with_floats(remembered_rows(self.version, remembered))
            (values,) = encoder.described(row)
        known = encoder.with_floats(self.version.fitted.rows)
        fields = [
            _field(self.version, name, known[name], values.get(name))
            for name in encoder.columns
            if name not in encoder.left_out
        ]
        return FormContent("table", fields, "", remembered, None)

    def rows(self, form: Form, remembered: int | None) -> Any:
        """Parse the one row of a form into the model's input form."""
        used = (name for name in self.encoder.columns if name not in self.encoder.left_out)
        row = {
            name: _cell(self.encoder, name, str(form.get(f"c{at}", "")))
            for at, name in enumerate(used)
        }
        if isinstance(self.version.fitted.rows, np.ndarray):
            return rows_for(self.version, Rows(resize=False, features=[list(row.values())]))
        return rows_for(self.version, Rows(resize=False, rows=[row]))

    def shown(self, known: Version, rows: Any, before: Any) -> dict[str, Any]:
        """Return the parts of an answer that display the row."""
        ids = [one.id for one in before.neighbors]
        shares = column_shares(known.fitted, rows, ids) if ids else None
        return {"row": before.row, "pixels": None, "shares": shares}


class _EmbeddingForm(_TableForm):
    """Form for many unnamed numbers, as one list."""

    def content(self, remembered: int | None) -> FormContent:
        text = ""
        if remembered is not None:
            text = ", ".join(map(repr, remembered_rows(self.version, remembered)[0].tolist()))
        return FormContent("embedding", [], text, remembered, None)

    def rows(self, form: Form, remembered: int | None) -> Any:
        words = str(form.get("features", "")).replace(",", " ").split()
        if not words:
            raise ProblemError(422, "There are no numbers yet. Paste some, or choose a row.")
        values = [None if word == "nan" else typed_number(word, "features") for word in words]
        return rows_for(self.version, Rows(resize=False, features=[values]))

    def shown(self, known: Version, rows: Any, before: Any) -> dict[str, Any]:
        return {"row": before.row, "pixels": None, "shares": None}


class _ImageForm(_TableForm):
    """A form for an image."""

    def content(self, remembered: int | None) -> FormContent:
        picture = None if remembered is None else remembered_rows(self.version, remembered)[0]
        return FormContent("image", [], "", remembered, picture)

    def rows(self, form: Form, remembered: int | None) -> Any:
        text = str(form.get("image", ""))
        if not text and remembered is not None:
            return remembered_rows(self.version, remembered)
        if not text:
            raise ProblemError(422, "There is no image yet. Choose one, or a remembered row.")
        return rows_for(self.version, Rows(images=[text.rpartition(",")[2]], resize=True))

    def shown(self, known: Version, rows: Any, before: Any) -> dict[str, Any]:
        return {"row": None, "pixels": rows[0], "shares": None}


def form_of(version: Version) -> _TableForm:
    """Return the form for the rows of a model; many unnamed numbers are one list."""
    encoder: Any = version.fitted.predictor.encoder
    if encoder.kind == "images":
        return _ImageForm(version)
    nameless = isinstance(version.fitted.rows, np.ndarray) and ready_embeddings(encoder)
    return (_EmbeddingForm if nameless else _TableForm)(version)


def numbers_of_neighbors(version: Version, neighbors: list[Any]) -> dict[str, list[float]]:
    """Values of remembered rows in each column of numbers, for marks in the histograms."""
    encoder: Any = version.fitted.predictor.encoder
    if encoder.kind == "images" or are_positions(encoder.columns):
        return {}
    rows = encoder.with_floats(
        pd.DataFrame([one.row for one in neighbors], columns=encoder.columns)
    )
    used = (name for name in encoder.columns if encoder.kinds[name] == "number")
    return {name: rows[name].dropna().tolist() for name in used}


def _field(version: Version, name: str, column: pd.Series, value: Any) -> Field:
    encoder: Any = version.fitted.predictor.encoder
    kind, text = encoder.kinds[name], "" if is_missing(value) else in_text(value)
    if kind == "category":
        options = encoder.categories[name]
        texts, hint = list(map(in_text, options)), f"{len(options)} values"
        if len(options) > _MOST_CHOICES:
            return Field(name, kind, f"{hint}; type to search", text, texts[:_MOST_LISTED], True)
        chosen = str(texts.index(text)) if text in texts else ""
        return Field(name, kind, hint, chosen, texts)
    if kind == "number":
        about = "" if version.fitted.holds_memory else "about "
        ends = f"{about}{column.min():.6g} to {column.max():.6g}, median {column.median():.6g}"
        ends += " days" * (name in encoder.durations)
        return Field(name, kind, ends, text, [], histogram=Histogram.of(column.to_numpy()))
    found = column.dropna()
    return Field(name, kind, f"such as {found.iloc[0]}" if len(found) else "", text, [])


def _cell(encoder: TableEncoder, name: str, typed: str) -> Any:
    text = typed.strip()
    if not text:
        return None
    if encoder.kinds[name] == "category":
        known = encoder.categories[name]
        if len(known) > _MOST_CHOICES:  # the encoder looks up the text
            return typed if typed in map(in_text, known) else text
        return known[typed_choice(text, len(known), name)]
    return typed_number(text, name) if encoder.kinds[name] == "number" else text


def typed_number(text: str, name: str) -> float:
    """Read a number; ProblemError 422 for anything else."""
    try:
        found = float(text)
    except ValueError:
        raise ProblemError(422, f"{name}: {text[:40]!r} is not a number.") from None
    if not math.isfinite(found):
        raise ProblemError(422, f"{name}: give a finite number, or nothing where it is missing.")
    return found


def typed_choice(text: str | list[str], n: int, what: str) -> int:
    """Read the position of one of n choices; ProblemError 422 for anything else."""
    is_position = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10
    if not is_position or int(str(text)) >= n:
        raise ProblemError(422, f"{what}: there is no such choice.")
    return int(str(text))


def row_id(text: str) -> int:
    """Read the id of a row; ProblemError 422 for anything else."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ProblemError(422, f"{text[:40]!r} is not a row id.")
    return int(text)
