"""The columns of remembered rows as a head sees them: ranks, categories, and how telling each is.

`RememberedColumns` is made of the remembered rows alone, so what is forgotten leaves it whole.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from nearwise.nn.neighbor_set import SeenColumns

MOST_COLUMNS = 16  # that a head looks at: the most telling ones
GAP = -2.0  # what stands for a missing number, beside ranks from -1 to 1
_BINS = 8  # of ranks, in which a column's link with the classes may take any shape


@dataclass(frozen=True, eq=False)
class RememberedColumns:
    """Columns of remembered rows.

    Attributes
    ----------
    values : float32 Tensor of shape (n, F)
        Of numbers the rank among the remembered rows, from -1 to 1, ties in the middle, missing
        ones at `GAP`; of categories their codes.
    is_category : bool Tensor of shape (F,)
    relevance : Tensor of shape (F, 2)
        How much the classes differ in a column, from 0 to 1: by the mean of ranks (correlation
        ratio), or in any way (Cramér's V of ranks in bins, less what chance gives).
    columns : int64 array of shape (F,)
        Positions of the columns among the numbers and, after them, the categories.
    known : list of arrays
        Remembered numbers in ascending order, one array per number among `columns`.
    """

    values: Tensor
    is_category: Tensor
    relevance: Tensor
    columns: np.ndarray
    known: list[np.ndarray]

    @classmethod
    def of(cls, numbers: np.ndarray, codes: np.ndarray, labels: np.ndarray) -> Self:
        """Rank the columns of remembered rows, and keep the most telling ones.

        Parameters
        ----------
        numbers : float array of shape (n, A), NaN where missing
        codes : int array of shape (n, B)
        labels : int array of shape (n,), class positions
        """
        known = [np.sort(column[~np.isnan(column)]) for column in numbers.T]
        ranks = [_ranks(column, among) for column, among in zip(numbers.T, known, strict=True)]
        values = [*ranks, *codes.T.astype(np.float32)]
        is_category = np.arange(len(values)) >= len(ranks)
        pairs = zip(values, is_category, strict=True)
        relevance = np.array([_relevance(column, kind, labels) for column, kind in pairs])
        order = np.argsort(-relevance.max(axis=1), kind="stable")[:MOST_COLUMNS]
        return cls(
            torch.from_numpy(np.stack([values[at] for at in order], axis=1)),
            torch.from_numpy(is_category[order]),
            torch.from_numpy(relevance[order].astype(np.float32)),
            order,
            [known[at] for at in order if at < len(ranks)],
        )

    def place(self, numbers: np.ndarray, codes: np.ndarray) -> Tensor:
        """Values (B, F) of new rows among the remembered ones."""
        out, known = np.empty((len(numbers), len(self.columns)), np.float32), iter(self.known)
        for place, at in enumerate(self.columns):
            is_number = at < numbers.shape[1]
            out[:, place] = (
                _ranks(numbers[:, at], next(known))
                if is_number
                else codes[:, at - numbers.shape[1]]
            )
        return torch.from_numpy(out)

    def seen(self, queries: Tensor, found: Tensor) -> SeenColumns:
        """Columns of queries (B, F), as `place` gives them, and of their neighbors (B, K)."""
        n = len(queries)
        return SeenColumns(
            queries,
            self.values[found],
            self.is_category.expand(n, -1),
            torch.ones(queries.shape, dtype=torch.bool),
        )


def _ranks(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Shares of `among` below less those above, from -1 to 1."""
    below, upto = np.searchsorted(among, values), np.searchsorted(among, values, "right")
    ranks = (below + upto) / max(len(among), 1) - 1
    return np.where(np.isnan(values), GAP, ranks).astype(np.float32)


def _relevance(column: np.ndarray, is_category: bool, labels: np.ndarray) -> tuple[float, float]:
    n, n_classes = len(labels), int(labels.max()) + 1
    of_class, ratio = np.bincount(labels, minlength=n_classes), 0.0
    if is_category:
        bins = np.unique(column, return_inverse=True)[1]
    else:
        ranks = np.where(column == GAP, 0.0, column)
        sums = np.bincount(labels, ranks, n_classes)
        between = (sums**2 / np.maximum(of_class, 1)).sum() - sums.sum() ** 2 / n
        ratio = between / max(((ranks - ranks.mean()) ** 2).sum(), 1e-12)
        bins = np.floor((column + 1) / 2 * _BINS).clip(-1, _BINS - 1)
        bins = np.unique(bins, return_inverse=True)[1]
    table = np.bincount(bins * n_classes + labels, minlength=(bins.max() + 1) * n_classes)
    table = table.reshape(-1, n_classes).astype(float)
    table = table[:, table.any(axis=0)]
    expected = table.sum(1, keepdims=True) * table.sum(0) / n
    square = ((table - expected) ** 2 / expected).sum() / n
    high, wide = table.shape[0] - 1, table.shape[1] - 1
    square = max(square - high * wide / max(n - 1, 1), 0.0)
    shared = (square / max(min(high, wide), 1)) ** 0.5
    return (shared if is_category else max(ratio, 0.0) ** 0.5), min(shared, 1.0)
