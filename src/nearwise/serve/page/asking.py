"""Answers of the query view, with and without the changes that a person tries."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nearwise.estimators.live import Version
from nearwise.estimators.online.feedback import known_rows
from nearwise.estimators.query import SET_CONFIDENCE
from nearwise.html.card import Face, face_of
from nearwise.serve import numbers
from nearwise.serve.asked_rows import Answers, Ask
from nearwise.serve.page.forms import Form, form_of, row_id, typed_choice, typed_number
from nearwise.serve.service import task_of
from nearwise.serve.what_if import WhatIf, answered
from nearwise.warn import collected_warnings

N_NEIGHBORS = 8


@dataclass(frozen=True)
class Answered:
    """Content of an answer.

    `explanation` includes the user's changes: rows switched `off` and changed `labels`, by row id;
    `before` excludes them and holds the neighbors. `given` is the label of a remembered row that
    was queried with itself left out, and `face` what is shown with it, if anything. `rows` is the
    query, one row in the model's input form; `row` or `pixels` are its display form. `shares` split
    the distances by column; `warnings` concern values that were converted.
    """

    explanation: Any
    before: Any
    is_changed: bool
    off: list[int]
    labels: dict[int, Any]
    remembered: int | None
    given: Any
    face: Face | None
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
    off = [row_id(text) for text in several(form, "off")]
    with collected_warnings() as warnings:
        labels = {
            row_id(name.removeprefix("as.")): label_in(version, text)[0]
            for name, text in form.items()
            if name.startswith("as.") and text != "" and row_id(name.removeprefix("as.")) not in off
        }
        remembered = remembered_in(form)
        itself = [] if remembered is None else [remembered]
        own = next(iter(version.fitted.look_up(itself)), None)
        asked, changes = form_of(version), WhatIf(remembered, off, labels)
        rows = asked.rows(form, remembered)
        known = changes.before(version)
        before, novelty_p = _explained(version, known, rows)
        now = before
        if off or labels:
            now, novelty_p = _explained(version, changes.applied(version), rows)
        shown = asked.shown(known, rows, before)
    return Answered(
        explanation=now,
        before=before,
        is_changed=bool(off or labels),
        off=off,
        labels=labels,
        remembered=remembered,
        given=None if own is None else own.label,
        face=None if own is None or not own.show else face_of(own),
        rows=rows,
        warnings=list(dict.fromkeys(warnings)),
        novelty_p=novelty_p,
        **shown,
    )


def remembered_in(form: Form) -> int | None:
    """Id of the remembered row that fills a form, or None."""
    return row_id(str(form["remembered"])) if form.get("remembered") else None


def row_in(version: Version, form: Form) -> Any:
    """Return the row of a form in the model's input form."""
    return form_of(version).rows(form, remembered_in(form))


def predicted(version: Version, form: Form) -> Any:
    """Predict the most probable class, or the number, of the row of a form."""
    found = answers_to(version, row_in(version, form), remembered_in(form), Ask())
    return next(iter(found.values.values()))[0]


def answers_to(version: Version, rows: Any, remembered: int | None, ask: Ask) -> Answers:
    """Answer one row in the model's input form; a remembered one without itself."""
    known = version.if_changed([] if remembered is None else [remembered])
    answers: Answers = task_of(version.fitted).answers(known, [known.encoded(rows)], ask)
    return answers


def remembered_as(version: Version, form: Form) -> tuple[Any, np.ndarray]:
    """Return the row of a form and its label."""
    return row_in(version, form), label_in(version, form.get("label", ""))


def label_in(version: Version, text: str | list[str]) -> np.ndarray:
    """Read a label, (1,): the position of a class, or a number."""
    if task_of(version.fitted) is numbers:
        return np.array([typed_number(str(text).strip(), "target")])
    known: np.ndarray = version.fitted.classes
    return known[[typed_choice(text, len(known), "class")]]


def _explained(version: Version, changed: Version, rows: Any) -> tuple[Any, float | None]:
    """Explain one row by the changed version, calibrated on the present one; with novelty."""
    can_judge = known_rows(version.fitted).can_judge(SET_CONFIDENCE)
    confidence = SET_CONFIDENCE if can_judge else None
    found = answered(version, changed, rows, Ask(confidence, can_judge, n_neighbors=N_NEIGHBORS))
    assert found.explanations is not None  # requested
    shown = replace(found.explanations[0], source=(rows, 0))
    novelty_p = float(found.values["novelty_p"][0]) if can_judge else None
    if can_judge and found.classes is not None:
        held = list(found.classes[found.values["prediction_set"][0]])
        shown = replace(shown, novelty_p_value=novelty_p, prediction_set=held)
    return shown, novelty_p


def several(form: Form, name: str) -> list[str]:
    """Return all values of a form field."""
    found = form.get(name, [])
    return [found] if isinstance(found, str) else found
