"""Hypothetical changes of the memory: predictions without some rows, or with other labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nearwise.estimators.live import Version
from nearwise.estimators.online.feedback import known_rows
from nearwise.estimators.uncertainty.column_shares import column_shares
from nearwise.serve.asked_rows import Answers, Ask
from nearwise.serve.problems import ProblemError
from nearwise.serve.service import task_of

_MOST_SPLIT = 2**14  # rows x neighbors x columns of a request; 30 to 60 us each


@dataclass(frozen=True)
class WhatIf:
    """Hypothetical changes of a version.

    Parameters
    ----------
    remembered : int, optional
        Id of the remembered row that is queried; it is left out of its own neighbors.
    without : sequence of int
        Ids of rows that are left out.
    labels : mapping of int to label
        Other labels, or targets, by id.
    """

    remembered: int | None = None
    without: Sequence[int] = ()
    labels: Mapping[int, Any] = field(default_factory=dict)

    @property
    def itself(self) -> list[int]:
        """Id of the queried row, as a list."""
        return [] if self.remembered is None else [self.remembered]

    def applied(self, version: Version) -> Version:
        """Version with the changes; errors as in `Version.if_changed`."""
        return version.if_changed([*self.itself, *self.without], self.labels)

    def before(self, version: Version) -> Version:
        """Version without the queried row, and otherwise unchanged."""
        return version.if_changed(self.itself)


def answered(version: Version, changed: Version, rows: Any, ask: Ask) -> Answers:
    """Answer a query by a changed version, calibrated on the present one."""
    task = task_of(version.fitted)
    found: Answers = task.answers(
        changed, [changed.encoded(rows)], ask, judged_by=known_rows(version.fitted)
    )
    return replace(found, version=version.number)


def remembered_rows(version: Version, id: int) -> Any:
    """Return a remembered row in the model's input form; UnknownIdError if there is none."""
    held = version.fitted.holding([id])
    return held.rows_at(held.bank.positions([id]).tolist())


def with_column_shares(version: Version, rows: Any, found: Answers) -> Answers:
    """Add the share of each column in the distances to the neighbors, largest first.

    Raises
    ------
    ProblemError
        413 if this would take long, for many rows, neighbors and columns.
    ValueError
        For a model of images, as they have no columns.
    """
    assert found.explanations is not None
    names = version.fitted.predictor.encoder.columns
    n_parts = sum(len(one.neighbors) for one in found.explanations) * len(names)
    if n_parts > _MOST_SPLIT:
        raise ProblemError(
            413,
            f"column_shares of so many rows, neighbors and columns are {n_parts} numbers, more "
            f"than {_MOST_SPLIT}. Ask for fewer rows or neighbors at once.",
        )
    shares = []
    for at, one in enumerate(found.explanations):
        ids = [neighbor.id for neighbor in one.neighbors]
        row = rows[at : at + 1]
        of_row = column_shares(version.fitted, row, ids) if ids else np.zeros((0, len(names)))
        shares.append([_largest_first(names, each) for each in of_row])
    return replace(found, column_shares=shares)


def _largest_first(names: Sequence[str], shares: np.ndarray) -> dict[str, float]:
    order = np.argsort(-shares, kind="stable")
    return {str(names[at]): float(shares[at]) for at in order if shares[at] > 0}
