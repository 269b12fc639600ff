"""Abstention: scores of how sure an answer is, and thresholds with what they promise."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from nearwise.cached import cached_property
from nearwise.classifier.uncertainty.calibration_rows import CalibrationRows, Remoteness
from nearwise.classifier.uncertainty.conformal import check_number
from nearwise.classifier.uncertainty.explain import Parts
from nearwise.metrics import aurc

Score = Literal["max_proba", "margin", "entropy", "null_mass", "distance", "learned"]
PLAIN: tuple[Score, ...] = ("max_proba", "margin", "entropy", "null_mass", "distance")
_FOLDS = 5
_FEWEST = 10  # rows right and rows wrong below which nothing is learned about being wrong
_GRID = 50  # coverages tried for a risk: 0.02, 0.04, .., 1
_FLOOR = 1e-6
_RESAMPLES, _SURE = 100, 0.95  # how a score is preferred to the maximum probability


@dataclass(frozen=True)
class Selection:
    """Predictions, which of them to act on, and what is known about those.

    Attributes
    ----------
    labels : ndarray of shape (n,)
        Predicted classes, of the rows not accepted too.
    accepted : bool ndarray of shape (n,)
    score : float64 ndarray of shape (n,)
        Larger is surer; a row is accepted where it is at least `threshold`.
    score_name : str
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
    aurc : dict of str to float
        Area under the risk-coverage curve of every score compared, on the calibration rows.
    guarantee : str
        What the bound promises and what it does not.
    """

    labels: np.ndarray
    accepted: np.ndarray
    score: np.ndarray
    score_name: str
    threshold: float
    coverage: float
    expected_risk: float
    risk_bound: float
    confidence: float
    n_calibration: int
    n_accepted: int
    aurc: dict[str, float]
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


@dataclass(frozen=True)
class Combination:
    """Logistic regressions for being right, each fitted without a fold of the calibration rows.

    Attributes
    ----------
    center, scale : ndarray of shape (n_features,)
    weights : ndarray of shape (n_folds, n_features)
    intercepts : ndarray of shape (n_folds,)
    of_rows : ndarray of shape (n_rows,)
        Logits of the calibration rows, each from the regression that was fitted without it.
    """

    center: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    intercepts: np.ndarray
    of_rows: np.ndarray

    def __call__(self, parts: Parts, remoteness: Remoteness) -> np.ndarray:
        """Mean logit of new rows being right, (n,)."""
        table = (_features(parts, remoteness) - self.center) / self.scale
        logits: np.ndarray = (table @ self.weights.T + self.intercepts).mean(axis=1)
        return logits


def plain_score(name: Score, parts: Parts, remoteness: Remoteness) -> np.ndarray:
    """One score that needs no fitting, larger is surer, (n,)."""
    if name == "null_mass":
        return -parts.null_mass
    if name == "distance":
        return -remoteness.distance
    if name == "entropy":
        return np.asarray((parts.proba * np.log(np.maximum(parts.proba, _FLOOR))).sum(axis=1))
    top = np.sort(parts.proba, axis=1)
    return np.asarray(top[:, -1] if name == "max_proba" else top[:, -1] - top[:, -2])


def fit_combination(rows: CalibrationRows) -> Combination | None:
    """Cross-fit the learned score; None where too few rows are right or wrong."""
    right = rows.correct
    if min(int(right.sum()), int((~right).sum())) < _FEWEST:
        return None
    table = _features(rows.parts, rows.remoteness)
    center, scale = table.mean(axis=0), table.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    table = (table - center) / scale
    of_rows = np.zeros(len(right))
    models = []
    for train, held_out in StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(
        table, right
    ):
        model = LogisticRegression(max_iter=1000).fit(table[train], right[train])
        of_rows[held_out] = model.decision_function(table[held_out])
        models.append(model)
    return Combination(
        center,
        scale,
        np.concatenate([model.coef_ for model in models]),
        np.concatenate([model.intercept_ for model in models]),
        of_rows,
    )


def _features(parts: Parts, remoteness: Remoteness) -> np.ndarray:
    """Lay out the inputs of the learned score, (n, 9)."""
    best = parts.proba.argmax(axis=1)
    rows = np.arange(len(best))
    top = parts.proba[rows, best].clip(_FLOOR, 1 - _FLOOR)
    return np.column_stack(
        [
            np.log(top) - np.log1p(-top),
            plain_score("margin", parts, remoteness),
            plain_score("entropy", parts, remoteness),
            parts.base_proba[rows, best],
            parts.neighbor_proba[rows, best],
            parts.null_mass,
            parts.disagreement,
            remoteness.distance,
            remoteness.sparsity,
        ]
    )


class Judge:
    """Scores of the calibration rows, and thresholds on them.

    Parameters
    ----------
    rows : CalibrationRows
    """

    n_thresholds = _GRID

    def __init__(self, rows: CalibrationRows) -> None:
        self.rows, self.correct, self.wrong = rows, rows.correct, rows.wrong
        self.counts = rows.counts
        spread = np.ptp(rows.truth) + np.ptp(self.counts)  # of losses, whatever is predicted
        self.spread = float(spread) if rows.in_shares else None
        self.combination = fit_combination(rows)
        self.scores: dict[str, np.ndarray] = {
            name: plain_score(name, rows.parts, rows.remoteness) for name in PLAIN
        }
        if self.combination is not None:
            self.scores["learned"] = self.combination.of_rows
        self.aurc = {
            name: aurc(rows.labels, rows.parts.proba, confidence=score)
            for name, score in self.scores.items()
        }

    def choose(self, name: Score | Literal["auto"]) -> Score:
        """Give the named score, or the best.

        That is the one with the lowest AURC where it lies below that of the maximum probability
        in 95 of 100 bootstrap resamples of the calibration rows, else the maximum probability: few
        wrong rows would often choose by chance.

        Raises
        ------
        ValueError
            If the name is unknown, or too few rows are wrong to learn from.
        """
        if name == "auto":
            return self._best
        if name in self.scores:
            return name
        known = ", ".join(map(repr, ("auto", *PLAIN, "learned")))
        if name != "learned":
            raise ValueError(f"score={name!r} is not known. Use one of {known}.")
        raise ValueError(
            f'score="learned" needs {_FEWEST} calibration rows that are wrong and {_FEWEST} that '
            f"are right, and of {len(self.correct)} there are {int((~self.correct).sum())} and "
            f'{int(self.correct.sum())}. Use score="auto".'
        )

    @cached_property
    def _best(self) -> Score:
        best: Score = min(self.aurc, key=self.aurc.__getitem__)  # type: ignore[arg-type]
        return best if self._surely_better(best) else "max_proba"

    def _surely_better(self, name: Score) -> bool:
        rng, n = np.random.default_rng(0), len(self.correct)
        lower = 0
        for _ in range(_RESAMPLES):
            some = rng.integers(0, n, n)
            labels, proba = self.rows.labels[some], self.rows.parts.proba[some]
            there, usual = (
                aurc(labels, proba, confidence=self.scores[one][some])
                for one in (name, "max_proba")
            )
            lower += there < usual
        return lower >= _SURE * _RESAMPLES

    def score(self, name: Score, parts: Parts, remoteness: Remoteness) -> np.ndarray:
        """Score new rows, larger is surer, (n,)."""
        if name == "learned":
            assert self.combination is not None  # `choose` has looked
            return self.combination(parts, remoteness)
        return plain_score(name, parts, remoteness)

    def at_coverage(self, name: Score, coverage: float) -> Threshold:
        """Threshold that accepts at least a share of the calibration rows; ties come with it."""
        values = self.scores[name]
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

    def bound(self, name: Score, found: Threshold, alpha: float) -> float:
        """Bound the share of wrong rows above a threshold; exceeded with probability `alpha`."""
        if self.spread is None:
            return risk_bound(round(found.wrong), found.accepted, alpha)
        accepted = self.scores[name] >= found.value
        return bernstein_bound(self.wrong[accepted], self.counts[accepted], self.spread, alpha)

    def under_risk(self, name: Score, max_risk: float, alpha: float) -> tuple[Threshold, float]:
        """Threshold of the largest coverage whose risk bound is small enough, and the bound.

        `alpha` is shared out evenly among all coverages tried, so that whichever is taken, its
        bound holds.

        Raises
        ------
        ValueError
            If there is none, with the lowest risk that can be promised.
        """
        shares = np.arange(1, _GRID + 1) / _GRID
        tried = [self.at_coverage(name, share) for share in shares]
        bounds = [self.bound(name, t, alpha / _GRID) for t in tried]
        good = [i for i, bound in enumerate(bounds) if bound <= max_risk]
        if not good:
            best = int(np.argmin(bounds))
            needed = int(np.ceil(np.log(alpha / _GRID) / np.log1p(-max_risk)))
            more = ", and more because labels may be wrong" if self.spread else ""
            raise ValueError(
                f"max_risk={max_risk} cannot be promised: the lowest bound, on {len(self.correct)} "
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


def check_request(coverage: float | None, max_risk: float | None, confidence: float) -> None:
    """Refuse both or none of coverage and risk, and any that is out of its range."""
    if (coverage is None) == (max_risk is None):
        seen = "neither was" if coverage is None else "both were"
        raise ValueError(
            f"Give either coverage (the share of rows to answer) or max_risk (the share of answers "
            f"that may be wrong); {seen} given."
        )
    for name, value in (("coverage", coverage), ("max_risk", max_risk), ("confidence", confidence)):
        if value is not None or name == "confidence":
            check_number(name, value)
    if coverage is not None and not 0.0 < coverage <= 1.0:
        raise ValueError(
            f"coverage={coverage!r} must lie in (0, 1]. To answer nine rows in ten pass 0.9."
        )
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
) -> str:
    """Report in words what a risk bound promises and what not; `judged_on` as of `Predictor`."""
    how = f"the rows are {_HOW[judged_on]}{caveat}"
    name = "empirical Bernstein" if caveat else "Clopper-Pearson"
    corrected = f", corrected for {n_tests} thresholds and scores tried" if n_tests > 1 else ""
    return (
        f"For rows drawn like the calibration rows, with probability {confidence:g} over the "
        f"draw of those, at most {bound:.3g} of the accepted answers are wrong ({name}"
        f"{corrected}). It is exact for a classifier fixed beforehand; here {how}. It says nothing "
        "about one row, one class, or data that changed."
    )
