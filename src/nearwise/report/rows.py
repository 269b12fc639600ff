"""Differences on a single split: a bootstrap over its test rows."""

from collections.abc import Callable

import numpy as np

from nearwise.metrics import PairedDifference, aurc, ece, paired_bootstrap, paired_difference
from nearwise.report.predictions import Predictions

FLOOR = 1e-7
N_RESAMPLES = 300

RowValues = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _hits(y: np.ndarray, proba: np.ndarray) -> np.ndarray:
    return (proba.argmax(axis=1) == y).astype(np.float64)


def _log_losses(y: np.ndarray, proba: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(proba[np.arange(len(y)), y], FLOOR))


def _squared_errors(y: np.ndarray, proba: np.ndarray) -> np.ndarray:
    return ((proba - np.eye(proba.shape[1])[y]) ** 2).sum(axis=1)


_MEANS: dict[str, RowValues] = {
    "accuracy": _hits,
    "nll": _log_losses,
    "brier": _squared_errors,
}
_OTHERS: dict[str, Callable[..., float]] = {"ece": ece, "aurc": aurc}


def difference_over_rows(key: str, a: Predictions, b: Predictions) -> PairedDifference | None:
    """Metric of `a` minus metric of `b` on the same test rows.

    Parameters
    ----------
    key : str
        accuracy, nll, brier, ece or aurc.
    a, b : Predictions
        Of two methods on one split.

    Returns
    -------
    PairedDifference or None
        Percentile bootstrap over rows, `n` counts rows: what another test part of this size
        would say about these two fits. None for other metrics or other rows.
    """
    if not np.array_equal(a.test_index, b.test_index):
        return None
    if key in _MEANS:
        values = _MEANS[key]
        pairs = values(a.y, a.proba), values(b.y, b.proba)
        return paired_difference(*pairs, method="bootstrap", n_resamples=1000)
    if key in _OTHERS:
        return paired_bootstrap(_OTHERS[key], a.y, a.proba, b.proba, n_resamples=N_RESAMPLES)
    return None
