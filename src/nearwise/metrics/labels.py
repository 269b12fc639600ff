"""Metrics of several labels per row."""

import numpy as np
import numpy.typing as npt
from sklearn import metrics


def evaluate_labels(y: npt.ArrayLike, proba: npt.ArrayLike) -> dict[str, float]:
    """Compute metrics of several labels per row; a label is predicted from 0.5 on.

    Parameters
    ----------
    y : array-like of 0 and 1 of shape (n_rows, n_labels)
        True labels.
    proba : float array-like of shape (n_rows, n_labels)
        Probability of each label, in [0, 1].

    Returns
    -------
    metrics : dict of str to float
        macro_brier (mean squared error of the probabilities, in [0, 1]), macro_nll (nats per
        label), macro_f1, micro_f1, mean_average_precision (over labels with a row). Then
        subset_accuracy (share of rows with all labels right) and hamming_loss (share of wrong
        labels). F1 of a label without rows and predictions is 0.

    Raises
    ------
    ValueError
        If shapes differ, or values are not 0 and 1, or no probabilities.
    """
    truth, found = np.asarray(y), np.asarray(proba, dtype=np.float64)
    if truth.ndim != 2 or truth.shape != found.shape or not truth.size:
        raise ValueError(
            f"y has shape {truth.shape} and proba {found.shape}. Give both as (n_rows, n_labels)."
        )
    if not np.isin(truth, (0, 1)).all():
        raise ValueError("y holds values other than 0 and 1. Give 1 where a row has a label.")
    if not ((found >= 0) & (found <= 1)).all():
        raise ValueError("proba holds values outside [0, 1], or NaN. Give probabilities.")
    truth, chosen = truth.astype(int), (found >= 0.5).astype(int)
    own = np.where(truth == 1, found, 1 - found).clip(np.finfo(float).tiny)
    seen = truth.any(axis=0)
    precisions = [
        metrics.average_precision_score(truth[:, one], found[:, one])
        for one in np.flatnonzero(seen)
    ]
    scores = {
        "macro_brier": ((found - truth) ** 2).mean(),
        "macro_nll": -np.log(own).mean(),
        "macro_f1": metrics.f1_score(truth, chosen, average="macro", zero_division=0),
        "micro_f1": metrics.f1_score(truth, chosen, average="micro", zero_division=0),
        "mean_average_precision": np.mean(precisions) if precisions else np.nan,
        "subset_accuracy": (truth == chosen).all(axis=1).mean(),
        "hamming_loss": (truth != chosen).mean(),
    }
    return {name: float(value) for name, value in scores.items()}
