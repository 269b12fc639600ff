"""What a user hands to the estimator, in any container, checked; errors say what to do."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from nearwise.classifier.inputs.columns import (
    ColumnReport,
    ColumnWarning,
    Wish,
    plan_columns,
    refuse_repeated,
)
from nearwise.classifier.inputs.images import ImageEncoder, check_images, from_files, from_source
from nearwise.classifier.inputs.table import TableEncoder
from nearwise.names import did_you_mean, listed
from nearwise.warn import warn_user

_SHOWN = 12  # names in a message


class KnownColumns(BaseEstimator):
    """Number and names of the training columns, as scikit-learn's checks set and read them.

    A part of each fitted model, so that a refit shows other columns when it is published, not
    while it runs. For images `n_features_in_` counts the values of one.
    """

    n_features_in_: int
    feature_names_in_: np.ndarray

    @property
    def names(self) -> list[str] | None:
        """Names of the columns; None where `fit` was given an array."""
        found = getattr(self, "feature_names_in_", None)
        return None if found is None else found.tolist()


KnownColumns.__name__ = "AttnKNNClassifier"  # scikit-learn's messages name the class


def is_images(X: Any) -> bool:
    """Whether rows are images: an array or tensor of three or four axes."""
    if not isinstance(X, np.ndarray | torch.Tensor):
        return False
    return X.ndim in (3, 4)


def check_rows(
    columns: KnownColumns, X: Any, *, reset: bool, optional: Collection[str] = ()
) -> pd.DataFrame | np.ndarray:
    """Bring rows into an array or a DataFrame and check names, width and values.

    `reset` notes in `columns` what training rows have. DataFrames keep text; both keep missing
    values. Columns are matched by name with those that `fit` was given; those of `optional` may be
    missing, and become empty.
    """
    if is_images(X):
        images = check_images(X)
        if reset:
            columns.n_features_in_ = int(np.prod(images.shape[1:]))
        return images
    X = as_rows(X) if reset else as_rows(X, columns.names, columns.n_features_in_)
    if isinstance(X, pd.DataFrame):
        return _check_table(columns, X, reset, optional)
    _refuse_one_dimension(X)
    X = _without_text(X)
    array: np.ndarray = validate_data(
        columns,
        X,
        reset=reset,
        dtype=[np.float64, np.float32],
        ensure_min_samples=1,
        ensure_all_finite=False,
    )
    _refuse_infinity(array)
    return array


def check_new_rows(columns: KnownColumns, X: Any, encoder: Any) -> pd.DataFrame | np.ndarray:
    """Read and check rows for a model with this encoder, of the kind that it was fitted on."""
    if not isinstance(X, pd.DataFrame | np.ndarray):  # files, folders and data sets are others
        X = from_source(from_files(X, encoder), None, training=False).X
    if is_images(X) != isinstance(encoder, ImageEncoder):
        fitted, present = (
            ("images", "none") if isinstance(encoder, ImageEncoder) else ("a table", "images")
        )
        raise ValueError(
            f"The classifier was fitted on {fitted}; X holds {present}. Give the same kind."
        )
    if isinstance(encoder, ImageEncoder):
        return check_rows(columns, X, reset=False)
    X = as_rows(X, columns.names, columns.n_features_in_)
    names = columns.names or []
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[1] < len(names):
        left_out = set(encoder.left_out)
        used = [name for name in names if name not in left_out]
        if X.shape[1] == len(used):
            _refuse_nameless(encoder)
            X = pd.DataFrame(X, columns=used)
    if not isinstance(X, pd.DataFrame):
        _refuse_one_dimension(X)
        _refuse_nameless(encoder)
    rows = check_rows(columns, X, reset=False, optional=encoder.left_out)
    return encoder.in_numbers(rows) if isinstance(rows, pd.DataFrame) else rows


def _check_table(
    columns: KnownColumns, X: pd.DataFrame, reset: bool, optional: Collection[str]
) -> pd.DataFrame:
    if not len(X):
        raise ValueError("Found array with 0 sample(s): the table is empty. Give some rows.")
    refuse_repeated([str(name) for name in X.columns])  # before narwhals does
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
    """Give the columns of training, by name and in their order."""
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
    """Refuse an array where the columns of training hold what no array of numbers can."""
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


def check_views(
    columns: KnownColumns,
    views: Sequence[Any] | None,
    n_rows: int,
    optional: Collection[str] = (),
) -> list[pd.DataFrame | np.ndarray]:
    """Check further views of rows that are checked themselves; the same rows, the same columns."""
    if views is None:
        return []
    if isinstance(views, np.ndarray | pd.DataFrame | torch.Tensor | str):
        raise ValueError("views must be a list of arrays like X. For one view write views=[view].")
    checked = [check_rows(columns, view, reset=False, optional=optional) for view in views]
    for number, view in enumerate(checked):
        if len(view) != n_rows:
            raise ValueError(
                f"View {number + 1} has {len(view)} rows but X has {n_rows}. Every view must hold "
                "the same rows, in the same order."
            )
    return checked


def report_columns(X: Any, columns: Mapping[str, Wish] | None = None) -> list[ColumnReport]:
    """Tell, without fitting, what the columns of a table would be used as.

    Parameters
    ----------
    X : DataFrame of shape (n_rows, n_columns), or a table of polars or pyarrow
    columns : mapping of str to str, optional
        As in `AttnKNNClassifier`.

    Returns
    -------
    reports : list of ColumnReport

    Raises
    ------
    ValueError
        If `X` is not a table, and as in `AttnKNNClassifier.fit`.
    """
    frame = as_rows(X)
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"X is a {type(X).__name__}, which has no columns by name. Give a table.")
    names = [str(name) for name in frame.columns]
    refuse_repeated(names)
    frame = frame.set_axis(names, axis=1)
    return [plan.report for plan in plan_columns(frame, columns)]


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
    """Refuse text in what is not a table; in arrays of objects every missing value becomes NaN."""
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


def check_weight(sample_weight: Any, n_rows: int) -> np.ndarray | None:
    """Return sample weights as float64 (n,), or None."""
    if sample_weight is None:
        return None
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {weight.shape} but X has {n_rows} rows. Give one weight "
            "per row."
        )
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError(
            "sample_weight holds negative, infinite or missing values. Give finite weights of at "
            "least 0."
        )
    if not weight.any():
        raise ValueError("Every sample_weight is zero. Give a positive weight to some rows.")
    return weight


def as_rows(X: Any, names: Sequence[str] | None = None, width: int | None = None) -> Any:
    """Bring rows into a DataFrame, or hand arrays and lists of numbers back as they are.

    What gives an Arrow stream (polars, pyarrow, duckdb) is a table. A mapping from names to values,
    and a Series that is named by columns (`names` or `width` of training), are one row; a list of
    mappings is as many. ValueError if `X` is sparse, lazy, empty, or a single column.
    """
    _refuse_sparse(X)
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu()
        return (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    if isinstance(X, pd.DataFrame | np.ndarray):
        return X
    if isinstance(X, pd.Series):
        return _one_row(X, names, width)
    if isinstance(X, Mapping):
        is_row = all(np.ndim(value) == 0 for value in X.values())
        return pd.DataFrame([dict(X)]) if is_row else pd.DataFrame(dict(X))
    if isinstance(X, list | tuple) and not X:
        raise ValueError("Found array with 0 sample(s): X is empty. Give some rows.")
    if isinstance(X, list | tuple) and all(isinstance(row, Mapping) for row in X):
        return pd.DataFrame([dict(row) for row in X])
    if hasattr(X, "collect") and not hasattr(X, "__arrow_c_stream__"):
        raise ValueError(f"X is a {type(X).__name__}, which holds no rows yet. Give X.collect().")
    return _from_arrow(X) if _is_arrow(X) else X


def _is_arrow(X: Any) -> bool:
    return hasattr(X, "__arrow_c_stream__") or isinstance(X, pa.RecordBatch)


def _from_arrow(X: Any) -> pd.DataFrame:
    if isinstance(X, pa.RecordBatch):
        return pa.Table.from_batches([X]).to_pandas()
    try:
        return (X if isinstance(X, pa.Table) else pa.table(X)).to_pandas()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ValueError(
            f"X is a {type(X).__name__} that gives no table ({error}). Give a table with a column "
            "for each feature."
        ) from error


def _one_row(row: pd.Series, names: Sequence[str] | None, width: int | None) -> Any:
    index = [str(name) for name in row.index]
    if names is not None and set(index) & set(names):
        return pd.DataFrame([row.tolist()], columns=pd.Index(index))
    if names is None and width == len(row):
        return row.to_numpy()[None]
    raise ValueError(
        f"Expected 2D array, got 1D array: X is a Series of {len(row)} values. A Series is one "
        "row, named by the columns of training; give one column as X.to_frame(). Reshape your "
        "data."
    )


def _refuse_sparse(X: Any) -> None:
    sparse = issparse(X) or (isinstance(X, torch.Tensor) and X.layout != torch.strided)
    dense = "X.toarray()"
    if isinstance(X, pd.DataFrame):
        sparse = any(isinstance(dtype, pd.SparseDtype) for dtype in X.dtypes)
        dense = "its sparse columns as column.sparse.to_dense()"
    if sparse:
        raise ValueError(
            "X is sparse, and neighbors are found among dense rows. Reduce it to a few dense "
            "columns first: make_pipeline(TruncatedSVD(100), AttnKNNClassifier()) with "
            f"sklearn.decomposition.TruncatedSVD; or give {dense} where that fits in memory."
        )
