"""Out-of-distribution detection by a score: AUROC, AUPR, false alarms at 95 % recall.

Rows of equal score stand together: no value depends on the order of the input.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import FloatArray


def auroc(known: npt.ArrayLike, novel: npt.ArrayLike) -> float:
    """Compute the chance that a novel row scores above a known row; a tie counts half.

    Parameters
    ----------
    known, novel : float array-like of shape (n_rows,)
        Scores, larger is more novel; infinity is allowed.

    Returns
    -------
    auroc : float in [0, 1]
        0.5 is guessing.
    """
    low, high = _check(known, "known"), _check(novel, "novel")
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, side="left").sum()
    not_above = np.searchsorted(ordered, high, side="right").sum()
    return float((below + not_above) / 2 / len(low) / len(high))


def aupr(
    known: npt.ArrayLike,
    novel: npt.ArrayLike,
    *,
    positive: Literal["novel", "known"] = "novel",
) -> float:
    """Compute the average precision of finding novel (or known) rows by the score.

    Parameters
    ----------
    known, novel : as for `auroc`
    positive : {"novel", "known"}, default="novel"
        Which rows to find. "known" takes the smallest scores first.

    Returns
    -------
    aupr : float in [0, 1]
        Sum over distinct scores of (gain in recall) x precision; guessing gives about the share
        of positive rows.
    """
    low, high = _check(known, "known"), _check(novel, "novel")
    if positive not in ("novel", "known"):
        raise ValueError(f'positive={positive!r} must be "novel" or "known".')
    found, other = (high, low) if positive == "novel" else (-low, -high)
    hits, false = _counts_above(found, other)
    precision = hits / (hits + false)
    return float(np.sum(np.diff(hits, prepend=0) / len(found) * precision))


def fpr_at_tpr(known: npt.ArrayLike, novel: npt.ArrayLike, tpr: float = 0.95) -> float:
    """Compute the share of known rows that are flagged when 95 % of novel rows are (FPR95).

    Parameters
    ----------
    known, novel : as for `auroc`
    tpr : float in (0, 1], default=0.95
        Share of novel rows that must be flagged.

    Returns
    -------
    fpr : float in [0, 1]
        At the highest threshold that flags at least this share; smaller is better.

    Notes
    -----
    Papers differ in which side is held at 95 %; here it is the novel rows.
    """
    low, high = _check(known, "known"), _check(novel, "novel")
    if not 0.0 < tpr <= 1.0:
        raise ValueError(f"tpr={tpr} must lie in (0, 1]. For 95 % pass 0.95.")
    wanted = int(np.ceil(tpr * len(high) - 1e-9))
    threshold = np.sort(high)[::-1][wanted - 1]
    return float((low >= threshold).mean())


def evaluate_detection(known: npt.ArrayLike, novel: npt.ArrayLike) -> dict[str, float]:
    """Measure a novelty score with every metric of this module.

    Parameters
    ----------
    known, novel : as for `auroc`

    Returns
    -------
    metrics : dict of str to float
        auroc, aupr_novel, aupr_known, fpr95.
    """
    return {
        "auroc": auroc(known, novel),
        "aupr_novel": aupr(known, novel),
        "aupr_known": aupr(known, novel, positive="known"),
        "fpr95": fpr_at_tpr(known, novel),
    }


def _counts_above(found: FloatArray, other: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rows of both kinds at or above every distinct score, scores descending."""
    scores = np.unique(np.concatenate([found, other]))[::-1]
    hits = len(found) - np.searchsorted(np.sort(found), scores, side="left")
    false = len(other) - np.searchsorted(np.sort(other), scores, side="left")
    return hits.astype(np.float64), false.astype(np.float64)


def _check(scores: npt.ArrayLike, name: str) -> FloatArray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"{name} must hold at least one score, shape (n_rows,), got shape {values.shape}."
        )
    if np.isnan(values).any():
        row = int(np.flatnonzero(np.isnan(values))[0])
        raise ValueError(f"{name} has NaN, first in row {row}. Give every row a score.")
    return values
