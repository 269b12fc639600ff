"""Novelty of rows: scores, and out-of-distribution p-values by the calibration rows."""

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
    """Novelty scores of rows (n,); larger is more novel.

    "entropy" is the entropy of the prediction, in nats. "combined" is the mean of entropy, null
    mass and distance to the k-th neighbor (`distance`), each standardised by the calibration rows.
    No novel row is needed to compute it.
    """
    if name == "entropy":
        return _entropy(parts.proba)
    of_rows = (_entropy(rows.parts.proba), rows.parts.null_mass, rows.distance)
    of_new = (_entropy(parts.proba), parts.null_mass, distance)
    return standardised(of_rows, of_new)


def standardised(of_rows: Iterable[np.ndarray], of_new: Iterable[np.ndarray]) -> np.ndarray:
    """Mean of several measures of new rows, each standardised by the calibration rows."""
    pairs = zip(of_rows, of_new, strict=True)
    return np.mean([(new - usual.mean()) / (usual.std() or 1.0) for usual, new in pairs], axis=0)


def novelty_p_values(
    score: np.ndarray, of_rows: np.ndarray, counts: np.ndarray | None = None
) -> np.ndarray:
    """Share of calibration rows with at least the row's score, counting the row, in (0, 1].

    `counts` (n_rows,) is the weight of each calibration row; 1 by default.
    """
    counts = np.ones(len(of_rows)) if counts is None else counts
    at_least = 1.0 + counts_at_least(of_rows, counts, score)
    return np.asarray(np.minimum(at_least / (1.0 + max(counts.sum(), 0.0)), 1.0))


def check_novelty_score(name: str) -> NoveltyScore:
    """Check the name of a score and return it."""
    for known in get_args(NoveltyScore):
        if name == known:
            return name  # type: ignore[return-value]
    names = ", ".join(map(repr, get_args(NoveltyScore)))
    raise ValueError(f"score={name!r} is not known. Use one of {names}.")


def _entropy(proba: np.ndarray) -> np.ndarray:
    return np.asarray(-(proba * np.log(np.maximum(proba, np.finfo(float).tiny))).sum(axis=1))
