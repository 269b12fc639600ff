"""A row and its neighbors side by side, cell by cell."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

_MOST_COLUMNS = 24
_SPACE = "\N{NO-BREAK SPACE}"
_SHADES = 4


@dataclass(frozen=True)
class NeighborTable:
    """What a table of neighbors shows.

    Attributes
    ----------
    columns : list of str
        Those shown, in their order; of many those that separate the rows most.
    n_left_out : int
        Columns that are not shown.
    query : list or None
        Cells of the explained row.
    cells : list of list of (value, differs, shade)
        Of each neighbor. shade is 0 to 4, by the column's share of the distance.
    reasons : list of str
        Of each neighbor: the columns with the largest shares.
    """

    columns: list[str]
    n_left_out: int
    query: list[Any] | None
    cells: list[list[tuple[Any, bool, int]]]
    reasons: list[str]


def neighbor_table(
    explanation: Any, row: dict[str, Any] | None = None, shares: np.ndarray | None = None
) -> NeighborTable:
    """Lay out an explanation's neighbors.

    Parameters
    ----------
    explanation : Explanation
        Of a table's row.
    row : dict, optional
        The explained row.
    shares : ndarray of shape (n_neighbors, n_columns), optional
        From `column_shares`, in the order of the neighbors' columns.
    """
    neighbors = explanation.neighbors
    names = list(neighbors[0].row) if neighbors else list(row or ())
    if shares is None:
        shares = np.zeros((len(neighbors), len(names)))
    shown = list(range(len(names)))
    if len(names) > _MOST_COLUMNS:
        largest = np.argsort(-shares.sum(axis=0), kind="stable")[:_MOST_COLUMNS]
        shown = sorted(largest.tolist())
    cells = []
    for neighbor, share in zip(neighbors, shares, strict=True):
        shade = np.ceil(_SHADES * share - 0.05).clip(0, _SHADES).astype(int)
        values = [neighbor.row[names[at]] for at in shown]
        cells.append(
            [
                (value, row is not None and not _same(value, row.get(names[at])), int(shade[at]))
                for value, at in zip(values, shown, strict=True)
            ]
        )
    return NeighborTable(
        [names[at] for at in shown],
        len(names) - len(shown),
        None if row is None else [row.get(names[at]) for at in shown],
        cells,
        [_reason(names, share) for share in shares],
    )


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
