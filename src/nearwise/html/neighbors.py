"""Table of a row and its neighbors, side by side."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nearwise.names import are_positions

_MOST_COLUMNS = 24
_SPACE = "\N{NO-BREAK SPACE}"
_SHADES = 4


@dataclass(frozen=True)
class NeighborTable:
    """Content of a table of neighbors.

    Attributes
    ----------
    columns : list of str
        Columns shown: first those with most of the distances, then others that differ, then the
        rest; last columns that the model does not use.
    unused : list of bool
        Whether the model ignores the column; its cells are never marked.
    n_left_out : int
        Number of hidden columns: the numbers of an embedding, and those after the first 24.
    query : list or None
        Cells of the explained row.
    cells : list of list of (value, differs, shade)
        Cells of each neighbor; shade is 0 to 4, by the column's share of the distance.
    reasons : list of str
        Columns with the largest shares, per neighbor.
    telling : list of list of int
        Positions of the columns that differ, per neighbor, the most telling first.
    """

    columns: list[str]
    unused: list[bool]
    n_left_out: int
    query: list[Any] | None
    cells: list[list[tuple[Any, bool, int]]]
    reasons: list[str]
    telling: list[list[int]]


def neighbor_table(
    explanation: Any, row: dict[str, Any] | None = None, shares: np.ndarray | None = None
) -> NeighborTable:
    """Make the table of an explanation's neighbors.

    Parameters
    ----------
    explanation : Explanation
        Explanation of a table row.
    row : dict, optional
        The explained row.
    shares : ndarray of shape (n_neighbors, n_columns), optional
        Result of `column_shares`, in the order of the neighbors' columns. Without it, a difference
        is measured by the range of the column over these rows.
    """
    neighbors = explanation.neighbors
    names = list(neighbors[0].row) if neighbors else list(row or ())
    unused = [name in explanation.left_out for name in names]
    if shares is None:
        shares = np.zeros((len(neighbors), len(names)))
        apart = _contrasts(names, [one.row for one in neighbors], row or {})
    else:
        apart = shares
    differs = [
        [row is not None and not idle and not _same(one.row[name], row.get(name))
         for name, idle in zip(names, unused, strict=True)]
        for one in neighbors
    ]  # fmt: skip
    n_differing = np.array(differs, dtype=int).reshape(len(neighbors), len(names)).sum(axis=0)
    order = np.lexsort([-n_differing, -shares.sum(axis=0).round(9), unused])  # last key first
    shown = order[: 0 if are_positions(names) else _MOST_COLUMNS].tolist()
    shades = np.ceil(_SHADES * shares - 0.05).clip(0, _SHADES).astype(int)
    cells = [
        [(one.row[names[at]], unlike[at], int(shade[at])) for at in shown]
        for one, unlike, shade in zip(neighbors, differs, shades, strict=True)
    ]
    telling = [
        sorted(
            (at for at, column in enumerate(shown) if unlike[column]), key=lambda at: -by[shown[at]]
        )
        for unlike, by in zip(differs, apart, strict=True)
    ]
    return NeighborTable(
        [names[at] for at in shown],
        [unused[at] for at in shown],
        len(names) - len(shown),
        None if row is None else [row.get(names[at]) for at in shown],
        cells,
        [_reason(names, share) for share in shares],
        telling,
    )


def _contrasts(names: list[str], rows: list[dict[str, Any]], query: dict[str, Any]) -> np.ndarray:
    """Differences from the query, (n_rows, n_columns), in [0, 1]; numbers by their range."""
    found = np.zeros((len(rows), len(names)))
    for at, name in enumerate(names):
        values = [row.get(name) for row in (*rows, query)]
        if not all(isinstance(one, int | float | np.number) for one in values):
            found[:, at] = [not _same(row[name], query.get(name)) for row in rows]
            continue
        numbers = np.array(values, dtype=float)
        gaps = np.abs(numbers[: len(rows)] - numbers[-1])
        known = numbers[np.isfinite(numbers)]
        width = float(np.ptp(known)) if len(known) else 0.0
        found[:, at] = np.where(np.isnan(gaps), 1.0, gaps / (width or 1.0))
    return found


def used_first(row: dict[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    """Put the columns used by a model before the unused ones."""
    return dict(sorted(row.items(), key=lambda cell: cell[0] in left_out))


def _same(one: Any, other: Any) -> bool:
    if is_missing(one) or is_missing(other):
        return is_missing(one) and is_missing(other)
    return bool(one == other or str(one) == str(other))


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, NaT or pandas' NA."""
    return pd.isna(value) is True


def _reason(names: list[str], shares: np.ndarray) -> str:
    largest = np.argsort(-shares, kind="stable")[:3]
    return ", ".join(
        f"{names[at]}{_SPACE}{100 * shares[at]:.0f}{_SPACE}%"
        for at in largest
        if shares[at] > 0.005
    )
