"""Rows unlike those remembered: a score, and how often a known row would score as high."""

from typing import Literal, get_args

import numpy as np

from nearwise.classifier.uncertainty.calibration_rows import CalibrationRows, Remoteness
from nearwise.classifier.uncertainty.conformal import counts_at_least
from nearwise.classifier.uncertainty.explain import Parts

NoveltyScore = Literal["combined", "distance", "sparsity", "null_mass", "entropy"]
_SINGLE: tuple[NoveltyScore, ...] = ("distance", "sparsity", "null_mass", "entropy")


def novelty_scores(
    name: NoveltyScore, rows: CalibrationRows, parts: Parts, remoteness: Remoteness
) -> np.ndarray:
    """Novelty scores of rows, larger is more novel, (n,).

    "combined" is the mean of the four others, each in standard deviations from its mean among the
    calibration rows: no novel row is needed to make it, and each of them that finds a row far out
    raises it.
    """
    if name != "combined":
        return _single(name, parts, remoteness)
    return np.mean([_standardized(one, rows, parts, remoteness) for one in _SINGLE], axis=0)


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


def _standardized(
    name: NoveltyScore, rows: CalibrationRows, parts: Parts, remoteness: Remoteness
) -> np.ndarray:
    usual = _single(name, rows.parts, rows.remoteness)
    spread = usual.std()
    return (_single(name, parts, remoteness) - usual.mean()) / (spread if spread > 0 else 1.0)


def _single(name: NoveltyScore, parts: Parts, remoteness: Remoteness) -> np.ndarray:
    if name == "null_mass":
        return parts.null_mass
    if name == "entropy":
        proba = parts.proba
        return np.asarray(-(proba * np.log(np.maximum(proba, np.finfo(float).tiny))).sum(axis=1))
    return remoteness.distance if name == "distance" else remoteness.sparsity
