"""Groups of rows: given by the user, or made of equal rows."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearwise.estimators.inputs.by_text import as_read
from nearwise.estimators.inputs.table import as_digests

_REPEATED = 0.05  # least share of rows with a copy for copies to be deliberate
_FEWEST = 20  # least number of different rows to detect copies
_SOME = 10_000  # rows sampled to check for a table with few different rows
_CHANCE = 0.5  # most pairs that differ in one column, per pair of equal rows, for copies

Digests = NDArray[np.int64]


class Groups(NamedTuple):
    """Group of each row, as given by the user.

    Attributes
    ----------
    digests : int64 ndarray of shape (n,)
        Hashes of the group names. Names with equal text, such as 7 and "7", are one group.
    name : str
        Name of the group column; "" without a name.
    """

    digests: Digests
    name: str

    def of_rows(self, n_rows: int) -> Digests:
        """Return the digests; ValueError unless there is one per row."""
        if len(self.digests) != n_rows:
            raise ValueError(
                f"X has {n_rows} rows but groups has {len(self.digests)}. Give one per row."
            )
        return self.digests


def check_groups(groups: Any) -> Groups | None:
    """Check and hash the `groups` of `fit`; None without groups.

    Raises
    ------
    ValueError
        If a group is missing, or `groups` is not one-dimensional.
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
    """Row digests, int64 (n,), if many rows are deliberate copies of others; else None.

    In a table with few different rows, such as answers to three questions, equal rows are not
    copies. There about as many pairs differ in one column as are equal.
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
    """Count the pairs of equal digests."""
    size = np.unique(digests, return_counts=True)[1].astype(np.int64)
    return int((size * (size - 1) // 2).sum())


def _hashed_cells(rows: Any) -> NDArray[np.uint64] | None:
    """Hashes (n, columns) of the cells; their sum per row, modulo 2**64, hashes the row."""
    if not hasattr(rows, "codes"):
        return None  # images
    numbers = np.where(np.isnan(rows.numbers), np.nan, rows.numbers + 0.0)
    parts = [np.ascontiguousarray(numbers, dtype=np.float64).view(np.uint64)]
    parts.append(rows.codes.astype(np.uint64))
    cells = np.concatenate([part.reshape(len(rows), -1) for part in parts], axis=1)
    salt = np.random.default_rng(0).integers(1, 2**63, cells.shape[1], dtype=np.uint64)
    # The finalizer of splitmix64: values that differ in one bit get unrelated hashes.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        cells = (cells ^ salt ^ (cells >> np.uint64(shift))) * np.uint64(factor)
    mixed: NDArray[np.uint64] = cells ^ (cells >> np.uint64(31))
    return mixed
