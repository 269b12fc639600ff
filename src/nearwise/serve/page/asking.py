"""Query view: a form from the model's columns, and the answer."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from nearwise.estimators.inputs.by_text import in_text
from nearwise.estimators.inputs.table import TableEncoder, ready_embeddings
from nearwise.estimators.live import Version
from nearwise.estimators.number_query import NumberQuery
from nearwise.estimators.online.feedback import known_rows
from nearwise.estimators.query import Query
from nearwise.estimators.uncertainty.column_shares import column_shares
from nearwise.html.neighbors import is_missing
from nearwise.serve import numbers
from nearwise.serve.asked_rows import Ask
from nearwise.serve.bodies import Rows, rows_for
from nearwise.serve.problems import ProblemError
from nearwise.serve.service import task_of
from nearwise.warn import collected_warnings

Form = dict[str, str | list[str]]
N_NEIGHBORS = 8
_MOST_CHOICES = 30  # categories in a plain list; more get a search field
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


def empty_form(version: Version, remembered: int | None) -> FormContent:
    """Make the form, filled with a remembered row if an id is given."""
    values: dict[str, Any] = {}
    if remembered is not None:
        values = version.fitted.look_up([remembered])[0].row  # UnknownIdError becomes 404
    return _form_of(version).content(remembered, values)


class _TableForm:
    """A form with a field for each column that the model uses."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.encoder: Any = version.fitted.predictor.encoder

    def content(self, remembered: int | None, values: dict[str, Any]) -> FormContent:
        """Make the form, filled with the values of a remembered row if given."""
        fields = [
            _field(self.version, self.encoder, name, values.get(name))
            for name in self.encoder.columns
            if name not in self.encoder.left_out
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

    def content(self, remembered: int | None, values: dict[str, Any]) -> FormContent:
        text = ", ".join(repr(values[name]) for name in self.encoder.columns) if values else ""
        return FormContent("embedding", [], text, remembered, None)

    def rows(self, form: Form, remembered: int | None) -> Any:
        words = str(form.get("features", "")).replace(",", " ").split()
        if not words:
            raise ProblemError(422, "There are no numbers yet. Paste some, or choose a row.")
        values = [None if word == "nan" else _number(word, "features") for word in words]
        return rows_for(self.version, Rows(resize=False, features=[values]))

    def shown(self, known: Version, rows: Any, before: Any) -> dict[str, Any]:
        return {"row": before.row, "pixels": None, "shares": None}


class _ImageForm(_TableForm):
    """A form for an image."""

    def content(self, remembered: int | None, values: dict[str, Any]) -> FormContent:
        return FormContent("image", [], "", remembered, values.get("image"))

    def rows(self, form: Form, remembered: int | None) -> Any:
        text = str(form.get("image", ""))
        if not text and remembered is not None:
            return self.version.fitted.look_up([remembered])[0].row["image"][None]
        if not text:
            raise ProblemError(422, "There is no image yet. Choose one, or a remembered row.")
        return rows_for(self.version, Rows(images=[text.rpartition(",")[2]], resize=True))

    def shown(self, known: Version, rows: Any, before: Any) -> dict[str, Any]:
        return {"row": None, "pixels": rows[0], "shares": None}


def _form_of(version: Version) -> _TableForm:
    """Return the form for the rows of a model; many unnamed numbers are one list."""
    encoder: Any = version.fitted.predictor.encoder
    if encoder.kind == "images":
        return _ImageForm(version)
    nameless = isinstance(version.fitted.rows, np.ndarray) and ready_embeddings(encoder)
    return (_EmbeddingForm if nameless else _TableForm)(version)


def _field(version: Version, encoder: TableEncoder, name: str, value: Any) -> Field:
    kind = encoder.kinds[name]
    missing = is_missing(value)
    if kind == "category":
        options = encoder.categories[name]
        texts, hint = list(map(in_text, options)), f"{len(options)} values"
        text = "" if missing else in_text(value)
        if len(options) > _MOST_CHOICES:
            return Field(name, kind, f"{hint}; type to search", text, texts[:_MOST_LISTED], True)
        chosen = str(texts.index(text)) if text in texts else ""
        return Field(name, kind, hint, chosen, texts)
    shown = "" if missing else str(int(value) if isinstance(value, bool) else value)
    rows = version.fitted.rows
    is_frame = isinstance(rows, pd.DataFrame)
    column = rows[name] if is_frame else pd.Series(rows[:, encoder.columns.index(name)])
    if kind == "number":
        given = pd.to_numeric(column, errors="coerce").astype(float)
        about = "" if version.fitted.holds_memory else "about "
        ends = f"{about}{given.min():.6g} to {given.max():.6g}, median {given.median():.6g}"
        return Field(name, kind, ends, shown, [])
    found = column.dropna()
    return Field(name, kind, f"such as {found.iloc[0]}" if len(found) else "", shown, [])


@dataclass(frozen=True)
class Answered:
    """Content of an answer.

    `explanation` includes the user's changes: rows switched `off` and changed `labels`, by row id;
    `before` excludes them and holds the neighbors. `given` is the label of a remembered row that
    was queried with itself left out. `rows` is the query, one row in the model's input form; `row`
    or `pixels` are its display form. `shares` split the distances by column; `warnings` concern
    values that were converted.
    """

    explanation: Any
    before: Any
    is_changed: bool
    off: list[int]
    labels: dict[int, Any]
    remembered: int | None
    given: Any
    rows: Any
    row: dict[str, Any] | None
    pixels: Any
    shares: np.ndarray | None
    warnings: list[str]
    novelty_p: float | None = None


def answer(version: Version, form: Form) -> Answered:
    """Answer a form, with warnings about its row.

    Raises
    ------
    ProblemError
        404 if a row is not remembered, 422 if the form cannot be read.
    """
    off = [_id(text) for text in several(form, "off")]
    with collected_warnings() as warnings:
        labels = {
            _id(name.removeprefix("as.")): label_in(version, text)[0]
            for name, text in form.items()
            if name.startswith("as.") and text != "" and _id(name.removeprefix("as.")) not in off
        }
        remembered, itself = _remembered(form)
        given = version.fitted.look_up(itself)[0].label if itself else None
        asked = _form_of(version)
        rows = asked.rows(form, remembered)
        known = version.if_changed(itself)
        before, novelty_p = _explained(version, known, rows)
        now = before
        if off or labels:
            changed = version.if_changed([*itself, *off], labels)
            now, novelty_p = _explained(version, changed, rows)
        shown = asked.shown(known, rows, before)
    return Answered(
        explanation=now,
        before=before,
        is_changed=bool(off or labels),
        off=off,
        labels=labels,
        remembered=remembered,
        given=given,
        rows=rows,
        warnings=list(dict.fromkeys(warnings)),
        novelty_p=novelty_p,
        **shown,
    )


def _remembered(form: Form) -> tuple[int | None, list[int]]:
    """Id of the remembered row that fills a form, or None; and as a list."""
    row = _id(str(form["remembered"])) if form.get("remembered") else None
    return row, [] if row is None else [row]


def predicted(version: Version, form: Form) -> tuple[Any, Any]:
    """Return the row of a form, and its most probable class or its predicted number."""
    remembered, itself = _remembered(form)
    rows = _form_of(version).rows(form, remembered)
    known = version.if_changed(itself)
    found = task_of(version.fitted).answers(known, [known.encoded(rows)], Ask())
    return rows, next(iter(found.values.values()))[0]


def remembered_as(version: Version, form: Form) -> tuple[Any, np.ndarray]:
    """Return the row of a form and its label."""
    return _form_of(version).rows(form, None), label_in(version, form.get("label", ""))


def label_in(version: Version, text: str | list[str]) -> np.ndarray:
    """Read a label, (1,): the position of a class, or a number."""
    if task_of(version.fitted) is numbers:
        return np.array([_number(str(text).strip(), "target")])
    known: np.ndarray = version.fitted.classes
    return known[[_among(text, len(known), "class")]]


def _explained(version: Version, changed: Version, rows: Any) -> tuple[Any, float | None]:
    """Explain one row by the changed version, calibrated on the present one; with novelty."""
    judged_by, views = known_rows(version.fitted), changed.encoded(rows)
    if task_of(version.fitted) is numbers:
        query = NumberQuery(changed.fitted, views[0], judged_by=judged_by)
        (number,) = query.explanations(N_NEIGHBORS)
        return replace(number, source=(rows, 0)), float(query.novelty_p_value()[0])
    of_classes = Query(changed.fitted, views, explain=N_NEIGHBORS, judged_by=judged_by)
    (found,) = of_classes.explanations(trust=of_classes.can_judge())
    return replace(found, source=(rows, 0)), found.novelty_p_value


def _cell(encoder: TableEncoder, name: str, typed: str) -> Any:
    text = typed.strip()
    if not text:
        return None
    if encoder.kinds[name] == "category":
        known = encoder.categories[name]
        if len(known) > _MOST_CHOICES:  # the encoder looks up the text
            return typed if typed in map(in_text, known) else text
        return known[_among(text, len(known), name)]
    return _number(text, name) if encoder.kinds[name] == "number" else text


def _number(text: str, name: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise ProblemError(422, f"{name}: {text[:40]!r} is not a number.") from None
    if not math.isfinite(found):
        raise ProblemError(422, f"{name}: give a finite number, or nothing where it is missing.")
    return found


def _among(text: str | list[str], n: int, what: str) -> int:
    is_position = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10
    if not is_position or int(str(text)) >= n:
        raise ProblemError(422, f"{what}: there is no such choice.")
    return int(str(text))


def _id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ProblemError(422, f"{text[:40]!r} is not a row id.")
    return int(text)


def several(form: Form, name: str) -> list[str]:
    """Return all values of a form field."""
    found = form.get(name, [])
    return [found] if isinstance(found, str) else found
