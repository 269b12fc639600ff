"""Rows unlike those remembered: a score, and how often a known row would score as high."""

from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np

from nearwise.estimators.uncertainty.calibration_rows import CalibrationRows
from nearwise.estimators.uncertainty.conformal import counts_at_least
from nearwise.estimators.uncertainty.explain import Parts

NoveltyScore = Literal["combined", "entropy"]


def novelty_scores(
    name: NoveltyScore, rows: CalibrationRows, parts: Parts, distance: np.ndarray
) -> np.ndarray:
    """Novelty scores of rows, larger is more novel, (n,).

    "entropy" is that of the prediction, in nats. "combined" is the mean of entropy, attention that
    went to no neighbor and distance to the k-th neighbor (`distance`), each in standard deviations
    from its mean among the calibration rows: no novel row is needed to make it.
    """
    if name == "entropy":
        return _entropy(parts.proba)
    of_rows = (_entropy(rows.parts.proba), rows.parts.null_mass, rows.distance)
    of_new = (_entropy(parts.proba), parts.null_mass, distance)
    return standardised(of_rows, of_new)


def standardised(of_rows: Iterable[np.ndarray], of_new: Iterable[np.ndarray]) -> np.ndarray:
    """Mean of measures of new rows, each in standard deviations from its mean among known rows."""
    pairs = zip(of_rows, of_new, strict=True)
    return np.mean([(new - usual.mean()) / (usual.std() or 1.0) for usual, new in pairs], axis=0)


def novelty_p_values(
    score: np.ndarray, of_rows: np.ndarray, counts: np.ndarray | None = None
) -> np.ndarray:
    """Share of known rows that score at least as high, each row counted among them, in (0, 1].

    `counts` (n_rows,) is how much each known row counts; 1 by default.
    """
    counts = np.ones(len(of_rows)) if counts is None else counts
    at_least = 1.0 + counts_at_least(of_rows, counts, score)
    return np.asarray(np.minimum(at_least / (1.0 + max(counts.sum(), 0.0)), 1.0))


def check_novelty_score(name: str) -> NoveltyScore:
    """Return the name of a score, checked."""
    for known in get_args(NoveltyScore):
        if name == known:
            return name  # type: ignore[return-value]
    names = ", ".join(map(repr, get_args(NoveltyScore)))
    raise ValueError(f"score={name!r} is not known. Use one of {names}.")


def _entropy(proba: np.ndarray) -> np.ndarray:
    return np.asarray(-(proba * np.log(np.maximum(proba, np.finfo(float).tiny))).sum(axis=1))
