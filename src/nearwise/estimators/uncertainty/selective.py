"""Selective prediction: thresholds on the largest probability, with risk bounds."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv

from nearwise.estimators.uncertainty.calibration_rows import CalibrationRows
from nearwise.estimators.uncertainty.conformal import check_number

_GRID = 50  # coverages tried for a risk: 0.02, 0.04, .., 1


@dataclass(frozen=True)
class Selection:
    """Predictions, mask of accepted rows, and risk of the accepted rows.

    Attributes
    ----------
    labels : ndarray of shape (n,)
        Predicted classes, also of rows not accepted.
    accepted : bool ndarray of shape (n,)
    score : float64 ndarray of shape (n,)
        Probability of the predicted class; a row is accepted if it is at least `threshold`.
    threshold : float
    coverage : float
        Share of the calibration rows that the threshold accepts; expected also for new rows.
    expected_risk : float
        Share of wrong rows among the accepted calibration rows.
    risk_bound : float
        Upper bound of the share of wrong accepted rows, valid with probability `confidence`.
    confidence : float
    n_calibration, n_accepted : int
        Number of calibration rows, and of the accepted ones among them.
    guarantee : str
        Statement of the bound, its assumptions and its limits.
    """

    labels: np.ndarray
    accepted: np.ndarray
    score: np.ndarray
    threshold: float
    coverage: float
    expected_risk: float
    risk_bound: float
    confidence: float
    n_calibration: int
    n_accepted: int
    guarantee: str


class Threshold(NamedTuple):
    """Threshold on the score, with accepted and wrong calibration rows.

    Attributes
    ----------
    value : float
    accepted : int
        Number of accepted rows.
    wrong : float
        Number of wrong rows among them; may be fractional if labels may be wrong.
    coverage, risk : float
        Share of accepted rows, and share of wrong rows among the accepted ones.
    """

    value: float
    accepted: int
    wrong: float
    coverage: float
    risk: float


class Judge:
    """Chooser of thresholds on the largest probability, by calibration rows.

    Parameters
    ----------
    rows : CalibrationRows
    """

    n_thresholds = _GRID

    def __init__(self, rows: CalibrationRows) -> None:
        self.score, self.wrong, self.counts = rows.parts.proba.max(axis=1), rows.wrong, rows.counts
        spread = np.ptp(rows.truth) + np.ptp(self.counts)  # range of losses for any prediction
        self.spread = float(spread) if rows.in_shares else None

    def at_coverage(self, coverage: float) -> Threshold:
        """Threshold that accepts at least a share of the calibration rows, including ties."""
        values = self.score
        order = np.argsort(-values, kind="stable")
        share = np.maximum.accumulate(np.cumsum(self.counts[order])) / self.counts.sum()
        # 0.07 * 100 is 7.000000000000001; without the tolerance 8 rows would be accepted.
        last = int(np.searchsorted(share, coverage - 1e-9))
        value = float(values[order[min(last, len(order) - 1)]])
        accepted = values >= value
        wrong = max(float(self.wrong[accepted].sum()), 0.0)
        counted = float(self.counts[accepted].sum())
        risk = min(wrong / counted, 1.0) if counted > 0 else 1.0
        return Threshold(
            value, int(accepted.sum()), wrong, counted / float(self.counts.sum()), risk
        )

    def bound(self, found: Threshold, alpha: float) -> float:
        """Upper bound of the risk above a threshold; fails with probability `alpha`."""
        if self.spread is None:
            return risk_bound(round(found.wrong), found.accepted, alpha)
        accepted = self.score >= found.value
        return bernstein_bound(self.wrong[accepted], self.counts[accepted], self.spread, alpha)

    def under_risk(self, max_risk: float, alpha: float) -> tuple[Threshold, float]:
        """Threshold of the largest coverage with a risk bound of at most `max_risk`, and the bound.

        `alpha` is divided evenly among all tried coverages, so that the bound of the chosen one
        is valid.

        Raises
        ------
        ValueError
            If there is none, with the lowest possible bound.
        """
        shares = np.arange(1, _GRID + 1) / _GRID
        tried = [self.at_coverage(share) for share in shares]
        bounds = [self.bound(t, alpha / _GRID) for t in tried]
        good = [i for i, bound in enumerate(bounds) if bound <= max_risk]
        if not good:
            best = int(np.argmin(bounds))
            needed = int(np.ceil(np.log(alpha / _GRID) / np.log1p(-max_risk)))
            more = ", and more because labels may be wrong" if self.spread else ""
            raise ValueError(
                f"max_risk={max_risk} cannot be promised: the lowest bound, on {len(self.score)} "
                f"calibration rows, is {bounds[best]:.3g} at coverage {shares[best]:.2g}. Even "
                f"without an error, {needed} accepted rows are needed{more}. Ask for a larger risk "
                "or a lower confidence, or give more rows."
            )
        return tried[good[-1]], bounds[good[-1]]


def risk_bound(wrong: int, accepted: int, alpha: float) -> float:
    """Upper Clopper-Pearson bound of the share of wrong rows; fails with probability `alpha`."""
    if wrong >= accepted:
        return 1.0
    # A quantile of the beta distribution; scipy.stats.beta.ppf is 50 times slower.
    return float(betaincinv(wrong + 1, accepted - wrong, 1.0 - alpha))


def bernstein_bound(losses: np.ndarray, counts: np.ndarray, spread: float, alpha: float) -> float:
    """Upper bound, in (0, 1], of the ratio of mean loss and mean count.

    The empirical Bernstein bound; it fails with probability at most `alpha`. It is the largest risk
    r for which the mean of `losses` - r `counts` may still be 0; these differences have a range of
    at most `spread` for every r in [0, 1].

    References
    ----------
    Maurer and Pontil, "Empirical Bernstein Bounds and Sample-Variance Penalization", COLT 2009,
    theorem 4.
    """
    n = len(losses)
    if n < 2:
        return 1.0
    log_term = np.log(2.0 / alpha)
    mean, least = max(float(losses.mean()), 0.0), 7.0 * spread * log_term / (3 * n - 3)

    def may_be(risk: float) -> float:
        variance = (losses - risk * counts).var(ddof=1)
        slack = np.sqrt(2.0 * variance * log_term / n) + least
        return float(mean - risk * counts.mean() + slack)

    # Convex in the risk and positive at 0; if negative at 1, it has a single zero.
    return 1.0 if may_be(1.0) >= 0 else float(brentq(may_be, 0.0, 1.0))


def check_coverage(coverage: float | None, name: str, other: float | None, what: str) -> None:
    """Raise ValueError unless exactly one of coverage and `other` is given, in its range."""
    if (coverage is None) == (other is None):
        seen = "neither was" if coverage is None else "both were"
        raise ValueError(
            f"Give either coverage (the share of rows to answer) or {name} ({what}); {seen} given."
        )
    if coverage is not None:
        check_number("coverage", coverage)
        if not 0.0 < coverage <= 1.0:
            raise ValueError(
                f"coverage={coverage!r} must lie in (0, 1]. To answer nine rows in ten pass 0.9."
            )


def check_request(coverage: float | None, max_risk: float | None, confidence: float) -> None:
    """Raise ValueError unless exactly one of coverage and risk is given, all in their range."""
    check_coverage(coverage, "max_risk", max_risk, "the share of answers that may be wrong")
    for name, value in (("max_risk", max_risk), ("confidence", confidence)):
        if value is not None or name == "confidence":
            check_number(name, value)
    if max_risk is not None and not 0.0 < max_risk < 1.0:
        raise ValueError(
            f"max_risk={max_risk!r} must lie between 0 and 1, both excluded. For at most one wrong "
            "answer in fifty pass 0.02."
        )
    if not 0.0 < confidence < 1.0:
        raise ValueError(
            f"confidence={confidence!r} must lie between 0 and 1, both excluded. Pass 0.95 for a "
            "bound that may fail once in twenty."
        )


_HOW = {
    "held out": "a held-out part that only heads and temperatures were fitted on",
    "cross-fitted": "training rows, each predicted without itself and by a base of other rows, "
    "while new rows are predicted by the mean over the folds",
    "left out": "training rows, each predicted without itself",
    "out of bag": "training rows, each predicted without itself, but by a head whose inputs on "
    "its neighbors come from trees that saw its label",
}


def guarantee(
    confidence: float,
    bound: float,
    n_tests: int,
    *,
    judged_on: str,
    caveat: str,
    grouped: bool = False,
) -> str:
    """Text on a risk bound, its assumptions and limits; `judged_on` as in `ClassPredictor`.

    `grouped`: there is one calibration row per group.
    """
    how = f"the rows are {_HOW[judged_on]}{caveat}"
    if grouped:
        how += "; they are one row of each group, left out with its group"
    name = "empirical Bernstein" if caveat else "Clopper-Pearson"
    corrected = f", corrected for {n_tests} thresholds tried" if n_tests > 1 else ""
    return (
        f"For rows drawn like the calibration rows, with probability {confidence:g} over the "
        f"draw of those, at most {bound:.3g} of the accepted answers are wrong ({name}"
        f"{corrected}). It is exact for a classifier fixed beforehand; here {how}. It says nothing "
        "about one row, one class, or data that changed."
    )
