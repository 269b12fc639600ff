"""All metrics of one prediction in one call."""

import numpy.typing as npt

from nearwise.metrics.calibration import (
    classwise_ece_of,
    ece_of,
    equal_mass_ece_of,
    signed_gap_of,
    smooth_ece_of,
)
from nearwise.metrics.checks import check_predictions
from nearwise.metrics.scores import brier_of, confusion_of, macro_f1_of_counts, nll_of
from nearwise.metrics.selective import augrc_of, aurc_of


def evaluate_probabilities(y: npt.ArrayLike, proba: npt.ArrayLike) -> dict[str, float]:
    """Measure probabilities with every metric of this room, in its default setting.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions in [0, n_classes).
    proba : float array-like of shape (n_rows, n_classes)
        Non-negative, each row sums to 1 within 1e-4.

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
    predictions = check_predictions(y, proba)
    return {
        "accuracy": float(predictions.correct.mean()),
        "macro_f1": macro_f1_of_counts(confusion_of(predictions)),
        "nll": nll_of(predictions),
        "brier": brier_of(predictions),
        "ece": ece_of(predictions),
        "equal_mass_ece": equal_mass_ece_of(predictions),
        "classwise_ece": classwise_ece_of(predictions),
        "smooth_ece": smooth_ece_of(predictions),
        "signed_gap": signed_gap_of(predictions),
        "aurc": aurc_of(predictions),
        "augrc": augrc_of(predictions),
    }
