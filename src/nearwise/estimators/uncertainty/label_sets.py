"""Label sets with several labels per row: conformal risk control of the missed labels."""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from nearwise.estimators.query import Query
from nearwise.estimators.uncertainty.conformal import check_confidence


def label_sets(queries: Sequence[Query], confidence: float) -> np.ndarray:
    """Compute sets of labels that on average hold this share of a row's true labels.

    Parameters
    ----------
    queries : sequence of Query
        Of the models of all labels, each with two classes, about the same n new rows.
    confidence : float in (0, 1)
        Expected share of the true labels of a row that its set holds. A row without labels counts
        as complete.

    Returns
    -------
    sets : bool ndarray of shape (n, n_labels)
        Labels with a probability above one threshold for all labels and rows.

    Raises
    ------
    ValueError
        If there are too few calibration rows, or the labels have different ones.

    Notes
    -----
    The threshold is the largest with ``(n R + 1) / (n + 1) <= 1 - confidence``, where R is the
    mean share of missed labels of n calibration rows, predicted out of sample. The share holds on
    average over rows drawn like the training rows, not for each row or label.

    References
    ----------
    Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal Risk Control", ICLR 2024.
    """
    check_confidence(confidence)
    rows = [query.calibration_rows().one_per_group() for query in queries]
    if len({len(one.labels) for one in rows}) > 1:
        raise ValueError(
            "The labels have different calibration rows, as under a class_prior or with rows that "
            "only one of them has, and sets of labels need rows with all of them. Take the sets of "
            "single labels: model.estimators_[0].predict_set(X)."
        )
    proba = np.column_stack([one.parts.proba[:, 1] for one in rows])
    present = np.column_stack([one.labels == 1 for one in rows])
    threshold = _threshold(proba, present, 1.0 - confidence)
    return np.column_stack([query.proba()[:, 1] for query in queries]) >= threshold


def check_label_sets(classes: Sequence[np.ndarray], options: dict[str, Any]) -> None:
    """Raise ValueError for targets of more than two classes, or options of single targets."""
    usual = {name: inspect.signature(Query.sets).parameters[name].default for name in options}
    changed = [name for name, value in options.items() if value != usual[name]]
    if changed or any(len(one) != 2 for one in classes):
        sizes = ", ".join(str(len(one)) for one in classes)
        needs = f"needs targets of two classes each, and these have {sizes}"
        seen = f"takes no {changed[0]}" if changed else needs
        raise ValueError(
            f"predict_set of several targets {seen}. Take the sets of single targets: "
            "model.estimators_[0].predict_set(X, ...)."
        )


def _threshold(proba: np.ndarray, present: np.ndarray, risk: float) -> float:
    """Largest threshold that keeps the share of missed labels; matrices (n, n_labels)."""
    n_rows = len(proba)
    allowed = (risk * (n_rows + 1) - 1) + 1e-9  # of the sum over rows of the missed shares
    if allowed < 0:
        raise ValueError(
            f"{n_rows} calibration rows are too few for label sets of confidence {1 - risk:.3g}: "
            f"at least {int(np.ceil(1 / risk - 1e-9)) - 1} are needed. Lower the confidence, or "
            "give more rows."
        )
    share = present / np.maximum(present.sum(axis=1, keepdims=True), 1)
    values, shares = proba[present], share[present]
    order = np.argsort(values, kind="stable")
    missed = np.cumsum(shares[order])  # if all labels up to this one are missed
    n_missed = int(np.searchsorted(missed, allowed, side="right"))
    if n_missed == len(values):
        return 1.0
    # Equal probabilities are missed together or not at all.
    return float(values[order][n_missed])
