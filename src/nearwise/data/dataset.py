"""Data sets: features, labels, train/test splits."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import train_test_split

Kind = Literal["table", "embeddings", "images"]
Features = pd.DataFrame | NDArray[np.float32] | NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Features and labels of one data set, rows in the order of its files.

    Parameters
    ----------
    name : str
        Registry name, or the stem of the file it was read from.
    X : DataFrame or float32 ndarray of shape (n_rows, n_columns), or uint8 ndarray of shape \
            (n_rows, height, width, channels)
        A table (numbers, categories, missing values), ready embeddings, or images of one size.
        Images have 1 channel for grey or 3 for red, green, blue; 0 to 255.
    y : ndarray of shape (n_rows,)
        Labels: integers, text or booleans; never missing.
    target_name : str
        Name of the labels in the files.
    kind : {"table", "embeddings", "images"}
        "table" goes with a DataFrame, the others with an array.
    source : str
        Origin of the rows, in words.
    test_index : int64 ndarray, optional
        Row positions of the official test part, ascending; None if there is none.
    files : tuple of Path
        Files read; empty for data sets of scikit-learn.
    strata : int64 ndarray of shape (n_rows,), optional
        Class numbers for stratified splits, if their order differs from that of the labels.
        Default: the labels.
    views : dict of str to float32 ndarray of the shape of `X`
        Other views of the same rows (for example "flip"), if requested and available.
    row_names : tuple of str, optional
        Name of every row, if rows have names. For images it is the path, beginning with the name
        of the data folder ("flowers/train/rose/1.png").

    Raises
    ------
    ValueError
        If rows of `X`, `y` or a view disagree, `y` is not one-dimensional or misses
        labels, there are no rows, or images are not of the type and shape above.
    """

    name: str
    X: Features
    y: NDArray[np.generic]
    target_name: str
    kind: Kind
    source: str
    test_index: NDArray[np.int64] | None = None
    files: tuple[Path, ...] = ()
    views: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    strata: NDArray[np.int64] | None = None
    row_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check that features, labels and views describe the same rows."""
        if self.kind == "images":
            _check_images(self.name, self.X)
        if self.y.ndim != 1:
            raise ValueError(
                f"Data set {self.name!r}: labels have shape {self.y.shape}; "
                "pass one label per row, shape (n_rows,)."
            )
        lengths = {"X": len(self.X), "y": len(self.y)}
        lengths |= {f"view {view!r}": len(rows) for view, rows in self.views.items()}
        if self.row_names is not None:
            lengths["row_names"] = len(self.row_names)
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{part} has {rows} rows" for part, rows in lengths.items())
            raise ValueError(f"Data set {self.name!r}: {counts}; all must have the same number.")
        if not len(self.y):
            raise ValueError(f"Data set {self.name!r} has no rows. Pass at least one.")
        if n_missing := int(pd.isna(self.y).sum()):
            raise ValueError(
                f"Data set {self.name!r}: {n_missing} of {len(self.y)} rows have no value in the "
                f"target {self.target_name!r}. Drop those rows or fill in their labels."
            )

    def __repr__(self) -> str:
        """Name, kind, size and classes in one line."""
        size = " x ".join(map(str, self.X.shape))
        test = "" if self.test_index is None else f", {len(self.test_index)} of them test rows"
        return f"<Dataset {self.name!r}: {self.kind}, {size}, {len(self.classes)} classes{test}>"

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.y)

    @property
    def classes(self) -> NDArray[np.generic]:
        """The distinct labels, sorted; shape (n_classes,)."""
        return np.unique(self.y)

    def rows(self, index: NDArray[np.int64]) -> tuple[Features, NDArray[np.generic]]:
        """Return the features and labels at these row positions.

        Parameters
        ----------
        index : int64 ndarray of shape (n_selected,)
            Positions in [0, n_rows), in any order.

        Returns
        -------
        X : DataFrame or ndarray of shape (n_selected, ...)
            Features, of the type of `self.X`.
        y : ndarray of shape (n_selected,)
            Labels of the same rows.
        """
        X = self.X.iloc[index] if isinstance(self.X, pd.DataFrame) else self.X[index]
        return X, self.y[index]

    def to_frame(self) -> pd.DataFrame:
        """Return one table with the features and, last, the labels under `target_name`.

        Columns of embeddings are called f0, f1, ...

        Raises
        ------
        ValueError
            If the features are images.
        """
        if self.kind == "images":
            raise ValueError(
                f"Data set {self.name!r} holds images of shape {self.X.shape[1:]}, which are not "
                "a table. Use X and y, or flatten: X.reshape(len(X), -1)."
            )
        if isinstance(self.X, pd.DataFrame):
            frame = self.X.reset_index(drop=True)
        else:
            frame = pd.DataFrame(self.X, columns=[f"f{i}" for i in range(self.X.shape[1])])
        return frame.assign(**{self.target_name: self.y})


def _check_images(name: str, X: Features) -> None:
    is_bytes = isinstance(X, np.ndarray) and X.dtype == np.uint8
    if is_bytes and X.ndim == 4 and X.shape[3] in (1, 3) and 0 not in X.shape[1:]:
        return
    found = (
        f"type {X.dtype} and shape {X.shape}"
        if isinstance(X, np.ndarray)
        else f"the class {type(X).__name__}"
    )
    raise ValueError(
        f"Data set {name!r}: images have {found}; pass a uint8 array of shape "
        "(n_rows, height, width, channels), 1 channel for grey or 3 for color, 0 to 255."
    )


Index = NDArray[np.int64]


def split_dataset(dataset: Dataset, seed: int, test_size: float = 0.2) -> tuple[Index, Index]:
    """Return the row positions of the training and of the test part.

    An official test part is the test part for every seed, in ascending order. Otherwise the split
    is exactly scikit-learn's ``train_test_split(arange(n_rows), test_size=test_size, stratify=y,
    random_state=seed)``, stratified by `Dataset.strata` if given. A class with a single row is in
    the training part.

    Parameters
    ----------
    dataset : Dataset
        Data set to split.
    seed : int
        Non-negative; the same seed gives the same rows on every machine.
    test_size : float, default=0.2
        Share of test rows, in (0, 1).

    Returns
    -------
    train_index : int64 ndarray of shape (n_train,)
        Row positions, disjoint from `test_index`; together they are all rows.
    test_index : int64 ndarray of shape (n_test,)
        Row positions.

    Raises
    ------
    ValueError
        If `test_size` is outside (0, 1), all classes have one row, or a part would have fewer rows
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
    """Split training rows into memory rows and held-out rows, stratified by class.

    A class with a single row is in the memory.

    Parameters
    ----------
    labels : array of shape (n_rows,)
        Labels of the training rows.
    size : int or float
        Number of rows to hold out, at least 1, or a share in (0, 1), rounded up.
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
        If `size` is out of range, all classes have one row, or a part would have fewer rows than
        there are classes.

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
    """Call `train_test_split` on row positions; errors use `what` and `argument`.

    A class with a single row is in the first part.
    """
    classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    shared = np.flatnonzero(counts[codes] > 1)
    if not len(shared):
        raise ValueError(
            f"{what}: each of its {len(y)} rows is the only one of its class, and a stratified "
            "split needs two rows of some class. Merge classes."
        )
    try:
        first, second = train_test_split(
            shared,
            test_size=size,
            stratify=(y if strata is None else strata)[shared],
            random_state=seed,
        )
    except ValueError as error:
        n_second = math.ceil(size * len(y)) if size < 1 else int(size)
        raise ValueError(
            f"{what} ({len(y)} rows, {len(classes)} classes) cannot be split with "
            f"{argument}={size} into {len(y) - n_second} and {n_second} rows: each side takes a "
            f"row of each class. Give more rows, or change {argument}."
        ) from error
    return np.concatenate([first, np.setdiff1d(np.arange(len(y)), shared)]), second
