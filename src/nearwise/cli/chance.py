"""Statistics of a verdict: what differs, and what may be chance."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.95  # of every interval
_DRAWS = 1000  # of labels, for calibration errors by chance


class Estimate(NamedTuple):
    """A value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 if the interval is above 0, -1 if it is below, 0 within chance."""
        return int(self.low > 0) - int(self.high < 0)


def share_of(right: "np.ndarray") -> Estimate:
    """Share of True among independent rows, with its Wilson interval."""
    import numpy as np

    from nearwise.metrics.calibration import wilson_interval

    share, n = np.array([right.mean()]), np.array([float(len(right))])
    low, high = wilson_interval(share, n, LEVEL)
    return Estimate(float(share[0]), float(low[0]), float(high[0]))


def share_difference(first: "np.ndarray", second: "np.ndarray") -> Estimate:
    """Difference of the shares of True in paired rows, with an interval for few differing rows.

    References
    ----------
    Bonett and Price, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions
    Based on Paired Data", Journal of Educational and Behavioral Statistics 37, 2012.
    """
    import numpy as np
    from scipy.special import ndtri

    n = len(first) + 2
    more, less = ((part.sum() + 1) / n for part in (first & ~second, second & ~first))
    half = float(ndtri(0.5 + LEVEL / 2) * np.sqrt((more + less - (more - less) ** 2) / n))
    middle = float(more - less)
    return Estimate(float(first.mean() - second.mean()), middle - half, middle + half)


def mean_difference(first: "np.ndarray", second: "np.ndarray", n_resamples: int) -> Estimate:
    """Mean of first - second over rows, with a bootstrap interval of the paired differences."""
    import numpy as np

    from nearwise.metrics.intervals import percentiles, resampled

    apart = np.asarray(first, dtype=float) - second
    values = resampled(lambda rows: float(apart[rows].mean()), len(apart), LEVEL, n_resamples, 0)
    return Estimate(float(apart.mean()), *percentiles(values, LEVEL))


def area_under_curve(positive: "np.ndarray", scores: "np.ndarray") -> Estimate:
    """Area under the ROC curve, with the interval of DeLong.

    Parameters
    ----------
    positive : bool ndarray of shape (n_rows,)
        Both kinds must occur.
    scores : ndarray of shape (n_rows,)
        Larger for rows that are more likely positive; ties count half.

    References
    ----------
    DeLong et al., "Comparing the Areas under Two or More Correlated Receiver Operating
    Characteristic Curves", Biometrics 44, 1988.
    """
    import numpy as np
    from scipy.special import ndtri
    from scipy.stats import rankdata

    ranks = rankdata(scores)
    of_class = [(ranks[part] - rankdata(scores[part])) for part in (positive, ~positive)]
    n, m = int(positive.sum()), int((~positive).sum())
    above, below = (
        of_class[0] / m,
        1 - of_class[1] / n,
    )  # share of the other class on the right side
    area = float(above.mean())
    spread = sum(part.var(ddof=1) / len(part) for part in (above, below) if len(part) > 1)
    half = float(ndtri(0.5 + LEVEL / 2) * np.sqrt(spread))
    return Estimate(area, max(0.0, area - half), min(1.0, area + half))


def calibration_by_chance(confidence: "np.ndarray") -> float:
    """ECE that honest probabilities reach or exceed in one of twenty tests.

    `confidence` (n_rows,) are the largest probabilities. Whether a row is right is drawn with that
    probability.
    """
    import numpy as np

    from nearwise.metrics.calibration import N_BINS, equal_width_bins

    bins = equal_width_bins(confidence, N_BINS)
    expected = np.bincount(bins, confidence, N_BINS)
    rng, found = np.random.default_rng(0), np.empty(_DRAWS)
    for i in range(_DRAWS):
        right = np.bincount(bins, rng.random(len(bins)) < confidence, N_BINS)
        found[i] = abs(expected - right).sum() / len(bins)
    return float(np.quantile(found, LEVEL))


def more_than_expected(n_found: int, expected: float) -> bool:
    """Whether a Poisson count is above its expectation beyond chance (1 in 100)."""
    from scipy.stats import poisson

    return bool(n_found and poisson.sf(n_found - 1, expected) < 0.01)
