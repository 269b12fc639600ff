"""Reading and checking of user input, table or images, in one place."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from nearwise.estimators.inputs.columns import ColumnWarning, refuse_repeated
from nearwise.estimators.inputs.groups import Groups, check_groups
from nearwise.estimators.inputs.images import EncodedImages, ImageEncoder, TTAView, check_images
from nearwise.estimators.inputs.sources import as_rows, read_source, stacked_images
from nearwise.estimators.inputs.sparse_columns import (
    SparseColumns,
    is_wide,
    sparse_rows,
)
from nearwise.estimators.inputs.table import Encoded, TableEncoder
from nearwise.names import did_you_mean, listed
from nearwise.shown import check_texts
from nearwise.warn import warn_user

AnyEncoder = TableEncoder | ImageEncoder
AnyRows = Encoded | EncodedImages
_SHOWN = 12  # most names in a message


class KnownColumns(BaseEstimator):
    """Number and names of the training columns, as in scikit-learn's checks.

    Part of each fitted model, so that the columns of a refit are visible only once it is
    published. For images `n_features_in_` is the number of values per image.
    """

    n_features_in_: int
    feature_names_in_: np.ndarray

    @property
    def names(self) -> list[str] | None:
        """Names of the columns; None if `fit` got an array."""
        found = getattr(self, "feature_names_in_", None)
        return None if found is None else found.tolist()

    @property
    def width(self) -> int | None:
        """Number of columns; None before a fit."""
        return getattr(self, "n_features_in_", None)


class ColumnsOfNumbers(KnownColumns):
    """Number and names of the training columns of a regressor."""


KnownColumns.__name__ = "AttnKNNClassifier"  # scikit-learn's messages name the class
ColumnsOfNumbers.__name__ = "AttnKNNRegressor"


class Source(NamedTuple):
    """Rows, labels and groups for `fit`, and what is shown with the rows.

    `names` are texts (n,), such as image files; `shown` is the column that holds them instead.
    """

    X: Any
    y: Any = None
    names: Any = None
    groups: Groups | None = None
    shown: str | None = None

    @classmethod
    def of(
        cls,
        X: Any,
        y: Any = None,
        groups: Any = None,
        show: Any = None,
        *,
        training: bool = True,
        like: Any = None,
    ) -> "Source":
        """Read rows and labels from a folder, files or a data set; other input is unchanged.

        `like` is the model that learns the rows, if it is fitted: images are read as it needs them.
        """
        if isinstance(X, Source):
            return X
        names, X = None, stacked_images(X)
        if not isinstance(X, pd.DataFrame | np.ndarray):
            encoder = like.predictor.encoder if hasattr(like, "predictor") else None
            X, y, names = read_source(X, y, training=training, like=encoder)
        column = show if isinstance(show, str) else None
        names = names if show is None else None if column else show
        return cls(X, y, names, check_groups(groups), column)

    def naming(self, rows: "Rows") -> "Source":
        """Source with the checked texts of these rows as `names`.

        A model that shows a column takes it from the rows, unless texts are given.

        Raises
        ------
        ValueError
            If there is not one text per row, or `shown` is no column, or not that of the model.
        """
        known = rows.encoder.shown
        if self.names is not None:
            return self._replace(names=check_texts(self.names, len(rows)))
        if self.shown is not None and not isinstance(rows.X, pd.DataFrame):
            raise ValueError(
                f"show={self.shown!r} names a column, and X has no names of columns. Give one text "
                "per row: show=[...]."
            )
        if self.shown not in (None, known) and rows.encoder.columns:
            held = "no column" if known is None else f"the column {known!r}"
            raise ValueError(
                f"show={self.shown!r}: the model shows {held}. Give the texts themselves: "
                f"show=X[{self.shown!r}]."
            )
        column = self.shown or known
        if column is None or not isinstance(rows.X, pd.DataFrame):
            return self
        columns = {str(name): at for at, name in enumerate(rows.X.columns)}
        if column not in columns:
            raise ValueError(
                f"show={column!r} names no column of X.{did_you_mean(column, columns)} X has "
                f"{_listed([*columns])}."
            )
        texts = rows.X.iloc[:, columns[column]]
        return self._replace(names=check_texts(texts, len(rows), f"the column {column!r}"))


@dataclass(frozen=True, eq=False)
class Rows:
    """Checked rows of a table or images, with further views of them.

    Only this class distinguishes tables from images. Later code calls the encoder, with the same
    methods for both.

    Attributes
    ----------
    X : DataFrame or ndarray
        Rows of a table, or images, uint8 (n, height, width, channels).
    further : list of DataFrame or ndarray
        Further views of the rows, not encoded.
    encoder : TableEncoder or ImageEncoder
        Encoder of the model for these rows; a new one for a fit.
    """

    X: Any
    further: list[Any]
    encoder: AnyEncoder

    @classmethod
    def given(
        cls,
        X: Any,
        columns: KnownColumns,
        encoder: AnyEncoder | None = None,
        views: Sequence[Any] | None = None,
    ) -> Self:
        """Read and check rows for a model; without `encoder` for a fit, with `columns` set.

        DataFrames keep text, and tables keep missing values. Columns are matched by name with the
        training columns; columns that the model leaves out may be missing, and become empty.

        Raises
        ------
        ValueError
            If the rows are tables instead of images (or the reverse), are empty, have unusable
            names or values, or a view has another number of rows.
        """
        if encoder is None:
            encoder = ImageEncoder() if _are_images(X) else TableEncoder()
        else:
            X = Source.of(encoder.open_files(X), training=False).X
        checked = _checked(X, columns, encoder)
        if views is None:
            return cls(checked, [], encoder)
        if isinstance(views, np.ndarray | pd.DataFrame | torch.Tensor | str):
            raise ValueError(
                "views must be a list of arrays like X. For one view write views=[view]."
            )
        further = [_checked(view, columns, encoder) for view in views]
        for number, view in enumerate(further, start=1):
            if len(view) != len(checked):
                raise ValueError(
                    f"View {number} has {len(view)} rows but X has {len(checked)}. Every view must "
                    "hold the same rows, in the same order."
                )
        return cls(checked, further, encoder)

    def __len__(self) -> int:
        return len(self.X)

    def encode(self, tta: Sequence[TTAView] | None = None) -> list[AnyRows]:
        """Encode the rows, followed by their further views."""
        first = self.encoder.transform(self.X)
        return [first, *self.views(first, tta)]

    def views(self, encoded: AnyRows, tta: Sequence[TTAView] | None = None) -> list[AnyRows]:
        """Encode further views of encoded rows: the given ones, or image views named in `tta`.

        ValueError if views of images are given.
        """
        views: list[AnyRows] = [*self.encoder.views(cast(Any, encoded), self.further, tta)]
        return views

    def take(self, at: np.ndarray) -> Any:
        """Select some rows for the memory, with numbers in text parsed."""
        if not isinstance(self.X, pd.DataFrame):
            return self.X[at]
        read = cast(TableEncoder, self.encoder).in_numbers(self.X).copy(deep=False)
        read.attrs = {}
        return read.iloc[at].reset_index(drop=True)


def _are_images(X: Any) -> bool:
    """Whether rows are images: an array or tensor of three or four axes."""
    return isinstance(X, np.ndarray | torch.Tensor) and X.ndim in (3, 4)


def _checked(X: Any, columns: KnownColumns, encoder: AnyEncoder) -> pd.DataFrame | np.ndarray:
    of_images = encoder.kind == "images"
    if _are_images(X) != of_images:
        fitted, present = ("images", "none") if of_images else ("a table", "images")
        raise ValueError(
            f"The classifier was fitted on {fitted}; X holds {present}. Give the same kind."
        )
    if not of_images:
        return _checked_table(X, columns, cast(TableEncoder, encoder))
    images = check_images(X)
    if columns.width is None:
        columns.n_features_in_ = int(np.prod(images.shape[1:]))
    return images


def _checked_table(
    X: Any, columns: KnownColumns, encoder: TableEncoder
) -> pd.DataFrame | np.ndarray:
    """Check names, width and values; a fit sets them in `columns`."""
    if encoder.sparse_columns is not None or (columns.width is None and is_wide(X)):
        return _components(X, columns, encoder)
    names, reset = columns.names, columns.width is None
    if not isinstance(X, np.ndarray):
        X = as_rows(X, names, columns.width)
    if not isinstance(X, pd.DataFrame):
        _refuse_one_dimension(X)
        _refuse_nameless(encoder)
        used = [name for name in names or () if name not in encoder.left_out]
        is_narrow = isinstance(X, np.ndarray) and X.shape[1:] == (len(used),)
        if not is_narrow or names is None or len(used) == len(names):
            return _checked_array(X, columns, reset)
        X = pd.DataFrame(X, columns=used)
    table = _check_table(columns, X, reset, encoder.left_out)
    return encoder.in_numbers(table)


def _components(X: Any, columns: KnownColumns, encoder: TableEncoder) -> np.ndarray:
    """Components of sparse or dense rows; a fit fits their map. Remembered rows have them."""
    if isinstance(X, list | tuple):
        X = np.asarray(X, dtype=np.float64)
    _refuse_one_dimension(X)
    known = encoder.sparse_columns
    if known is not None and isinstance(X, np.ndarray) and X.shape[1:] == (known.n_components,):
        return X
    rows = sparse_rows(X)
    validate_data(columns, X, skip_check_array=True, reset=columns.width is None)
    if known is None:
        encoder.sparse_columns = known = SparseColumns.fit(rows)
    return known(rows)


def _checked_array(X: Any, columns: KnownColumns, reset: bool) -> np.ndarray:
    array: np.ndarray = validate_data(
        columns,
        _without_text(X),
        reset=reset,
        dtype=[np.float64, np.float32],
        ensure_min_samples=1,
        ensure_all_finite=False,
    )
    _refuse_infinity(array)
    return array


def _check_table(
    columns: KnownColumns, X: pd.DataFrame, reset: bool, optional: Collection[str]
) -> pd.DataFrame:
    if not len(X):
        raise ValueError("Found array with 0 sample(s): the table is empty. Give some rows.")
    refuse_repeated([str(name) for name in X.columns])  # before narwhals raises
    names = None if reset else columns.names
    if names is not None and any(isinstance(name, str) for name in X.columns):
        return _match(X, names, optional)
    if len({isinstance(name, str) for name in X.columns}) > 1:
        X = X.rename(columns=str)
    validate_data(columns, X, skip_check_array=True, reset=reset)
    if not X.shape[1]:
        raise ValueError("0 feature(s): the table has no columns but the target.")
    return X


def _match(X: pd.DataFrame, names: Sequence[str], optional: Collection[str]) -> pd.DataFrame:
    """Select the training columns by name, in their order."""
    present = [str(name) for name in X.columns]
    if present == list(names):
        return X
    held, known = set(present), set(names)
    extra = [name for name in present if name not in known]
    missing = [name for name in names if name not in held and name not in optional]
    if missing:
        hint = did_you_mean(missing[0], extra)
        raise ValueError(
            f"X lacks {_listed(missing)}, which the classifier was fitted on.{hint} It has: "
            f"{_listed(present)}."
        )
    if extra:
        warn_user(
            f"X has columns that the classifier was not fitted on: {_listed(extra)}. They are "
            "ignored.",
            ColumnWarning,
        )
    return X.set_axis(present, axis=1).reindex(columns=list(names))


def _listed(names: Sequence[str]) -> str:
    return f"the {'column' if len(names) == 1 else 'columns'} {listed(names, n=_SHOWN)}"


def _refuse_nameless(encoder: TableEncoder) -> None:
    """Raise ValueError for an array if training columns held text or dates."""
    of_text = [
        name
        for name in encoder.columns
        if encoder.kinds[name] == "date"
        or any(isinstance(value, str) for value in encoder.categories.get(name, ()))
    ]
    if of_text:
        raise ValueError(
            f"X is an array, and the classifier was fitted on a table in which {_listed(of_text)} "
            f"held text or dates. Give a DataFrame (or a dict for one row) with "
            f"{_listed(encoder.columns)}."
        )


def _refuse_infinity(array: np.ndarray) -> None:
    rows = np.flatnonzero(np.isinf(array).any(axis=1))
    if len(rows):
        raise ValueError(
            f"Input X contains infinity in {len(rows)} of {len(array)} rows, first in row "
            f"{rows[0]}. Give finite numbers; a missing value is NaN."
        )


def _refuse_one_dimension(X: Any) -> None:
    if isinstance(X, np.ndarray) and X.ndim == 1:
        raise ValueError(
            f"Expected 2D array, got 1D array instead, of shape {X.shape}. Reshape your data: one "
            "row is X.reshape(1, -1), or a dict or Series with the names of the columns; one "
            "column is X.reshape(-1, 1)."
        )


def _without_text(X: Any) -> Any:
    """Refuse text in an array or list; missing values in object arrays become NaN."""
    array = X
    if isinstance(X, list | tuple):
        array = np.array(X, dtype=object)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "OUS":
        return X
    array = array.astype(object)
    text = next((v for v in array.ravel() if isinstance(v, str) and not _is_number(v)), None)
    if text is not None:
        raise ValueError(
            f"The array holds text ({text!r}) where numbers are expected. Pass a pandas DataFrame: "
            "its text columns are taken as categories."
        )
    return np.where(pd.isna(array), np.nan, array) if array.ndim == 2 else X


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
