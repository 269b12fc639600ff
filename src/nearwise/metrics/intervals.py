"""Bootstrap intervals of metrics."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import FloatArray, check_level, check_positive_int, check_predictions

Metric = Callable[[npt.ArrayLike, npt.ArrayLike], float]


class Interval(NamedTuple):
    """An estimate with its interval.

    Attributes
    ----------
    estimate, low, high : float
        The metric on all rows, and the ends of the interval.
    """

    estimate: float
    low: float
    high: float


def bootstrap_interval(
    metric: Metric,
    y: npt.ArrayLike,
    proba: npt.ArrayLike,
    *,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: int = 0,
) -> Interval:
    """Compute a percentile bootstrap interval of a metric over rows.

    Parameters
    ----------
    metric : callable (y, proba) -> float
        Metric, for example `accuracy` or ``functools.partial(ece, n_bins=10)``.
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)
    level : float in (0, 1), default=0.95
        Coverage of the interval.
    n_resamples : int, default=1000
        Number of resamples of the rows with replacement.
    random_state : int, default=0
        Seed; the same seed gives the same interval.

    Returns
    -------
    interval : Interval
        Calibration errors are biased upwards in resamples; their estimate can lie
        below `low`.

    References
    ----------
    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13.
    """
    predictions = check_predictions(y, proba)
    labels, checked = predictions.labels, predictions.proba
    values = resampled(
        lambda rows: metric(labels[rows], checked[rows]),
        predictions.n_rows,
        level,
        n_resamples,
        random_state,
    )
    return Interval(float(metric(labels, checked)), *percentiles(values, level))


def resampled(
    statistic: Callable[[npt.NDArray[np.int64]], float | Sequence[float]],
    n: int,
    level: float,
    n_resamples: int,
    random_state: int,
) -> FloatArray:
    """Compute statistics on `n_resamples` resamples of `n` rows with replacement."""
    check_level(level)
    check_positive_int(n_resamples, "n_resamples")
    rng = np.random.default_rng(random_state)
    return np.array([statistic(rng.integers(0, n, size=n)) for _ in range(n_resamples)])


def percentiles(values: FloatArray, level: float) -> tuple[float, float]:
    """Return the ends of the central interval with a share `level` of the values."""
    low, high = np.quantile(values, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
    return float(low), float(high)
