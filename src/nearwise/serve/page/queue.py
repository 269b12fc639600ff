"""Queue of a review: its cases in order, what was decided about them, and the address of a case."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pandas as pd

from nearwise.estimators.noise.findings import KINDS
from nearwise.estimators.storage.journaling import ADD, KEEP, RELABEL, REMOVE, undone_by
from nearwise.memory import Change
from nearwise.serve.page.forms import Form, row_id
from nearwise.serve.problems import ProblemError
from nearwise.serve.service import Reviewed

MOST_AT_ONCE = 500  # rows of one decision
_KINDS = ("all", *KINDS, "decided", "selection")
_MOST_PAIRS = 12  # pairs of classes to filter by


@dataclass(frozen=True)
class Address:
    """Where someone is in the queue, as in the address of the page.

    `kind` is one of `Review.findings`, "all", "decided", or "selection" of the rows `ids`.
    `given` and `suggested` are texts of labels, `group` is the name of a group, "" for any. `row`
    is the case that is shown; `view` is "one" or "list", `page` counts pages of the list from 0.
    """

    kind: str = "all"
    given: str = ""
    suggested: str = ""
    group: str = ""
    row: int | None = None
    view: str = "one"
    page: int = 0
    ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, form: Form) -> "Address":
        """Read an address from a form; ProblemError (422) if it is none."""
        texts = {name: str(form.get(name, "")) for name in ("given", "suggested", "group")}
        kind, view = str(form.get("kind", "") or "all"), str(form.get("view", "") or "one")
        if kind not in _KINDS or view not in ("one", "list"):
            raise ProblemError(422, f"There is no such queue. Its kind is one of {_KINDS}.")
        ids = [one for one in str(form.get("selection", "")).split(",") if one]
        row, page = str(form.get("row", "")), str(form.get("page", ""))
        return cls(
            kind,
            **texts,
            row=row_id(row) if row else None,
            view=view,
            page=row_id(page) if page else 0,
            ids=tuple(dict.fromkeys(map(row_id, ids))),
        )

    @property
    def query(self) -> str:
        """Query part of the address, "" for the start."""
        shown = {
            "kind": "" if self.kind == "all" else self.kind,
            "given": self.given,
            "suggested": self.suggested,
            "group": self.group,
            "view": "" if self.view == "one" else self.view,
            "page": self.page or "",
            "row": "" if self.row is None else self.row,
        }
        return urlencode({name: value for name, value in shown.items() if value != ""})

    def but(self, **changed: Any) -> "Address":
        """Another address; the case and the page are left out unless given."""
        return replace(self, **({"row": None, "page": 0} | changed))


class Decision(NamedTuple):
    """Decision about a row: "keep", "relabel" or "remove", by a change of the journal."""

    action: str
    version: int
    label: Any = None
    former: Any = None


class Decided(NamedTuple):
    """Decisions by row id, newest last; and new ids of rows that were removed and restored."""

    decisions: dict[int, Decision]
    restored: dict[int, int]

    def now(self, row: int) -> int:
        """Present id of a row."""
        while row in self.restored:
            row = self.restored[row]
        return row


def decided_in(history: Sequence[Change]) -> Decided:
    """Decisions in a journal that were not undone."""
    undone, by_version = undone_by(history), {one.version: one for one in history}
    found, restored = dict[int, Decision](), dict[int, int]()
    for change in history:
        undoes = by_version.get(change.details.get("undoes") or 0)
        if undoes is not None:
            if undoes.kind == REMOVE and change.kind == ADD:
                restored |= dict(zip(undoes.ids, change.ids, strict=False))
            continue
        if change.kind not in (KEEP, RELABEL, REMOVE) or change.version in undone:
            continue
        for at, row in enumerate(change.ids):
            found.pop(row, None)  # the newest decision is the last one
            labels = [change.details.get(name) for name in ("labels", "former")]
            each = [None if one is None else one[at] for one in labels]
            found[row] = Decision(change.kind, change.version, *each)
    return Decided(found, restored)


class Case(NamedTuple):
    """A row or a group to check, see `Review.findings`; `rank` counts cases of a kind from 0."""

    kind: str
    id: int | None
    given: Any
    suggested: Any
    score: float
    ids: tuple[int, ...]
    what: str
    rank: int

    @property
    def name(self) -> str:
        """Name of a group."""
        return self.what.rpartition(": ")[0]


def cases_of(found: pd.DataFrame) -> list[Case]:
    """All cases of a table of findings."""
    ranks = found.groupby("kind").cumcount().tolist()
    names = ("kind", "id", "given", "suggested", "score", "ids", "what")
    cells = zip(*(found[name].tolist() for name in names), ranks, strict=True)
    return [
        Case(kind, None if pd.isna(row) else int(row), given, suggested, *rest)
        for kind, row, given, suggested, *rest in cells
    ]


class Queue:
    """Cases of a review at an address.

    Parameters
    ----------
    reviewed : Reviewed
    decided : Decided
    remembered : set of int
        Ids of the present rows.
    address : Address
    """

    def __init__(
        self, reviewed: Reviewed, decided: Decided, remembered: set[int], address: Address
    ) -> None:
        self.reviewed, self.address = reviewed, address
        self.decisions, self.remembered = decided.decisions, remembered
        self._ranked_as = {decided.now(row): row for row in decided.restored}
        self.every = []
        for one in cases_of(reviewed.found):
            others = tuple(row for row in map(decided.now, one.ids) if row in remembered)
            row = None if one.id is None else decided.now(one.id)
            self.every.append(one._replace(id=row, ids=others))
        if address.row is not None:
            self.address = replace(address, row=decided.now(address.row))
        self.address = replace(self.address, ids=tuple(map(decided.now, address.ids)))
        self._by_row = {one.id: one for one in reversed(self.every)}
        self.cases = self._here()
        self.open = [one for one in self.cases if self._is_listed(one)]

    def _is_listed(self, case: Case) -> bool:
        return self.address.kind == "decided" or self.is_open(case)

    def is_open(self, case: Case) -> bool:
        """Whether a case is still to be decided; groups are not decided."""
        if case.id is None:
            return True
        there = case.id in self.remembered and case.id not in self.decisions
        return there and (case.kind != "copy" or bool(case.ids))

    def _here(self) -> list[Case]:
        """Cases of the address in order, also decided ones; each row once."""
        kind, address = self.address.kind, self.address
        if kind == "selection":
            return self._ranked(address.ids)
        if kind == "decided":
            return [self.case(row) for row in reversed(self.decisions)]
        if kind == "group":
            groups = [one for one in self.every if one.kind == "group"]
            return self._ranked(self.group.ids) if self.group else groups
        found = [one for one in self.every if one.id is not None and kind in ("all", one.kind)]
        if kind == "label":
            for name in ("given", "suggested"):
                wanted = getattr(address, name)
                found = [one for one in found if wanted in ("", str(getattr(one, name)))]
        return list({one.id: one for one in reversed(found)}.values())[::-1]

    def _ranked(self, rows: Sequence[int]) -> list[Case]:
        """Cases of some rows, most suspicious first."""
        found = [self.case(row) for row in rows if row in self.remembered]
        return sorted(found, key=lambda one: -one.score)

    @property
    def group(self) -> Case | None:
        """The group whose rows are listed, or None."""
        named = (
            one for one in self.every if one.kind == "group" and one.name == self.address.group
        )
        return next(named, None) if self.address.group else None

    def case(self, row: int) -> Case:
        """Case of a row: the first finding about it, or else its prediction."""
        if row in self._by_row:
            return self._by_row[row]
        issue = self.issue(row)
        if issue is None:
            return Case("row", row, None, None, 0.0, (), "", 0)
        return Case("row", row, issue["given"], None, float(issue["suspicion"]), (), "", 0)

    def issue(self, row: int) -> Any:
        """Prediction of a row, see `Review.issues`; None if it was added since."""
        ranked = self._ranked_as.get(row, row)
        return self.reviewed.issues.loc[ranked] if ranked in self.reviewed.issues.index else None

    @property
    def shown(self) -> Case | None:
        """The case to show: that of the address, or the first open one."""
        row = self.address.row
        if row is None:
            return self.open[0] if self.open else None
        return next((one for one in self.cases if one.id == row), None) or self.case(row)

    def beside(self, step: int) -> int | None:
        """Row of the open case after (1) or before (-1) the shown one; None at the end."""
        case = self.shown
        ids = [one.id for one in self.cases]
        at = ids.index(case.id) if case is not None and case.id in ids else -1
        ahead = self.cases[at + 1 :] if step > 0 else self.cases[: max(at, 0)][::-1]
        return next((one.id for one in ahead if self._is_listed(one)), None)

    def after(self, rows: Sequence[int]) -> int | None:
        """Row of the next open case after decided ones; from the start if there is none after."""
        ids = [one.id for one in self.cases]
        last = max((ids.index(row) for row in rows if row in ids), default=-1)
        ahead = [*self.cases[last + 1 :], *self.cases[: last + 1]]
        return next((one.id for one in ahead if self._is_listed(one) and one.id not in rows), None)

    @property
    def counts(self) -> dict[str, int]:
        """Number of open cases by kind; each row counts once in "all"."""
        found = [one for one in self.every if self.is_open(one)]
        counts = Counter(one.kind for one in found)
        every = len({one.id for one in found if one.id is not None})
        return {"all": every, **{kind: counts[kind] for kind in KINDS}}

    @property
    def pairs(self) -> list[tuple[str, str, int]]:
        """Most frequent pairs of given and suggested labels that disagree, with their numbers."""
        of_label = [one for one in self.every if one.kind == "label" and self.is_open(one)]
        counts = Counter((str(one.given), str(one.suggested)) for one in of_label)
        return [(*pair, number) for pair, number in counts.most_common(_MOST_PAIRS)]

    @property
    def progress(self) -> dict[str, int]:
        """Number of decisions by action, and of all rows that are decided or open."""
        by_action = Counter(one.action for one in self.decisions.values())
        total = len(self.decisions) + self.counts["all"]
        return {one: by_action[one] for one in (RELABEL, KEEP, REMOVE)} | {"total": total}

    @property
    def n_expected(self) -> int:
        """Rank from which on labels that disagree are probably right."""
        return ceil(self.reviewed.expected.number)
