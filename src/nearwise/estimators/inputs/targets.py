"""Checks and bounds of regression targets."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import column_or_1d

_LARGEST = 1e100  # squares of larger numbers overflow


def check_targets(y: Any, n_rows: int | None, name: str = "AttnKNNRegressor") -> np.ndarray:
    """Check targets: one finite number per row, float64 (n,); `n_rows` None allows any n.

    ValueError for missing, non-numeric, infinite or too large targets, with a remedy.
    """
    if y is None:
        raise ValueError(
            f"This {name} estimator requires y to be passed, but the target y is None."
        )
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] > 1:
        raise ValueError(
            f"y has {values.shape[1]} columns, and one number per row is predicted. Fit one model "
            "per target."
        )
    values = column_or_1d(values, warn=True)
    n_rows = len(values) if n_rows is None else n_rows
    if len(values) != n_rows:
        raise ValueError(f"X has {n_rows} rows but y has {len(values)} targets. Give one per row.")
    if values.dtype.kind in "cmM":
        what = (
            "Complex data not supported" if values.dtype.kind == "c" else "y holds dates or times"
        )
        raise ValueError(f"{what}: give one real number per row, such as days since the first.")
    if values.dtype.kind not in "biuf":
        values = _as_numbers(values)
    numbers: np.ndarray = values.astype(np.float64)
    missing = np.isnan(numbers)
    if missing.any():
        raise ValueError(
            f"y holds NaN or missing targets in {int(missing.sum())} of {n_rows} rows. Drop them."
        )
    if not np.abs(numbers).max(initial=0.0) <= _LARGEST:
        largest = numbers[np.abs(numbers).argmax()]
        raise ValueError(
            f"y holds {largest}, infinity or a value too large for float64 to be squared. Drop "
            "such rows, or rescale the target."
        )
    return numbers


def _as_numbers(values: np.ndarray) -> np.ndarray:
    """Parse objects and text as numbers; ValueError names the first invalid value."""
    found = pd.to_numeric(pd.Series(values.astype(object)), errors="coerce")
    strange = found.isna().to_numpy() & ~pd.isna(values)
    if strange.any():
        raise ValueError(
            f"y holds {values[strange].tolist()[0]!r}, which is no number. AttnKNNRegressor "
            "predicts numbers; AttnKNNClassifier predicts classes."
        )
    return found.to_numpy(dtype=np.float64, na_value=np.nan)


def bounds_of(targets: np.ndarray) -> tuple[float, float]:
    """Least and largest predicted target; infinite without evidence for a bound.

    0 bounds targets of one sign. The least or largest training target is a bound if over 1 % of
    the rows (and over two rows) have exactly that value, as in capped or often zero targets.
    """
    least, largest = float(targets.min()), float(targets.max())
    enough = max(2, 0.01 * len(targets))
    lower = least if (targets == least).sum() > enough else 0.0 if least >= 0 else -np.inf
    upper = largest if (targets == largest).sum() > enough else 0.0 if largest <= 0 else np.inf
    return lower, upper
