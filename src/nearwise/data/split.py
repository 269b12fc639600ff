"""Split a data set into training and test rows, the same way for every method."""

import numpy as np
from numpy.typing import NDArray
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
    classes, counts = np.unique(dataset.y, return_counts=True)
    if counts.min() < 2:
        single = [str(label) for label in classes[counts < 2]]
        raise ValueError(
            f"Data set {dataset.name!r}: each class needs two rows to appear on both sides of a "
            f"stratified split; one row each: {', '.join(single[:10])} ({len(single)} of "
            f"{len(classes)} classes). Drop or merge them."
        )
    strata = dataset.y if dataset.strata is None else dataset.strata
    try:
        train, test = train_test_split(
            positions, test_size=test_size, stratify=strata, random_state=seed
        )
    except ValueError as error:
        raise ValueError(
            f"Data set {dataset.name!r} ({len(positions)} rows, {len(classes)} classes) cannot be "
            f"split with test_size={test_size}: {error} Change test_size or add rows."
        ) from error
    return train, test
