"""Metrics of regression: points, quantiles, intervals and distributions."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn import metrics
from sklearn.utils import check_array, check_consistent_length

from nearwise.metrics.checks import FloatArray, check_positive_int


def evaluate_numbers(
    y: npt.ArrayLike,
    prediction: npt.ArrayLike,
    *,
    crps: npt.ArrayLike | None = None,
    quantiles: npt.ArrayLike | None = None,
    levels: Sequence[float] = (),
    interval: npt.ArrayLike | None = None,
) -> dict[str, float]:
    """Compute metrics of regression, as far as the predictions are given.

    Parameters
    ----------
    y, prediction : array-like of shape (n_rows,)
        Observed targets and predicted values.
    crps : array-like of shape (n_rows,), optional
        CRPS of each row, see `AttnKNNRegressor.crps`.
    quantiles : array-like of shape (n_rows, n_levels), optional
        Quantiles at `levels` in (0, 1).
    interval : array-like of shape (n_rows, 2), optional

    Returns
    -------
    metrics : dict of str -> float
        rmse, mae, r2 (NaN for one row); crps, pinball, coverage and width if given. All but r2 and
        coverage are in the unit of `y`.

    Raises
    ------
    ValueError
        If shapes do not go together, or a value is not finite.
    """
    found = {
        "rmse": float(metrics.root_mean_squared_error(y, prediction)),
        "mae": float(metrics.mean_absolute_error(y, prediction)),
        "r2": float(metrics.r2_score(y, prediction)) if np.size(y) > 1 else float("nan"),
    }
    if crps is not None:
        found["crps"] = float(_checked(y, crps)[1].mean())
    if quantiles is not None:
        found["pinball"] = pinball_loss(y, quantiles, levels)
    return found if interval is None else found | interval_coverage(y, interval)


def pinball_loss(y: npt.ArrayLike, quantiles: npt.ArrayLike, levels: Sequence[float]) -> float:
    """Return the mean pinball loss of quantiles (n_rows, n_levels), in the unit of `y`."""
    known, guesses = _checked(y, quantiles)
    each = zip(guesses.T, levels, strict=True)
    return float(np.mean([metrics.mean_pinball_loss(known, q, alpha=level) for q, level in each]))


def interval_coverage(y: npt.ArrayLike, interval: npt.ArrayLike) -> dict[str, float]:
    """Return the share of `y` (n_rows,) in intervals (n_rows, 2), and the mean width."""
    known, ends = _checked(y, interval)
    inside = (ends[:, 0] <= known) & (known <= ends[:, 1])
    return {"coverage": float(inside.mean()), "width": float(np.diff(ends).mean())}


def pit_counts(below: npt.ArrayLike, up_to: npt.ArrayLike, n_bins: int = 10) -> FloatArray:
    """Count rows by the predicted probability below their target (PIT), (n_bins,).

    Counts are uniform for calibrated distributions. `below` and `up_to` (n_rows,) are the
    probabilities of less than, and of at most, the target: a target with a positive probability,
    such as a bound, is spread evenly between them.

    References
    ----------
    Czado, Gneiting and Held, "Predictive Model Assessment for Count Data", 2009.
    """
    check_positive_int(n_bins, "n_bins")
    start, stop = _checked(below, up_to)
    edges = np.linspace(0, 1, n_bins + 1)[1:-1, None]
    reached = np.clip((edges - start) / np.maximum(stop - start, 1e-12), 0, 1).sum(1)
    return np.diff([0, *reached, len(start)])


def _checked(*arrays: npt.ArrayLike) -> list[FloatArray]:
    check_consistent_length(*arrays)
    return [check_array(one, dtype=np.float64, ensure_2d=False) for one in arrays]
