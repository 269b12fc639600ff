"""Drift: whether new rows still have the distribution of the known rows."""

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import FloatArray

JUMP = 0.01
_BETS = np.array([-1.0, 0.0])


def drift_evidence(p_values: npt.ArrayLike) -> FloatArray:
    """Return the evidence of drift after each row: a test martingale of p-values.

    A conformal test martingale bets against each p-value in turn. Without drift, p-values that rank
    each row among all earlier rows are independent and no smaller than uniform ones. Evidence of E
    or more is then ever reached, in any number of rows, with a probability of at most 1 / E.
    (P-values among a fixed set of known rows are dependent and exceed this rate: rank each row
    among all earlier rows, too.) Evidence grows with every row that shows the drift.

    One part of the stake is on small p-values (density 1.5 - p), the other is held back. A share
    `JUMP` of each part moves to the other before each row, so that a late drift is detected too.

    Parameters
    ----------
    p_values : float array-like of shape (n_rows,)
        P-values in [0, 1], in the order of arrival, each among all earlier rows.

    Returns
    -------
    evidence : ndarray of shape (n_rows,)
        Evidence after each row, at least 0; 1 is no evidence. A limit of 100 gives a false alarm
        in at most one of 100 streams.

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
    array([1.  , 1.25, 1.61])
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
