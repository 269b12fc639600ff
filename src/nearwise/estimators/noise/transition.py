"""Transition from true to given labels, given by the user or estimated."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import gammaln

_SURE = 0.8  # least probability of a confident row
_LEAST_SHARE = 0.2  # surest share of the rows predicted as a class
_LEAST_ROWS = 20
_PRIOR_ROWS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # weights of a prior with even mistakes
_MANY_IMAGES = 5_000
_STEPS = 50
_BOOTSTRAP_STEPS = 10
_BOOTSTRAPS = 100
_LEAST_INFORMATION = 1e-3
# Least gain of predictions over class shares, in standard errors. Rows are neighbors of each
# other, so these errors are too small by up to the square root of 2: 5 corresponds to 3.5.
SIGNAL = 5.0


@dataclass(frozen=True)
class Transition:
    """Probability of each given label (columns) for each true one (rows), with 95 % intervals.

    `rate` is the share of wrong labels; `interval` its bootstrap interval, of zero width for a
    transition from the user; `low` and `high` are the interval of `matrix`, entry by entry. If only
    a part of an estimate is used, intervals reach from that part to the estimate. `source` is its
    origin.
    """

    matrix: np.ndarray
    rate: float
    interval: tuple[float, float]
    low: np.ndarray
    high: np.ndarray
    source: str

    def to_json(self) -> dict[str, Any]:
        """Fields as plain data for JSON."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Transition":
        """Rebuild a transition from the result of `to_json`."""
        arrays = {name: np.array(data[name]) for name in ("matrix", "low", "high")}
        return cls(**(data | arrays | {"interval": tuple(data["interval"])}))


def check_label_noise(label_noise: Any, classes: np.ndarray) -> Literal["auto"] | np.ndarray:
    """Check the parameter `label_noise`; a rate becomes a transition with evenly spread mistakes.

    ValueError if a rate is outside [0, 1), a matrix is not square, not of the number of classes or
    not stochastic, or if the transition is nearly singular.
    """
    n = len(classes)
    if isinstance(label_noise, str):
        if label_noise != "auto":
            raise ValueError(_unusable(label_noise))
        return "auto"
    try:
        given = np.asarray(label_noise, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(_unusable(label_noise)) from None
    if given.ndim == 0:
        if not 0 <= given < 1:
            raise ValueError(
                f"label_noise={label_noise} is not a share of wrong labels. Give one in [0, 1)."
            )
        matrix = np.full((n, n), float(given) / (n - 1))
        np.fill_diagonal(matrix, 1 - float(given))
    else:
        matrix = _check_matrix(given, classes)
    if np.linalg.svd(matrix, compute_uv=False)[-1] < _LEAST_INFORMATION:
        raise ValueError(
            "label_noise: with this transition some true classes give the same labels, so the "
            "labels do not tell them apart. Merge these classes, or give a smaller rate."
        )
    return matrix


def _unusable(label_noise: Any) -> str:
    return (
        f'label_noise={label_noise!r} is not usable. Give None, "auto", a rate in [0, 1) or a '
        "transition matrix (rows true, columns given)."
    )


def _check_matrix(matrix: np.ndarray, classes: np.ndarray) -> np.ndarray:
    n, named = len(classes), ", ".join(map(str, classes.tolist()[:10]))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"label_noise has shape {matrix.shape}. A transition is square: a row for each true "
            "class, a column for each given one."
        )
    if len(matrix) > n:
        raise ValueError(
            f"label_noise is a transition of {len(matrix)} classes, but y holds {n} ({named}): "
            f"{len(matrix) - n} have no row. Drop the rows and columns of classes that y lacks."
        )
    if len(matrix) < n:
        raise ValueError(
            f"label_noise is a transition of {len(matrix)} classes, but y holds {n} ({named}). "
            "Give a row and a column for each, in sorted order."
        )
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise ValueError(
            f"label_noise holds values that are not probabilities (smallest {np.nanmin(matrix)}). "
            "Every entry of a transition is 0 or more."
        )
    sums = matrix.sum(axis=1)
    wrong = np.flatnonzero(np.abs(sums - 1) > 1e-6)
    if len(wrong):
        raise ValueError(
            f"label_noise is not stochastic: the row of class {classes[wrong[0]]} sums to "
            f"{sums[wrong[0]]:.6g}. Rows (true class) must sum to 1; transpose it if columns do."
        )
    unseen = np.flatnonzero(matrix.sum(axis=0) == 0)
    if len(unseen):
        raise ValueError(
            f"label_noise never gives the label {classes[unseen[0]]}, but y holds it. Give every "
            "label that occurs a positive probability."
        )
    return matrix / sums[:, None]


def known_transition(matrix: np.ndarray, labels: np.ndarray) -> Transition:
    """Transition from the user, with its rate at the class shares implied by `labels`."""
    counts = np.bincount(labels, minlength=len(matrix)) / len(labels)
    true = np.clip(np.linalg.lstsq(matrix.T, counts, rcond=None)[0], 0, None)
    rate = _rate(matrix, true / true.sum())
    return Transition(matrix, rate, (rate, rate), matrix, matrix, "given")


