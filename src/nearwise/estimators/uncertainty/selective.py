"""Abstention: thresholds on the largest probability, with what they promise."""

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
    """Predictions, which of them to act on, and what is known about those.

    Attributes
    ----------
    labels : ndarray of shape (n,)
        Predicted classes, of the rows not accepted too.
    accepted : bool ndarray of shape (n,)
    score : float64 ndarray of shape (n,)
        Probability of the predicted class; a row is accepted where it is at least `threshold`.
    threshold : float
    coverage : float
        Share of the calibration rows that the threshold accepts: to be expected of new rows.
    expected_risk : float
        Share of wrong rows among those accepted.
    risk_bound : float
        With probability `confidence`, no more of the accepted rows are wrong in the long run.
    confidence : float
    n_calibration, n_accepted : int
        Rows used for all this, and how many of them are accepted.
    guarantee : str
        What the bound promises and what it does not.
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
    """A threshold on calibration rows: what it accepts, and how much of that is wrong.

    Attributes
    ----------
    value : float
    accepted : int
        Rows.
    wrong : float
        How many of them are wrong; no whole number where rows count as classes in shares.
    coverage, risk : float
        Share of the rows that is accepted, and share of these that is wrong.
    """

    value: float
    accepted: int
    wrong: float
    coverage: float
    risk: float


class Judge:
    """The calibration rows by the largest probability, and thresholds on it.

    Parameters
    ----------
    rows : CalibrationRows
    """

    n_thresholds = _GRID

    def __init__(self, rows: CalibrationRows) -> None:
        self.score, self.wrong, self.counts = rows.parts.proba.max(axis=1), rows.wrong, rows.counts
        spread = np.ptp(rows.truth) + np.ptp(self.counts)  # of losses, whatever is predicted
        self.spread = float(spread) if rows.in_shares else None

    def at_coverage(self, coverage: float) -> Threshold:
        """Threshold that accepts at least a share of the calibration rows; ties come with it."""
        values = self.score
        order = np.argsort(-values, kind="stable")
        share = np.maximum.accumulate(np.cumsum(self.counts[order])) / self.counts.sum()
        # 0.07 * 100 is 7.000000000000001: without the slack that would accept 8 rows.
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
        """Bound the share of wrong rows above a threshold; exceeded with probability `alpha`."""
        if self.spread is None:
            return risk_bound(round(found.wrong), found.accepted, alpha)
        accepted = self.score >= found.value
        return bernstein_bound(self.wrong[accepted], self.counts[accepted], self.spread, alpha)

    def under_risk(self, max_risk: float, alpha: float) -> tuple[Threshold, float]:
        """Threshold of the largest coverage whose risk bound is small enough, and the bound.

        `alpha` is shared out evenly among all coverages tried, so that whichever is taken, its
        bound holds.

        Raises
        ------
        ValueError
            If there is none, with the lowest risk that can be promised.
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
    """Upper Clopper-Pearson bound of a share of wrong rows, exceeded with probability `alpha`."""
    if wrong >= accepted:
        return 1.0
    # A quantile of the beta distribution; scipy.stats.beta.ppf gives the same 50 times slower.
    return float(betaincinv(wrong + 1, accepted - wrong, 1.0 - alpha))


def bernstein_bound(losses: np.ndarray, counts: np.ndarray, spread: float, alpha: float) -> float:
    """Upper bound of the mean loss over the mean count, (0, 1].

    The empirical Bernstein bound; exceeded with probability `alpha` at most. It is the largest risk
    r at which the mean of `losses` - r `counts`, which lie within `spread` of each other for every
    r in [0, 1], may still be 0.

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

    # Convex in the risk and positive at 0: where it is negative at 1 it crosses 0 once.
    return 1.0 if may_be(1.0) >= 0 else float(brentq(may_be, 0.0, 1.0))


def check_coverage(coverage: float | None, name: str, other: float | None, what: str) -> None:
    """Refuse both or none of coverage and the other wish, and a coverage out of its range."""
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
    """Refuse both or none of coverage and risk, and any that is out of its range."""
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
    """Report in words what a risk bound promises and what not; `judged_on` as of `Predictor`.

    `grouped`: the calibration rows are one of each group.
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
