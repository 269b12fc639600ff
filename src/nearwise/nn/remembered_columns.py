"""The columns of remembered rows as a head sees them: ranks among these rows, and categories.

Ranks are made of the remembered rows alone, so a row that is forgotten leaves nothing in them.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from nearwise.nn.neighbor_set import SeenColumns

MOST_COLUMNS = 16  # that a head looks at
GAP = -2.0  # stands for a missing number, beside ranks from -1 to 1
_MOST_KNOWN = 1_024  # values of a column among which others are ranked
_BINS = 8  # of ranks, between which classes may differ in any way


@dataclass(frozen=True, eq=False)
class RememberedColumns:
    """Numbers of remembered rows, by which others are ranked.

    Attributes
    ----------
    is_category : bool Tensor of shape (F,)
    known : list of float32 arrays
        For each column remembered numbers in ascending order, of many 1,024 that are evenly
        spread; empty for categories.
    """

    is_category: Tensor
    known: list[np.ndarray]

    @classmethod
    def of(cls, values: Tensor, is_category: Tensor) -> Self:
        """Take them from remembered rows, float32 (n, F), NaN where a number is missing."""
        known = []
        for column, category in zip(values.numpy().T, is_category.tolist(), strict=True):
            there = np.sort(column[:0] if category else column[~np.isnan(column)])
            if len(there) > _MOST_KNOWN:
                there = there[np.linspace(0, len(there) - 1, _MOST_KNOWN).round().astype(int)]
            known.append(there)
        return cls(is_category, known)

    def ranks(self, values: Tensor) -> Tensor:
        """Rank rows, float32 (B, F): numbers from -1 to 1 or `GAP`, categories as they are."""
        ranked = values.numpy().copy()
        for at in np.flatnonzero(~self.is_category.numpy()):
            column, among = ranked[:, at], self.known[at]
            below = np.searchsorted(among, column) + np.searchsorted(among, column, "right")
            rank = below / max(len(among), 1) - 1
            ranked[:, at] = np.where(np.isnan(column), GAP, rank)
        return torch.from_numpy(ranked)

    def seen(self, queries: Tensor, neighbors: Tensor) -> SeenColumns:
        """Put ranks of queries (B, F) and of their neighbors (B, K, F) together."""
        kinds = self.is_category.expand(len(queries), -1)
        return SeenColumns(queries, neighbors, kinds, torch.ones_like(kinds))


def most_telling(numbers: np.ndarray, codes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Positions of the columns, at most `MOST_COLUMNS`, in which the classes differ most.

    Parameters
    ----------
    numbers : float array of shape (n, A), NaN where missing
    codes : int array of shape (n, B)
    labels : int array of shape (n,), class positions

    Returns
    -------
    positions : int64 array, ascending
        Among the numbers and, after them, the codes.
    """
    n_numbers = numbers.shape[1]
    if n_numbers + codes.shape[1] <= MOST_COLUMNS:
        return np.arange(n_numbers + codes.shape[1])
    values = torch.from_numpy(numbers.astype(np.float32))
    is_number = torch.zeros(n_numbers, dtype=torch.bool)
    ranks = RememberedColumns.of(values, is_number).ranks(values).numpy()
    telling = [max(_ratio(r, labels), _association(_binned(r), labels)) for r in ranks.T]
    telling += [_association(column, labels) for column in codes.T]
    return np.sort(np.argsort(-np.array(telling), kind="stable")[:MOST_COLUMNS])


def _binned(ranks: np.ndarray) -> np.ndarray:
    return np.floor((ranks + 1) / 2 * _BINS).clip(-1, _BINS - 1)


def _ratio(ranks: np.ndarray, labels: np.ndarray) -> float:
    """Correlation ratio of ranks and classes, in [0, 1]."""
    ranks = np.where(ranks == GAP, 0.0, ranks)
    sums, counts = np.bincount(labels, ranks), np.bincount(labels)
    between = (sums**2 / np.maximum(counts, 1)).sum() - sums.sum() ** 2 / len(labels)
    whole = ((ranks - ranks.mean()) ** 2).sum()
    return float(np.sqrt(max(between, 0.0) / whole)) if whole > 0 else 0.0


def _association(groups: np.ndarray, labels: np.ndarray) -> float:
    """Cramér's V of groups and classes, less what chance gives (Bergsma 2013), in [0, 1]."""
    rows, columns = (np.unique(part, return_inverse=True)[1] for part in (groups, labels))
    high, wide, n = rows.max(), columns.max(), len(labels)
    if not min(high, wide):
        return 0.0
    table = np.bincount(rows * (wide + 1) + columns, minlength=(high + 1) * (wide + 1))
    table = table.reshape(high + 1, wide + 1).astype(float)
    expected = table.sum(1, keepdims=True) * table.sum(0) / n
    square = ((table - expected) ** 2 / expected).sum() / n - high * wide / max(n - 1, 1)
    return float(np.sqrt(max(square, 0.0) / min(high, wide)))
