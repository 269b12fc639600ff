"""Comparisons of methods: paired differences with their intervals, and mean ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit
from scipy.stats import rankdata

from nearwise.metrics.calibration import wilson_interval
from nearwise.metrics.checks import FloatArray, check_level, check_predictions
from nearwise.metrics.intervals import Metric, percentiles, resampled

Verdict = Literal["higher", "lower", "none"]
LEVEL = 0.95
FEW_ROWS = 20  # differing rows up to which a spread seen in them is no guide


@dataclass(frozen=True)
class PairedDifference:
    """Mean of a - b over pairs, with its interval.

    Attributes
    ----------
    mean : float
        Mean difference a - b, in the unit of the values.
    low, high : float
        Ends of the interval; infinite where one pair leaves the spread unknown.
    n : int
        Number of pairs (seeds or rows).
    level : float
        Coverage of the interval, for example 0.95.
    method : {"t", "bootstrap"}
        How the interval was made.
    freedom : float, optional
        Degrees of freedom of a "t" interval with a finite width.
    """

    mean: float
    low: float
    high: float
    n: int
    level: float
    method: Literal["t", "bootstrap"]
    freedom: float | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether a is "higher" or "lower" than b; "none" when the interval holds 0."""
        if self.low <= 0.0 <= self.high:
            return "none"
        return "higher" if self.low > 0.0 else "lower"

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the difference by the "t" interval; NaN where there is none."""
        half = (self.high - self.low) / 2
        if self.freedom is None or half == 0:
            return float("nan")
        scale = half / float(stdtrit(self.freedom, 0.5 + 0.5 * self.level))
        return float(2 * stdtr(self.freedom, -abs(self.mean) / scale))

    def as_dict(self) -> dict[str, Any]:
        """Fields and verdict for JSON; an infinite end becomes None."""
        fields = asdict(self) | {"verdict": self.verdict}
        return {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in fields.items()
        }

    def __str__(self) -> str:
        """Return the difference with its interval, n and verdict in one line."""
        interval = f"[{self.low:+.4g}, {self.high:+.4g}]"
        return f"{self.mean:+.4g} {interval} (n={self.n}, {self.verdict})"


def paired_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    method: Literal["t", "bootstrap"] = "t",
    level: float = 0.95,
    n_resamples: int = 10_000,
) -> PairedDifference:
    """Average a - b over pairs, with a t or a percentile bootstrap interval.

    Parameters
    ----------
    a, b : float array-like of shape (n,)
        Values of two methods on the same seeds ("t"), or losses of the same rows
        ("bootstrap"), in the same order.
    method : {"t", "bootstrap"}, default="t"
        "t": Student's interval, for few pairs such as seeds. "bootstrap": percentile
        interval, for many pairs such as rows.
    level : float in (0, 1), default=0.95
        Coverage of the interval.
    n_resamples : int, default=10000
        Resamples of the bootstrap.

    Returns
    -------
    difference : PairedDifference
        One pair has no spread: its interval is infinite and its verdict "none".

    Raises
    ------
    ValueError
        If `a` and `b` differ in shape, are empty or hold NaN, or an option is unknown.
    """
    check_level(level)
    difference = _check_pairs(a, b)
    n = int(difference.shape[0])
    mean = float(difference.mean())
    if method not in ("t", "bootstrap"):
        raise ValueError(f'method must be "t" or "bootstrap", got {method!r}.')
    if n == 1:
        return PairedDifference(mean, -np.inf, np.inf, n, level, method)
    if method == "t":
        scale = float(difference.std(ddof=1)) / np.sqrt(n)
        half = float(stdtrit(n - 1, 0.5 + 0.5 * level)) * scale
        low, high = float(mean - half), float(mean + half)
        return PairedDifference(mean, low, high, n, level, method, n - 1)
    values = resampled(lambda rows: float(difference[rows].mean()), n, level, n_resamples, 0)
    return PairedDifference(mean, *percentiles(values, level), n, level, method)


def crossed_difference(differences: npt.ArrayLike) -> PairedDifference:
    """Average differences over seeds and rows, with a 95 % interval for new seeds and new rows.

    Parameters
    ----------
    differences : float array-like of shape (n_seeds, n_rows)
        Value of one method minus the other, for the same rows in every seed; for accuracy the
        difference of right (1) and wrong (0).

    Returns
    -------
    difference : PairedDifference
        `n` is the number of seeds. Variance: that of the seeds' means over the number of seeds,
        plus that of the rows' means over the number of rows; Student's quantile with
        Satterthwaite's degrees of freedom. One seed leaves its own spread unknown: the interval
        is then that of the rows alone. A little wide, as chance in single answers counts twice.

    Raises
    ------
    ValueError
        If the shape is another, there are fewer than two rows, or a value is not finite.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] == 0 or values.shape[1] < 2:
        raise ValueError(
            f"differences have shape {values.shape}. Pass (n_seeds, n_rows) with two rows at least."
        )
    if not np.isfinite(values).all():
        raise ValueError("differences hold NaN or infinity. Leave out seeds that did not finish.")
    parts = [(float(values.mean(axis=0).var(ddof=1)) / values.shape[1], values.shape[1] - 1)]
    if len(values) > 1:
        parts.append((float(values.mean(axis=1).var(ddof=1)) / len(values), len(values) - 1))
    return with_components(float(values.mean()), parts, len(values))


