"""Decisions of a review: one change of the journal for one or several rows, and their table."""

import csv
import io
from typing import Any

import numpy as np

from nearwise.estimators import LiveModel
from nearwise.estimators.storage.journaling import KEEP, RELABEL
from nearwise.memory import Change
from nearwise.serve import numbers
from nearwise.serve.page.asking import label_in
from nearwise.serve.page.forms import Form
from nearwise.serve.page.queue import MOST_AT_ONCE, Queue
from nearwise.serve.problems import ProblemError
from nearwise.serve.service import task_of

_SAID = {"keep": "label kept", "remove": "removed"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters that spreadsheets run


def decide(live: LiveModel, queue: Queue | None, rows: list[int], form: Form) -> Change:
    """Make the change that a form asks for; ProblemError (422) if it is not one.

    `queue` has the suggestions that the action "accept" takes.
    """
    if not 1 <= len(rows) <= MOST_AT_ONCE:
        raise ProblemError(422, f"Choose between 1 and {MOST_AT_ONCE} rows, not {len(rows)}.")
    action = form.get("action")
    if action == "keep":
        return live.keep(rows)
    if action == "remove":
        return live.remove(rows)
    if action == "accept" and queue is not None:
        return _accept(live, queue, rows)
    if action != "relabel":
        raise ProblemError(422, "Choose a label, or keep or remove the row.")
    return live.relabel(rows, np.repeat(label_in(live.now, form.get("label", "")), len(rows)))


def _accept(live: LiveModel, queue: Queue, rows: list[int]) -> Change:
    """Give rows their suggested labels; those whose suggestion is their label are left out."""
    of_numbers = task_of(live.now.fitted) is numbers
    changed = {}
    for one in live.now.fitted.look_up(rows):
        issue = queue.issue(one.id)
        if issue is None:
            continue
        suggested = issue["suggested"]
        if of_numbers:
            suggested = float(f"{suggested:.6g}")
        if suggested != one.label:
            changed[one.id] = suggested
    if not changed:
        raise ProblemError(422, "The model suggests the present label for each of these rows.")
    return live.relabel(list(changed), np.array(list(changed.values())))


def said_of(change: Change) -> str:
    """Say what a decision did: "Row 17: relabeled dog."."""
    one = len(change.ids) == 1
    rows = f"Row {change.ids[0]}" if one else f"{len(change.ids)} rows"
    if change.kind != RELABEL:
        said = _SAID[change.kind]
        return f"{rows}: {said if one or change.kind != KEEP else 'labels kept'}."
    labels = set(map(str, change.details["labels"]))
    return f"{rows}: relabeled {labels.pop() if len(labels) == 1 else 'as suggested'}."


def written(queue: Queue) -> str:
    """Write findings and decisions as CSV."""
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    names = ("kind", "id", "given", "suggested", "score", "decision", "label", "change", "what")
    table.writerow(names)
    there = set()
    for case in queue.every:
        there.add(case.id)
        decision = queue.decisions.get(case.id) if case.id is not None else None
        own = (case.kind, case.id, case.given, case.suggested, f"{case.score:.6g}")
        table.writerow(map(_cell, (*own, *_decision(decision), case.what)))
    for row, decision in queue.decisions.items():
        if row not in there:
            own = ("", row, decision.former, None, "")
            table.writerow(map(_cell, (*own, *_decision(decision), "")))
    return file.getvalue()


def _decision(decision: Any) -> tuple[Any, Any, Any]:
    return ("", "", "") if decision is None else (decision.action, decision.label, decision.version)


def _cell(value: Any) -> Any:
    """Make a cell that a spreadsheet does not run as a formula."""
    risky = isinstance(value, str) and value.startswith(_FORMULA)
    return f"'{value}" if risky else value
