"""Checks on what a user hands to the estimator, with errors that say what to do."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import validate_data

from nearwise.estimators.images import ImageEncoder, check_images, is_images
from nearwise.estimators.table import refuse_repeated


def check_rows(estimator: Any, X: Any, *, reset: bool) -> pd.DataFrame | np.ndarray:
    """Bring rows into an array or a DataFrame and check names, width and values.

    DataFrames keep text and missing values; arrays and tensors must be finite numbers.
    """
    if is_images(X):
        return _check_image_rows(estimator, X, reset)
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu()
        X = (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    if isinstance(X, pd.DataFrame):
        if not len(X):
            raise ValueError("Found array with 0 sample(s): the table is empty. Give some rows.")
        refuse_repeated([str(name) for name in X.columns])  # before narwhals does
        validate_data(estimator, X, skip_check_array=True, reset=reset)
        if not X.shape[1]:
            raise ValueError("0 feature(s): the table has no columns but the target.")
        return X
    _refuse_text(X)
    array: np.ndarray = validate_data(
        estimator,
        X,
        reset=reset,
        dtype=[np.float64, np.float32],
        ensure_min_samples=1,
        ensure_all_finite=False,
    )
    _refuse_not_finite(array)
    return array


def check_kind(encoder: Any, X: Any) -> None:
    """Refuse images where the classifier was fitted on a table, and the other way round."""
    if is_images(X) != isinstance(encoder, ImageEncoder):
        fitted, given = (
            ("images", "none") if isinstance(encoder, ImageEncoder) else ("a table", "images")
        )
        raise ValueError(
            f"The classifier was fitted on {fitted}; X holds {given}. Give what it knows."
        )


def _check_image_rows(estimator: Any, X: Any, reset: bool) -> np.ndarray:
    images = check_images(X)
    if reset:
        estimator.n_features_in_ = int(np.prod(images.shape[1:]))
        estimator.__dict__.pop("feature_names_in_", None)
    return images


def check_views(
    estimator: Any, views: Sequence[Any] | None, n_rows: int
) -> list[pd.DataFrame | np.ndarray]:
    """Check further views of rows that are checked themselves; the same rows, the same columns."""
    if views is None:
        return []
    if isinstance(views, np.ndarray | pd.DataFrame | torch.Tensor | str):
        raise ValueError("views must be a list of arrays like X. For one view write views=[view].")
    checked = [check_rows(estimator, view, reset=False) for view in views]
    for place, view in enumerate(checked):
        if len(view) != n_rows:
            raise ValueError(
                f"View {place + 1} has {len(view)} rows but X has {n_rows}. Every view must hold "
                "the same rows, in the same order."
            )
    return checked


def _refuse_not_finite(array: np.ndarray) -> None:
    for what, bad in (("NaN", np.isnan), ("infinity", np.isinf)):
        rows = np.flatnonzero(bad(array).any(axis=1))
        if len(rows):
            hint = " A pandas DataFrame may have gaps: its missing values are filled."
            raise ValueError(
                f"Input X contains {what} in {len(rows)} of {len(array)} rows, first in row "
                f"{rows[0]}. Give finite numbers.{hint if what == 'NaN' else ''}"
            )


def _refuse_text(X: Any) -> None:
    array = X
    if isinstance(X, list | tuple):
        array = np.array(X, dtype=object)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "OUS":
        return
    array = array.astype(object)
    text = next((v for v in array.ravel() if isinstance(v, str) and not _is_number(v)), None)
    if text is not None:
        raise ValueError(
            f"The array holds text ({text!r}) where numbers are expected. Pass a pandas DataFrame: "
            "its text columns are taken as categories."
        )


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
            f"sample_weight has shape {weight.shape} but X has {n_rows} rows. Give one weight a "
            "row."
        )
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError(
            "sample_weight holds negative, infinite or missing values. Give finite weights of at "
            "least 0."
        )
    if not weight.any():
        raise ValueError("Every sample_weight is zero. Give a positive weight to some rows.")
    return weight