def estimate_transition(
    proba: np.ndarray, labels: np.ndarray, *, weight: np.ndarray | None = None
) -> np.ndarray:
    """Estimate the transition (C, C) from rows with a nearly certain true class.

    `proba` (n, C) are probabilities of the true classes, made without the row's own label. The
    result is the mean of two estimates, one too high and one too low. The first takes the surest
    fifth of each predicted class as certain, so that all remaining uncertainty counts as wrong
    labels. The second adds rows with a probability of at least 0.8, and alternates the row
    posteriors and the transition (expectation-maximisation with fixed `proba`). It excludes class
    overlap, but also the uncertainty that wrong labels have caused in `proba`. Both are shrunk
    towards evenly spread mistakes, the more the classes are alike.
    """
    rows, surest = confident_rows(proba)
    row_weight = np.ones(len(rows)) if weight is None else weight[rows]
    return _estimate(proba[rows], labels[rows], row_weight, surest, None, _STEPS)


def confident_rows(proba: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the rows for the estimate of a transition, and a mask of the surest fifth."""
    predicted, sure = proba.argmax(axis=1), proba.max(axis=1)
    surest = np.zeros(len(proba), dtype=bool)
    for c in range(proba.shape[1]):
        rows = np.flatnonzero(predicted == c)
        n = max(_LEAST_ROWS, int(_LEAST_SHARE * len(rows)))
        surest[rows[np.argsort(-sure[rows], kind="stable")][:n]] = True
    chosen = np.flatnonzero(surest | (sure >= _SURE))
    return chosen, surest[chosen]


def _estimate(
    proba: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray,
    surest: np.ndarray,
    start: np.ndarray | None,
    steps: int,
) -> np.ndarray:
    """Mean of two estimates: with the surest rows taken as certain, and by EM on all rows."""
    certain = np.eye(proba.shape[1])[proba[surest].argmax(axis=1)]
    plain = _maximise(certain, labels[surest], weight[surest], None, 1)
    return (plain + _maximise(proba, labels, weight, start, steps)) / 2


def _maximise(
    proba: np.ndarray, labels: np.ndarray, weight: np.ndarray, start: np.ndarray | None, steps: int
) -> np.ndarray:
    n_classes = proba.shape[1]
    given = np.eye(n_classes)[labels] * weight[:, None]
    matrix = _even(n_classes, 0.2) if start is None else start
    for _ in range(steps):
        behind = proba * matrix[:, labels].T
        behind /= np.maximum(behind.sum(axis=1, keepdims=True), 1e-300)
        before, matrix = matrix, _shares(behind.T @ given)
        if np.abs(matrix - before).max() < 1e-6:
            break
    return matrix


def _shares(counts: np.ndarray) -> np.ndarray:
    """Row shares of the counts (true x given), shrunk towards evenly spread mistakes.

    The shrinkage maximises the marginal likelihood of a Dirichlet-multinomial: strong if the
    classes have similar mistakes, weak if they differ.
    """
    off = 1 - np.trace(counts) / counts.sum()
    even = np.maximum(_even(len(counts), off), 1e-6)
    total = counts.sum(axis=1, keepdims=True)
    fits = [
        float((gammaln(counts + s * even) - gammaln(s * even)).sum())
        - float((gammaln(total + s) - gammaln(s)).sum())
        for s in _PRIOR_ROWS
    ]
    borrowed = _PRIOR_ROWS[int(np.argmax(fits))] * even
    mixed: np.ndarray = counts + borrowed
    return mixed / mixed.sum(axis=1, keepdims=True)


def _even(n_classes: int, rate: float) -> np.ndarray:
    matrix = np.full((n_classes, n_classes), rate / (n_classes - 1))
    np.fill_diagonal(matrix, 1 - rate)
    return matrix


def audited_transition(given: Any, true: Any, *, classes: Any = None) -> np.ndarray:
    """Estimate a transition from rows with expert-checked labels.

    Draw the rows at random from the training table; suspicious rows would show too many mistakes.
    A few hundred are better than any estimate if annotators err most on hard rows, which given
    labels alone cannot show.

    Parameters
    ----------
    given : array-like of shape (n,)
        Labels of the checked rows in the table. At least 20.
    true : array-like of shape (n,)
        True labels of the same rows.
    classes : array-like of shape (C,), optional
        All classes of the table. Default: the classes in `given` and `true`.

    Returns
    -------
    matrix : float64 array of shape (C, C)
        Transition for `label_noise=`: rows true, columns given, classes sorted. Shrunk towards
        evenly spread mistakes, the more the classes are alike; also for classes without a row.

    Raises
    ------
    ValueError
        If lengths differ, there are fewer than 20 rows, or a label is not among `classes`.
    """
    given, true = np.asarray(given), np.asarray(true)
    if given.shape != true.shape or given.ndim != 1:
        raise ValueError(
            f"given has shape {given.shape}, true {true.shape}. Give one of each per checked row."
        )
    if len(given) < _LEAST_ROWS:
        raise ValueError(
            f"{len(given)} checked rows are too few to estimate the mistakes. Check {_LEAST_ROWS} "
            "or more, drawn at random; a few hundred are good."
        )
    named = np.unique(np.concatenate([given, true]) if classes is None else np.asarray(classes))
    for name, labels in (("given", given), ("true", true)):
        if len(unknown := np.setdiff1d(labels, named)):
            raise ValueError(f"{name} holds {unknown[0]!r}, which is not among classes={named}.")
    counts = np.zeros((len(named), len(named)))
    np.add.at(counts, (np.searchsorted(named, true), np.searchsorted(named, given)), 1)
    return _shares(counts)


def with_interval(
    proba: np.ndarray, labels: np.ndarray, seed: int, *, weight: np.ndarray | None = None
) -> Transition:
    """Estimate a transition and its 95 % interval, by a bootstrap over the confident rows."""
    rows, surest = confident_rows(proba)
    weight = np.ones(len(labels)) if weight is None else weight
    some, given, row_weight = proba[rows], labels[rows], weight[rows]
    shares = proba.mean(axis=0)
    matrix = _estimate(some, given, row_weight, surest, None, _STEPS)
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(_BOOTSTRAPS):
        times = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)))
        drawn.append(_estimate(some, given, row_weight * times, surest, matrix, _BOOTSTRAP_STEPS))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    rates = [_rate(matrix_drawn, shares) for matrix_drawn in drawn]
    interval = (float(np.quantile(rates, 0.025)), float(np.quantile(rates, 0.975)))
    return Transition(
        matrix, _rate(matrix, shares), interval, low, high, f"{len(rows)} confident unseen rows"
    )


def towards_none(matrix: np.ndarray, share: float) -> np.ndarray:
    """Scale the mistakes of a transition by `share`; below 1 fewer labels are wrong."""
    return matrix if share == 1 else share * matrix + (1 - share) * np.eye(len(matrix))


def noise_floor(n_rows: int, *, apart: bool) -> float:
    """Largest share of wrong labels that "auto" treats as no label noise.

    `apart`: predictions come from image networks trained on separate rows. Annotators and networks
    err on the same images, so that with many images the estimate is rather too low (CIFAR-10N: .04
    instead of .09). With few images it is not: networks with an accuracy of two thirds on 3,000
    clean images also estimate .04.
    """
    return 0.02 if apart and n_rows > _MANY_IMAGES else 0.05


def scaled(transition: Transition, share: float) -> Transition:
    """Scale the mistakes of an estimate, and its intervals, by `share`."""
    low, high = transition.interval
    return replace(
        transition,
        matrix=towards_none(transition.matrix, share),
        rate=share * transition.rate,
        interval=(share * low, share * high),
        low=np.maximum(towards_none(transition.low, share), 0),
        high=towards_none(transition.high, share),
    )


def taken_in_part(transition: Transition, share: float) -> Transition:
    """Use only a share of an estimate; intervals reach from that part to the estimate."""
    if share == 1:
        return transition
    part = scaled(transition, share)
    return replace(
        part,
        interval=(min(part.rate, part.interval[0]), max(part.rate, transition.interval[1])),
        low=np.minimum(part.matrix, transition.low),
        high=np.maximum(part.matrix, transition.high),
    )


def _rate(matrix: np.ndarray, shares: np.ndarray) -> float:
    # Rounding errors may give a value below 0.
    return float(np.clip(1 - shares @ np.diag(matrix), 0, 1))


def signal_of(proba: np.ndarray, labels: np.ndarray, weight: np.ndarray | None) -> float:
    """Significance of predictions against labels drawn at random, in standard errors.

    A score test of a pool of class shares and predictions at power 0: the probability of a row's
    label minus its mean over labels drawn by their shares. `proba` (n, C) are probabilities of the
    true labels, made without the row's own label. They are not converted by a transition, which
    was fitted to the same labels and would reproduce them.
    """
    weight = np.ones(len(labels)) if weight is None else weight
    shares = np.bincount(labels, weight, proba.shape[1]) / weight.sum()
    gains = weight * (proba[np.arange(len(labels)), labels] - proba @ shares)
    spread = float(gains.std())
    return float(gains.mean()) * len(gains) ** 0.5 / spread if spread > 0 else 0.0


def weigh(transition: Transition, signal: float, evidence: float) -> tuple[float, str]:
    """Share of an estimated transition to use, in [0, 1], and the reason if below 1.

    0 if predictions are no better than the class shares (`signal`), or the rate is outside its
    interval. If class overlap explains the labels better, the share is the likelihood ratio of the
    two models; otherwise 1. `evidence`, in nats, is the log-likelihood of the given labels under
    the estimate minus that under class overlap: the same predictions, softened towards the class
    shares, without label noise.
    """
    low, high = transition.interval
    if signal < SIGNAL:
        return 0.0, "out-of-fold predictions say no more of the labels than class shares"
    if not low <= transition.rate <= high:
        return 0.0, f"the rate {transition.rate:.2f} leaves [{low:.2f}, {high:.2f}]"
    if evidence < 0:
        reason = "overlap of the classes explains the labels better than wrong labels do"
        return float(np.exp(evidence)), reason
    return 1.0, ""
