"""Expected number of wrong labels in a memory, with an interval."""

from typing import NamedTuple

import numpy as np
from scipy.stats import beta

from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel, FittedRegressor
from nearwise.estimators.noise.label_issues import given_proba, independent_rows
from nearwise.estimators.noise.noisy_labels import transition_of
from nearwise.estimators.noise.number_issues import number_noise

_SUREST, _FEWEST = 0.2, 20  # share and least number of the surest rows of a predicted class
_LEVEL = 0.95
_DROP = 1.92  # of the log-likelihood at the ends of a 95 % interval
_MOST_ROWS = 20_000  # in the likelihood
_POWERS = np.geomspace(0.5, 12, 40)  # of the probabilities under class overlap
_RATES = np.concatenate([[0.0], np.geomspace(5e-4, 0.6, 60)])


class ExpectedWrong(NamedTuple):
    """Expected number of wrong labels, or targets, among the remembered rows.

    Attributes
    ----------
    number : float
        Expected number, from 0 to `n_rows`.
    low, high : float
        Ends of its 95 % interval.
    n_rows : int
        Number of remembered rows.
    source : str
        "noise model" of a fit with `label_noise`, or "predictions" without each row's label.
    """

    number: float
    low: float
    high: float
    n_rows: int
    source: str

    def __str__(self) -> str:
        about, low, high = (f"{round(one):,}" for one in (self.number, self.low, self.high))
        if about == low == high:
            return f"about {about} of {self.n_rows:,}"
        return f"about {about} of {self.n_rows:,} ({low} to {high})"


def expected_wrong(model: FittedModel) -> ExpectedWrong:
    """Estimate the number of wrong labels, or targets; see `Review.expected_wrong_labels`."""
    n_rows, source = len(model.bank), "noise model"
    if isinstance(model, FittedRegressor):
        found = number_noise(model)
        rate, (low, high) = found.rate, found.interval
        source = source if "label_noise" in model.predictor.choice else "predictions"
    else:
        assert isinstance(model, FittedClassifier)
        known = transition_of(model.predictor.label_model)
        if known is not None:
            rate, (low, high) = known.rate, known.interval
        else:
            rows, source = independent_rows(model), "predictions"
            labels = model.label_positions[rows].numpy()
            rate, (low, high) = wrong_share(given_proba(model, rows), labels)
    return ExpectedWrong(rate * n_rows, low * n_rows, high * n_rows, n_rows, source)


def wrong_share(proba: np.ndarray, labels: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Estimate the share of wrong labels, with its 95 % interval.

    Mean of two estimates. The first is the share of other labels among the surest fifth of the
    rows predicted as each class: too high if classes overlap even there. The second is the share
    beyond class overlap, see `_beyond_overlap`: too low if predictions have learned the mistakes.
    The interval reaches from the lowest end of both intervals to the upper end of the first.
    Without rows nothing is known: 0, from 0 to 1.

    Parameters
    ----------
    proba : float array of shape (n, C)
        Probabilities of the given labels, without the row's own.
    labels : int array of shape (n,)
    """
    surest = _surest(proba)
    n_rows = len(surest)
    wrong = int((proba[surest].argmax(axis=1) != labels[surest]).sum())
    tail = (1 - _LEVEL) / 2  # Clopper and Pearson, Biometrika 1934
    lowest = float(beta.ppf(tail, wrong, n_rows - wrong + 1)) if wrong else 0.0
    highest = float(beta.ppf(1 - tail, wrong + 1, n_rows - wrong)) if wrong < n_rows else 1.0
    beyond, low = _beyond_overlap(proba, labels, surest)
    return (wrong / max(n_rows, 1) + beyond) / 2, (min(lowest, low), highest)


def _surest(proba: np.ndarray) -> np.ndarray:
    """Positions of the surest rows of each predicted class."""
    predicted, sure = proba.argmax(axis=1), proba.max(axis=1)
    chosen = []
    for c in range(proba.shape[1]):
        rows = np.flatnonzero(predicted == c)
        n = max(_FEWEST, int(_SUREST * len(rows)))
        chosen.append(rows[np.argsort(-sure[rows], kind="stable")][:n])
    return np.concatenate(chosen)


def _beyond_overlap(
    proba: np.ndarray, labels: np.ndarray, surest: np.ndarray
) -> tuple[float, float]:
    """Most likely share of wrong labels, and the lower end of its 95 % interval.

    Probabilities of the true labels are a power of `proba`, the same for all rows. A share of the
    labels is wrong, as among the surest rows. Power and share maximise the likelihood; the power
    alone explains labels by class overlap.
    """
    n_classes = proba.shape[1]
    wrong = np.zeros((n_classes, n_classes))
    np.add.at(wrong, (proba[surest].argmax(axis=1), labels[surest]), 1.0)
    wrong += 1 / (n_classes - 1)
    np.fill_diagonal(wrong, 0.0)
    wrong /= wrong.sum(axis=1, keepdims=True)
    if len(labels) > _MOST_ROWS:
        rows = np.random.default_rng(0).choice(len(labels), _MOST_ROWS, replace=False)
        proba, labels = proba[rows], labels[rows]
    log_proba, mistaken = np.log(np.maximum(proba, 1e-9)), wrong.T[labels]
    best = np.full(len(_RATES), -np.inf)
    for power in _POWERS:
        scores = power * log_proba
        true = np.exp(scores - scores.max(axis=1, keepdims=True))
        true /= true.sum(axis=1, keepdims=True)
        right, other = true[np.arange(len(labels)), labels], (true * mistaken).sum(axis=1)
        for at, rate in enumerate(_RATES):
            likelihood = (1 - rate) * right + rate * other
            best[at] = max(best[at], np.log(np.maximum(likelihood, 1e-12)).sum())
    return float(_RATES[best.argmax()]), float(_RATES[best >= best.max() - _DROP].min())
