"""All metrics of one prediction in one call."""

import numpy.typing as npt

from nearwise.metrics.calibration import classwise_ece, ece, equal_mass_ece, signed_gap, smooth_ece
from nearwise.metrics.checks import check_predictions
from nearwise.metrics.scores import accuracy, brier, macro_f1, nll
from nearwise.metrics.selective import augrc, aurc

METRICS = (
    accuracy,
    macro_f1,
    nll,
    brier,
    ece,
    equal_mass_ece,
    classwise_ece,
    smooth_ece,
    signed_gap,
    aurc,
    augrc,
)


def evaluate_probabilities(y: npt.ArrayLike, proba: npt.ArrayLike) -> dict[str, float]:
    """Compute all metrics of probabilities, with default settings.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions in [0, n_classes).
    proba : float array-like of shape (n_rows, n_classes)
        Non-negative probabilities; each row sums to 1 within 1e-4.

    Returns
    -------
    metrics : dict of str -> float
        accuracy, macro_f1, nll, brier, ece, equal_mass_ece, classwise_ece, smooth_ece,
        signed_gap, aurc, augrc, in this order.

    Raises
    ------
    ValueError
        If `y` or `proba` is malformed; the message says what to do.
    """
    check_predictions(y, proba)  # accuracy alone would accept positions as well
    return {metric.__name__: metric(y, proba) for metric in METRICS}
