"""Split a data set into training and test rows, the same way for every method."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import train_test_split

from nearwise.data.dataset import Dataset

Index = NDArray[np.int64]


def split_dataset(dataset: Dataset, seed: int, test_size: float = 0.2) -> tuple[Index, Index]:
    """Return the row positions of the training and of the test part.

    Where the data set has an official test part, that is the test part for every seed, in
    ascending order. Otherwise exactly scikit-learn's
    ``train_test_split(arange(n_rows), test_size=test_size, stratify=y, random_state=seed)``,
    stratified by the set's own class numbers where it has them (`Dataset.strata`).

    Parameters
    ----------
    dataset : Dataset
        What to split.
    seed : int
        Non-negative; the same seed gives the same rows on every machine.
    test_size : float, default=0.2
        Share of the rows to test on, in (0, 1).

    Returns
    -------
    train_index : int64 ndarray of shape (n_train,)
        Row positions, disjoint from `test_index`; together they are all rows.
    test_index : int64 ndarray of shape (n_test,)
        Row positions.

    Raises
    ------
    ValueError
        If `test_size` is outside (0, 1), a class has one row, or a part would have fewer rows
        than there are classes.
    """
    positions = np.arange(len(dataset), dtype=np.int64)
    if dataset.test_index is not None:
        return np.setdiff1d(positions, dataset.test_index), np.sort(dataset.test_index)
    if not 0 < test_size < 1:
        raise ValueError(f"test_size={test_size} is not a share of the rows. Pass one in (0, 1).")
    what = f"Data set {dataset.name!r}"
    return _stratified(dataset.y, dataset.strata, test_size, seed, what, "test_size")


def hold_out(labels: ArrayLike, size: int | float, seed: int) -> tuple[Index, Index]:
    """Divide training rows into the memory and rows held out, each class in proportion.

    Parameters
    ----------
    labels : array of shape (n_rows,)
        Labels of the training rows.
    size : int or float
        Rows to hold out: a number of at least 1, or a share in (0, 1), rounded up.
    seed : int
        Non-negative; the same seed gives the same rows on every machine.

    Returns
    -------
    memory : int64 ndarray of shape (n_memory,)
        Row positions, ascending.
    held_out : int64 ndarray of shape (n_held_out,)
        The other row positions, ascending.

    Raises
    ------
    ValueError
        If `size` is out of range, a class has one row, or a part would have fewer rows than there
        are classes.

    Examples
    --------
    >>> memory, held_out = hold_out([0, 1] * 50, 20, seed=0)
    >>> len(memory), len(held_out)
    (80, 20)
    """
    y = np.asarray(labels)
    if y.ndim != 1 or not len(y):
        raise ValueError(f"labels have shape {y.shape}; pass at least one, shape (n_rows,).")
    is_number = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
    if not (1 <= size < len(y) if is_number else 0 < size < 1):
        raise ValueError(
            f"size={size!r} is neither a number of rows from 1 to {len(y) - 1} nor a share in "
            "(0, 1)."
        )
    memory, held_out = _stratified(y, None, size, seed, "The training part", "size")
    return np.sort(memory), np.sort(held_out)


def _stratified(
    y: NDArray[np.generic],
    strata: NDArray[np.int64] | None,
    size: int | float,
    seed: int,
    what: str,
    argument: str,
) -> tuple[Index, Index]:
    """Call `train_test_split` on the row positions, with errors about `what` and `argument`."""
    positions = np.arange(len(y), dtype=np.int64)
    classes, counts = np.unique(y, return_counts=True)
    if counts.min() < 2:
        single = [str(label) for label in classes[counts < 2]]
        raise ValueError(
            f"{what}: each class needs two rows to appear on both sides of a "
            f"stratified split; one row each: {', '.join(single[:10])} ({len(single)} of "
            f"{len(classes)} classes). Drop or merge them."
        )
    try:
        first, second = train_test_split(
            positions,
            test_size=size,
            stratify=y if strata is None else strata,
            random_state=seed,
        )
    except ValueError as error:
        raise ValueError(
            f"{what} ({len(positions)} rows, {len(classes)} classes) cannot be "
            f"split with {argument}={size}: {error} Change {argument} or add rows."
        ) from error
    return first, second