def with_components(mean: float, parts: Sequence[tuple[float, int]], n: int) -> PairedDifference:
    """Compute the 95 % interval of a mean from variance components and their degrees of freedom.

    Student's quantile with Satterthwaite's degrees of freedom; `n` is that of the result.
    """
    variance = sum(v for v, _ in parts)
    half, freedom = 0.0, None
    if variance > 0:
        freedom = variance**2 / sum(v**2 / f for v, f in parts)
        half = float(stdtrit(freedom, 0.5 + 0.5 * LEVEL)) * np.sqrt(variance)
    return PairedDifference(mean, mean - half, mean + half, n, LEVEL, "t", freedom)


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Adjust p-values (n,) for their number, so that all hold at once; NaN stays NaN.

    References
    ----------
    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    p = np.asarray(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    adjusted = p.copy()
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)).clip(max=1.0)
    return adjusted


def paired_bootstrap(
    metric: Metric,
    y: npt.ArrayLike,
    proba_a: npt.ArrayLike,
    proba_b: npt.ArrayLike,
    *,
    n_resamples: int = 1000,
) -> PairedDifference:
    """Compare metric(a) with metric(b) on the same rows by a paired bootstrap, 95 %.

    For metrics that are not means over rows, such as `ece` or `aurc`: both methods are
    measured on the same resampled rows.

    Parameters
    ----------
    metric : callable (y, proba) -> float
        The metric to compare.
    y, proba_a, proba_b : true class positions (n_rows,), probabilities (n_rows, n_classes)
        Of the two methods for the same rows.
    n_resamples : int, default=1000

    Returns
    -------
    difference : PairedDifference
        `n` counts rows.
    """
    first, second = check_predictions(y, proba_a), check_predictions(y, proba_b)
    labels, a, b = first.labels, first.proba, second.proba

    def difference(rows: npt.NDArray[np.int64] | slice) -> float:
        return float(metric(labels[rows], a[rows]) - metric(labels[rows], b[rows]))

    n = first.n_rows
    mean = difference(slice(None))
    if n == 1:
        return PairedDifference(mean, -np.inf, np.inf, n, LEVEL, "bootstrap")
    values = resampled(difference, n, LEVEL, n_resamples, 0)
    return PairedDifference(mean, *percentiles(values, LEVEL), n, LEVEL, "bootstrap")


def with_score_interval(
    difference: PairedDifference, rows: npt.ArrayLike, most: float = 1.0
) -> PairedDifference:
    """Widen the interval of a difference of accuracies where few rows differ.

    Where none of 100 rows differ, their spread is 0 and the difference is not known to be. Up to
    20 differing rows the ends are at least those of a score interval: Wilson's of the rows that
    only the first answers rightly and of those that only the second does, put together.

    Parameters
    ----------
    difference : PairedDifference
    rows : float array-like of shape (n_rows,)
        Differences of the rows, means over what was repeated.
    most : float, default=1.0
        The largest difference that a row can have.

    References
    ----------
    Newcombe, "Improved confidence intervals for the difference between binomial proportions based
    on paired data", 1998; Zou and Donner, "Construction of confidence limits about effect
    measures", 2008.
    """
    values = np.asarray(rows, dtype=np.float64) / most
    if np.count_nonzero(values) > FEW_ROWS:
        return difference
    shares = np.array([values.clip(min=0).mean(), (-values).clip(min=0).mean()])
    low, high = wilson_interval(shares, np.full(2, float(len(values))), difference.level)
    down, up = shares - low, high - shares
    mean = shares[0] - shares[1]
    return replace(
        difference,
        low=min(difference.low, most * float(mean - np.hypot(down[0], up[1]))),
        high=max(difference.high, most * float(mean + np.hypot(up[0], down[1]))),
    )


def rank_methods(
    values: Mapping[str, Mapping[str, float]], *, higher_is_better: bool = False
) -> dict[str, float]:
    """Rank methods on each data set and average the ranks, best first.

    Parameters
    ----------
    values : mapping of data set -> mapping of method -> float
        Every data set needs a value for every method.
    higher_is_better : bool, default=False
        False for NLL and other errors, True for accuracy.

    Returns
    -------
    mean_rank : dict of method -> float
        1 is best; tied methods share the mean of their ranks. In ascending order.

    Raises
    ------
    ValueError
        If there is no data set, or a method lacks a value or has NaN on one.
    """
    if not values or not all(values.values()):
        raise ValueError("rank_methods needs at least one data set with at least one method.")
    methods = sorted({method for row in values.values() for method in row})
    table = np.array([[row.get(m, np.nan) for m in methods] for row in values.values()], float)
    holes = [(d, methods[j]) for i, d in enumerate(values) for j in np.where(np.isnan(table[i]))[0]]
    if holes:
        dataset, method = holes[0]
        raise ValueError(
            f"{len(holes)} values are missing or NaN, first {method!r} on {dataset!r}. "
            "Leave out the method or the data set, so that all ranks compare the same methods."
        )
    ranks = rankdata(-table if higher_is_better else table, axis=1)
    means = ranks.mean(axis=0)
    return {methods[i]: float(means[i]) for i in np.argsort(means, kind="stable")}


def _check_pairs(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(
            f"a and b must be pairs of one shape (n,), got {first.shape} and {second.shape}. "
            "Give both methods the same seeds in the same order."
        )
    if first.shape[0] == 0:
        raise ValueError("a and b are empty. Pass at least one pair.")
    difference = first - second
    if not np.isfinite(difference).all():
        pair = int(np.flatnonzero(~np.isfinite(difference))[0])
        raise ValueError(f"a or b has NaN or infinity in pair {pair}. Leave that pair out of both.")
    return difference
