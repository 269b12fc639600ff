"""Groups of rows that belong together: those that a user names, or rows that equal each other."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearwise.estimators.inputs.by_text import as_read
from nearwise.estimators.inputs.table import as_digests

_REPEATED = 0.05  # share of the rows that equal another one from which copies are no accident
_FEWEST = 20  # different rows, below which nothing tells copies from rows that are alike
_SOME = 10_000  # rows by which it is seen whether a table has few different rows
_CHANCE = 0.5  # pairs of rows that differ in one column, per pair of equal ones, in such a table

Digests = NDArray[np.int64]


class Groups(NamedTuple):
    """Groups that rows are said to belong to.

    Attributes
    ----------
    digests : int64 ndarray of shape (n,)
        Hashes of the groups' names. Names of equal text are one, as 7 and "7" in different files.
    name : str
        Of the column that held them; "" where it had none.
    """

    digests: Digests
    name: str

    def of_rows(self, n_rows: int) -> Digests:
        """Return the digests; ValueError if they are not those of so many rows."""
        if len(self.digests) != n_rows:
            raise ValueError(
                f"X has {n_rows} rows but groups has {len(self.digests)}. Give one per row."
            )
        return self.digests


def check_groups(groups: Any) -> Groups | None:
    """Read what `fit` takes as groups; None without.

    Raises
    ------
    ValueError
        If some are missing, or it is no flat array.
    """
    if groups is None or isinstance(groups, Groups):
        return groups
    if isinstance(groups, str | bytes) or np.ndim(groups) != 1:
        shape = "text" if isinstance(groups, str | bytes) else f"shape {np.shape(groups)}"
        raise ValueError(
            f"groups has {shape}. Give one value per row, such as X['subject'] (and leave that "
            "column out of X)."
        )
    values = pd.Series(list(groups), dtype=object)
    missing = values.isna()
    if missing.any():
        raise ValueError(
            f"groups holds no value in {int(missing.sum())} of {len(values)} rows (first in row "
            f"{int(missing.argmax())}). Give a row that belongs to no group a value of its own."
        )
    codes, distinct = pd.factorize(values)
    digests = as_digests(as_read(value).encode() for value in distinct)[codes]
    return Groups(digests, str(getattr(groups, "name", None) or ""))


def copied_rows(rows: Any) -> Digests | None:
    """Digests of the rows, int64 (n,), where many are copies of others that were made; else None.

    Equal rows of a table with few different ones, such as answers to three questions, are no
    copies: there rows that differ in a single column are about as many as equal ones.
    """
    digests: Digests = rows.digests()
    _, group, size = np.unique(digests, return_inverse=True, return_counts=True)
    if len(size) < _FEWEST or np.mean(size[group] > 1) < _REPEATED:
        return None
    cells = _hashed_cells(rows)
    if cells is None:
        return digests
    some = np.random.default_rng(0).permutation(len(cells))[:_SOME]
    cells = cells[some]
    whole = cells.sum(axis=1)
    equal = _n_pairs(whole)
    nearly = sum(_n_pairs(whole - column) - equal for column in cells.T)
    return digests if equal and nearly <= _CHANCE * equal else None


def _n_pairs(digests: NDArray[np.uint64]) -> int:
    """Count the pairs of equal ones."""
    size = np.unique(digests, return_counts=True)[1].astype(np.int64)
    return int((size * (size - 1) // 2).sum())


def _hashed_cells(rows: Any) -> NDArray[np.uint64] | None:
    """Give each cell a number by its content; their sums (modulo 2**64) are those of the rows."""
    if not hasattr(rows, "codes"):
        return None  # of images
    numbers = np.where(np.isnan(rows.numbers), np.nan, rows.numbers + 0.0)
    parts = [np.ascontiguousarray(numbers, dtype=np.float64).view(np.uint64)]
    parts.append(rows.codes.astype(np.uint64))
    cells = np.concatenate([part.reshape(len(rows), -1) for part in parts], axis=1)
    salt = np.random.default_rng(0).integers(1, 2**63, cells.shape[1], dtype=np.uint64)
    # The finalizer of splitmix64, by which values that differ in a bit have unrelated sums.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        cells = (cells ^ salt ^ (cells >> np.uint64(shift))) * np.uint64(factor)
    mixed: NDArray[np.uint64] = cells ^ (cells >> np.uint64(31))
    return mixed
