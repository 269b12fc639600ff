"""Drift: whether a stream of rows still comes from where the known rows came from."""

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import FloatArray

JUMP = 0.01
_BETS = np.array([-1.0, 0.0])


def drift_evidence(p_values: npt.ArrayLike) -> FloatArray:
    """Bet against each p-value in turn that it is small; the winnings are evidence of drift.

    A conformal test martingale: as long as rows are like those before them, p-values that rank each
    row among all of these are independent and no smaller than uniform ones, and whatever the number
    of rows, evidence of E or more is ever reached with a chance of at most 1 / E. (P-values among
    the same few known rows depend on each other, and reach more: rank each row among those that
    came before it, too.) Evidence of a drift grows with every row that shows it.

    The stake is in part on small p-values (density 1.5 - p) and in part not at stake, and a share
    `JUMP` of each part changes over before each row, so that a drift that begins late is found as
    well.

    Parameters
    ----------
    p_values : float array-like of shape (n_rows,)
        In [0, 1], in the order of arrival, each among all rows before it.

    Returns
    -------
    evidence : ndarray of shape (n_rows,)
        After each row, at least 0; 1 is no evidence, 100 or more is a false alarm at most once
        in 100 streams.

    Raises
    ------
    ValueError
        If a p-value is outside [0, 1].

    References
    ----------
    Vovk et al., "Retrain or not retrain: conformal test martingales for change-point detection",
    COPA 2021, the Simple Jumper.

    Examples
    --------
    >>> drift_evidence([0.5, 0.01, 0.01]).round(2)
    array([1.  , 1.24, 1.7 ])
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p_values must be numbers from 0 to 1 in one row, got {p_values!r}.")
    stakes = np.full(len(_BETS), 1 / len(_BETS))
    evidence = np.empty(len(p))
    for row, value in enumerate(p):
        stakes = (1 - JUMP) * stakes + JUMP * stakes.mean()
        stakes = stakes * (1 + _BETS * (value - 0.5))
        evidence[row] = stakes.sum()
    return evidence
