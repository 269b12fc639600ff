"""Paired differences of rows that several seeds answered: the spread of both counts."""

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from nearwise.metrics.checks import check_level
from nearwise_lab.comparisons import PairedDifference


def crossed_difference(differences: npt.ArrayLike, *, level: float = 0.95) -> PairedDifference:
    """Average differences over seeds and rows, with an interval for new seeds and new rows.

    Parameters
    ----------
    differences : float array-like of shape (n_seeds, n_rows)
        Value of one method minus the other, for the same rows in every seed; for accuracy the
        difference of right (1) and wrong (0).
    level : float in (0, 1), default=0.95
        Coverage of the interval.

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
    check_level(level)
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
    mean, variance = float(values.mean()), sum(v for v, _ in parts)
    half = 0.0
    if variance > 0:
        freedom = variance**2 / sum(v**2 / f for v, f in parts)
        half = float(stdtrit(freedom, 0.5 + 0.5 * level)) * np.sqrt(variance)
    return PairedDifference(mean, mean - half, mean + half, len(values), level, "t")
