"""Selective prediction of a regressor: abstention on rows with wide intervals."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearwise.estimators.uncertainty.conformal import check_number
from nearwise.estimators.uncertainty.selective import check_coverage

if TYPE_CHECKING:
    from nearwise.estimators.number_query import NumberQuery


@dataclass(frozen=True)
class NumberSelection:
    """Predictions, mask of accepted rows, and expected error of the accepted rows.

    Attributes
    ----------
    predictions : float64 ndarray of shape (n,)
        Predicted means, also of rows not accepted.
    accepted : bool ndarray of shape (n,)
    interval : float64 ndarray of shape (n, 2)
        Intervals of `confidence`.
    width : float64 ndarray of shape (n,)
        Width of the intervals; a row is accepted if it is at most `threshold`.
    threshold : float
    coverage : float
        Share of the calibration rows that the threshold accepts; expected also for new rows.
    expected_error : float
        Leave-one-out mean absolute error of the accepted calibration rows; NaN if there are none.
    error_of_all : float
        Leave-one-out mean absolute error of all calibration rows.
    interval_coverage : float
        Share of the accepted calibration rows with the target in the interval.
    confidence : float
    n_calibration, n_accepted : int
        Number of calibration rows, and of the accepted ones among them.
    """

    predictions: np.ndarray
    accepted: np.ndarray
    interval: np.ndarray
    width: np.ndarray
    threshold: float
    coverage: float
    expected_error: float
    error_of_all: float
    interval_coverage: float
    confidence: float
    n_calibration: int
    n_accepted: int


def select(
    query: "NumberQuery", coverage: float | None, max_width: float | None, confidence: float
) -> NumberSelection:
    """Accept rows with narrow intervals; see `AttnKNNRegressor.predict_selective`."""
    what = "of the intervals of rows to answer, in the unit of the target"
    check_coverage(coverage, "max_width", max_width, what)
    if max_width is not None:
        check_number("max_width", max_width)
        if not 0.0 < max_width < np.inf:
            raise ValueError(f"max_width={max_width!r} must be a positive number.")
    known, interval = query.calibration_numbers(), query.interval(confidence)
    levels = known.levels(confidence, known.means)
    own = known.as_new.quantiles(levels)
    width, of_known = interval[:, 1] - interval[:, 0], own[:, 1] - own[:, 0]
    threshold = max_width
    if threshold is None:
        assert coverage is not None  # exactly one of both is given
        order = np.argsort(of_known, kind="stable")
        share = np.cumsum(known.counts[order]) / known.counts.sum()
        last = int(np.searchsorted(share, coverage - 1e-9))
        threshold = float(of_known[order[min(last, len(order) - 1)]])
    accepted = of_known <= threshold
    away = np.abs(known.means - known.targets)
    inside = (levels[:, 0] <= known.levels_reached) & (known.levels_reached <= levels[:, 1])
    counts, total = known.counts * accepted, float(known.counts.sum())
    some = float(counts.sum())
    return NumberSelection(
        query.predict(),
        width <= threshold,
        interval,
        width,
        float(threshold),
        some / total,
        float(away @ counts) / some if some else np.nan,
        float(away @ known.counts) / total,
        float(inside @ counts) / some if some else np.nan,
        confidence,
        len(of_known),
        int(accepted.sum()),
    )
