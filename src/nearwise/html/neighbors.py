"""Table of a row and its neighbors, side by side."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

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
        Number of hidden columns.
    query : list or None
        Cells of the explained row.
    cells : list of list of (value, differs, shade)
        Cells of each neighbor; shade is 0 to 4, by the column's share of the distance.
    reasons : list of str
        Columns with the largest shares, per neighbor.
    """

    columns: list[str]
    unused: list[bool]
    n_left_out: int
    query: list[Any] | None
    cells: list[list[tuple[Any, bool, int]]]
    reasons: list[str]


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
        Result of `column_shares`, in the order of the neighbors' columns.
    """
    neighbors = explanation.neighbors
    names = list(neighbors[0].row) if neighbors else list(row or ())
    unused = [name in explanation.left_out for name in names]
    if shares is None:
        shares = np.zeros((len(neighbors), len(names)))
    differs = [
        [row is not None and not idle and not _same(one.row[name], row.get(name))
         for name, idle in zip(names, unused, strict=True)]
        for one in neighbors
    ]  # fmt: skip
    n_differing = np.array(differs, dtype=int).reshape(len(neighbors), len(names)).sum(axis=0)
    order = np.lexsort([-n_differing, -shares.sum(axis=0).round(9), unused])  # last key first
    shown = order[:_MOST_COLUMNS].tolist()
    shades = np.ceil(_SHADES * shares - 0.05).clip(0, _SHADES).astype(int)
    cells = [
        [(one.row[names[at]], apart[at], int(shade[at])) for at in shown]
        for one, apart, shade in zip(neighbors, differs, shades, strict=True)
    ]
    return NeighborTable(
        [names[at] for at in shown],
        [unused[at] for at in shown],
        len(names) - len(shown),
        None if row is None else [row.get(names[at]) for at in shown],
        cells,
        [_reason(names, share) for share in shares],
    )


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
