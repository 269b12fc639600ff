"""What a loaded data set is: features, labels, and where its official test part lies."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
        A table (numbers, categories, missing values), ready embeddings, or images of one size:
        1 channel for grey, 3 for red, green, blue; 0 to 255.
    y : ndarray of shape (n_rows,)
        Labels: integers, text or booleans; never missing.
    target_name : str
        What the labels are called in the files.
    kind : {"table", "embeddings", "images"}
        "table" goes with a DataFrame, the others with an array.
    source : str
        Where the rows come from, in words.
    test_index : int64 ndarray, optional
        Row positions of the official test part, ascending; None where there is none.
    files : tuple of Path
        Files read; empty for the sets that scikit-learn carries.
    strata : int64 ndarray of shape (n_rows,), optional
        The set's own class numbers, where their order differs from that of the labels: a
        stratified split depends on it. Default: the labels.
    views : dict of str to float32 ndarray of the shape of `X`
        Other views of the same rows (for example "flip"), where asked for and available.
    row_names : tuple of str, optional
        Name of every row, where rows have one: the file of an image, from its folder's own name
        on ("flowers/train/rose/1.png").

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
                "pass one label a row, shape (n_rows,)."
            )
        lengths = {"X": len(self.X), "y": len(self.y)}
        lengths |= {f"view {view!r}": len(rows) for view, rows in self.views.items()}
        if self.row_names is not None:
            lengths["row_names"] = len(self.row_names)
        if len(set(lengths.values())) > 1:
            seen = ", ".join(f"{part} has {rows} rows" for part, rows in lengths.items())
            raise ValueError(f"Data set {self.name!r}: {seen}; all must have the same number.")
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
            Their labels.
        """
        X = self.X.iloc[index] if isinstance(self.X, pd.DataFrame) else self.X[index]
        return X, self.y[index]

    def to_frame(self) -> pd.DataFrame:
        """Return one table with the features and, last, the labels under `target_name`.

        Columns of embeddings are called f0, f1, ...

        Raises
        ------
        ValueError
            If the features are images, which are no columns.
        """
        if self.kind == "images":
            raise ValueError(
                f"Data set {self.name!r} holds images of shape {self.X.shape[1:]}, which are no "
                "table. Use X and y, or flatten: X.reshape(len(X), -1)."
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
    seen = (
        f"type {X.dtype} and shape {X.shape}"
        if isinstance(X, np.ndarray)
        else f"the class {type(X).__name__}"
    )
    raise ValueError(
        f"Data set {name!r}: images have {seen}; pass a uint8 array of shape "
        "(n_rows, height, width, channels), 1 channel for grey or 3 for color, 0 to 255."
    )
