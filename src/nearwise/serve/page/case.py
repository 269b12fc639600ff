"""Content of one case of a review: the row, what speaks for each label, and rows beside it."""

from dataclasses import dataclass, replace
from typing import Any

from nearwise.estimators.live import Version
from nearwise.estimators.noise.left_out import explain_left_out
from nearwise.estimators.uncertainty.column_shares import column_shares
from nearwise.html import Card, Face, make_card, neighbor_table
from nearwise.html.card import face_of, pixels_of
from nearwise.html.neighbors import used_first
from nearwise.html.numbers import cell, number, rounded_percent
from nearwise.names import are_positions
from nearwise.serve import numbers
from nearwise.serve.page.queue import Case, Decision, Queue
from nearwise.serve.service import task_of

_N_SOUGHT = 60  # neighbors among which both sides are sought
_N_SHOWN = 3  # neighbors of each side
_N_BESIDE = 4  # copies or nearest rows
_MOST_CELLS = 200
_LONGEST = 40  # characters of a label in a sentence


@dataclass(frozen=True)
class Side:
    """Neighbors that speak for a label: the given one, or the suggested one."""

    title: str
    card: Card


@dataclass(frozen=True)
class Beside:
    """A row beside the case, with the columns in which both differ."""

    id: int
    label: str
    face: Face
    differs: list[tuple[str, str, str]]


@dataclass(frozen=True)
class CaseContent:
    """What is shown of a case.

    `claim` says what the label is and what the model says. `cells` are columns and values of the
    row, the most telling first. `sides` are sought among `n_neighbors`. `label` and `suggested` are
    the present label and another one that the model finds more probable, or None. `target` fills
    the field of another target. `decision` was made about the row. `independent` is False if the
    model has learned the label. `is_past`: beyond the expected number of wrong labels.
    """

    case: Case
    claim: str
    face: Face
    cells: list[tuple[str, str]]
    is_embedding: bool
    sides: list[Side]
    n_neighbors: int
    beside: list[Beside]
    label: Any
    suggested: Any
    target: str
    decision: Decision | None
    independent: bool
    is_past: bool


def case_content(version: Version, queue: Queue, case: Case) -> CaseContent:
    """Make the content of a case about a remembered row; UnknownIdError if it is gone."""
    assert case.id is not None  # groups are listed
    fitted = version.fitted
    (row,) = fitted.look_up([case.id])
    of_numbers = task_of(fitted) is numbers
    issue = queue.issue(case.id)
    suggested = None if issue is None else issue["suggested"]
    if suggested is not None and (suggested == row.label or (of_numbers and case.kind != "label")):
        suggested = None
    explanation = explain_left_out(fitted, case.id, _N_SOUGHT)
    support, against = _chosen(explanation, row.label, suggested, of_numbers=of_numbers)
    encoder = fitted.predictor.encoder
    is_image, nameless = encoder.kind == "images", are_positions(list(row.row))
    shown = replace(support, neighbors=[*support.neighbors, *against.neighbors])
    shares = None
    if not (is_image or nameless) and shown.neighbors:
        own = fitted.rows_at(fitted.bank.positions([case.id]).tolist())
        shares = column_shares(fitted, own, [one.id for one in shown.neighbors])
    table = None if is_image else neighbor_table(shown, row.row, shares)
    card, n_support = make_card(shown, table), len(support.neighbors)
    parts = [card.neighbors[:n_support], card.neighbors[n_support:]]
    beside = _beside(version, case, row.row, nameless=nameless)
    names = list(used_first(row.row, encoder.left_out)) if table is None else table.columns
    names = [*names, *(name for name in row.row if name not in names)]
    return CaseContent(
        case=case,
        claim=_claim(issue, row.label, suggested, of_numbers=of_numbers),
        face=face_of(row),
        cells=[] if is_image else [(name, cell(row.row[name])) for name in names][:_MOST_CELLS],
        is_embedding=nameless,
        sides=[
            Side(title, replace(card, neighbors=part))
            for title, part in zip(_titles(row.label, suggested, of_numbers), parts, strict=False)
            if suggested is not None or not beside
        ],
        n_neighbors=len(explanation.neighbors),
        beside=beside,
        label=row.label,
        suggested=suggested,
        target=_target(row.label if suggested is None else suggested) if of_numbers else "",
        decision=queue.decisions.get(case.id),
        independent=bool(of_numbers or issue is None or issue["independent"]),
        is_past=case.kind == "label" and case.rank >= queue.n_expected,
    )


def _claim(issue: Any, label: Any, suggested: Any, *, of_numbers: bool) -> str:
    """Say what the label is, and what the model says without it."""
    if of_numbers:
        said = f"target {number(label)}"
        if issue is None:
            return f"{said}."
        low, high, middle = (_rounded(issue[name]) for name in ("low", "high", "suggested"))
        return f"{said}; the model says {middle} (90 % interval {low} to {high})."
    label, suggested = shortened(label), None if suggested is None else shortened(suggested)
    if issue is None:
        return f"labeled {label}."
    if suggested is None:
        return f"labeled {label}; the model agrees, {rounded_percent(issue['proba_suggested'])}."
    sure, other = (rounded_percent(issue[f"proba_{name}"]) for name in ("suggested", "given"))
    return f"labeled {label}; the model says {suggested}, {sure} ({label} {other})."


def shortened(label: Any) -> str:
    """Text of a label, cut if it is long."""
    text = str(label)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def _target(value: float) -> str:
    """Text of a target for a field."""
    return number(float(f"{value:.6g}"))


def _rounded(value: float) -> str:
    return number(float(f"{value:.4g}"))


def _titles(label: Any, suggested: Any, of_numbers: bool) -> list[str]:
    if suggested is None:
        return ["Neighbors"]
    each = (_rounded(one) if of_numbers else str(one) for one in (label, suggested))
    return [f"{'Nearer to' if of_numbers else 'For'} {one}" for one in each]


def _chosen(explanation: Any, label: Any, suggested: Any, *, of_numbers: bool) -> tuple[Any, Any]:
    """Return the explanation with neighbors for the present label, and for the suggested one.

    Targets count for the nearer of both. Without a suggestion all neighbors are in the first.
    """
    near, none = explanation.neighbors, replace(explanation, neighbors=[])
    if suggested is None:
        return replace(explanation, neighbors=near[: 2 * _N_SHOWN]), none
    if of_numbers:
        middle = (label + suggested) / 2
        support = [one for one in near if (one.target > middle) == (label > middle)]
        against = [one for one in near if (one.target > middle) != (label > middle)]
    else:
        support = [one for one in near if one.label == label]
        against = [one for one in near if one.label == suggested]
    support, against = support[:_N_SHOWN], against[:_N_SHOWN]
    return replace(explanation, neighbors=support), replace(explanation, neighbors=against)


def _beside(version: Version, case: Case, own: dict[str, Any], *, nameless: bool) -> list[Beside]:
    """List copies of a row, or the rows nearest to one that is unlike all others."""
    if case.kind not in ("copy", "outlier"):
        return []
    found = []
    for one in version.fitted.look_up(list(case.ids[:_N_BESIDE])):
        differs = [] if nameless or pixels_of(own) is not None else _differences(own, one.row)
        label = number(one.label) if task_of(version.fitted) is numbers else str(one.label)
        found.append(Beside(one.id, label, face_of(one), differs))
    return found


def _differences(own: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Column, value there, value here, of the columns that differ."""
    cells = [(name, cell(other[name]), cell(own[name])) for name in own]
    return [one for one in cells if one[1] != one[2]]
