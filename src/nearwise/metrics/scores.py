"""Scores of labels and probabilities: accuracy, macro F1, NLL, Brier, confusion matrix."""

import numpy as np
import numpy.typing as npt

from nearwise.metrics.checks import IntArray, check_labels, check_predictions, check_same_rows

NLL_CLIP = 1e-7
"""Smallest probability that `nll` takes the logarithm of."""


def accuracy(y: npt.ArrayLike, prediction: npt.ArrayLike) -> float:
    """Compute the share of rows whose predicted class is the true one.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions.
    prediction : array-like of shape (n_rows, n_classes) or (n_rows,)
        Probabilities (the most probable class counts, ties to the lowest position),
        or integer class positions.

    Returns
    -------
    accuracy : float in [0, 1]
    """
    labels, predicted, _ = _labels_and_predicted(y, prediction)
    return float(np.mean(labels == predicted))


def macro_f1(y: npt.ArrayLike, prediction: npt.ArrayLike) -> float:
    """Average the F1 of the classes that are true or predicted somewhere.

    A class with neither a true nor a predicted row has no F1 and is left out, as
    scikit-learn's ``f1_score(average="macro")`` does.

    Parameters
    ----------
    y, prediction : as for `accuracy`

    Returns
    -------
    f1 : float in [0, 1]
    """
    counts = confusion_matrix(y, prediction)
    hits = counts.diagonal()
    total = counts.sum(axis=0) + counts.sum(axis=1)
    seen = total > 0
    return float(np.mean(2.0 * hits[seen] / total[seen]))


def nll(y: npt.ArrayLike, proba: npt.ArrayLike) -> float:
    """Compute the mean negative log-likelihood; probabilities below 1e-7 count as 1e-7.

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)

    Returns
    -------
    nll : float in [0, 16.12], in nats
        0 is perfect; the bound is -log(1e-7).
    """
    predictions = check_predictions(y, proba)
    of_truth = predictions.proba[np.arange(predictions.n_rows), predictions.labels]
    # abs: the mean of -log(1) is -0.0, which prints badly.
    return abs(float(-np.log(np.maximum(of_truth, NLL_CLIP)).mean()))


def brier(y: npt.ArrayLike, proba: npt.ArrayLike) -> float:
    """Average over rows the squared error summed over classes.

    Parameters
    ----------
    y, proba : true class positions (n_rows,), probabilities (n_rows, n_classes)

    Returns
    -------
    brier : float in [0, 2]
        For two classes twice scikit-learn's ``brier_score_loss``.

    References
    ----------
    Brier, "Verification of Forecasts Expressed in Terms of Probability", 1950.
    """
    predictions = check_predictions(y, proba)
    error = predictions.proba.copy()
    error[np.arange(predictions.n_rows), predictions.labels] -= 1.0
    return float(np.einsum("ij,ij->", error, error)) / predictions.n_rows


def confusion_matrix(
    y: npt.ArrayLike, prediction: npt.ArrayLike, *, n_classes: int | None = None
) -> IntArray:
    """Count rows by true class (matrix rows) and predicted class (matrix columns).

    Parameters
    ----------
    y, prediction : as for `accuracy`
    n_classes : int, optional
        Size of the matrix. Default: the columns of the probabilities, or the largest
        class position seen plus 1.

    Returns
    -------
    counts : int64 ndarray of shape (n_classes, n_classes)

    Raises
    ------
    ValueError
        If `n_classes` is smaller than a class position seen or than the columns given.
    """
    labels, predicted, size = _labels_and_predicted(y, prediction)
    if n_classes is not None and n_classes < size:
        raise ValueError(f"n_classes={n_classes}, but {size} classes are given. Raise n_classes.")
    size = n_classes or size
    pairs = np.bincount(labels * size + predicted, minlength=size * size)
    counts: IntArray = pairs.reshape(size, size).astype(np.int64, copy=False)
    return counts


def _labels_and_predicted(
    y: npt.ArrayLike, prediction: npt.ArrayLike
) -> tuple[IntArray, IntArray, int]:
    given = np.asarray(prediction)
    if given.ndim != 1:
        predictions = check_predictions(y, given)
        return predictions.labels, predictions.predicted, predictions.n_classes
    labels = check_labels(y)
    predicted = check_labels(given, name="prediction")
    check_same_rows(labels.shape[0], predicted.shape[0], "prediction")
    return labels, predicted, int(max(labels.max(), predicted.max())) + 1
