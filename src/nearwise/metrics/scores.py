"""Scores of labels and probabilities: accuracy, macro F1, NLL, Brier."""

import numpy as np
import numpy.typing as npt
from sklearn.metrics import f1_score

from nearwise.metrics.checks import IntArray, check_labels, check_predictions, check_same_rows

NLL_CLIP = 1e-7
"""Lower bound of probabilities in `nll`."""


def accuracy(y: npt.ArrayLike, prediction: npt.ArrayLike) -> float:
    """Compute the share of rows with a correct predicted class.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions.
    prediction : array-like of shape (n_rows, n_classes) or (n_rows,)
        Probabilities, or integer class positions. With probabilities the most probable class is
        the prediction, ties to the lowest position.

    Returns
    -------
    accuracy : float in [0, 1]
    """
    labels, predicted = _labels_and_predicted(y, prediction)
    return float(np.mean(labels == predicted))


def macro_f1(y: npt.ArrayLike, prediction: npt.ArrayLike) -> float:
    """Average the F1 over all classes with a true or predicted row.

    A class without a true or a predicted row has no F1 and is left out, as in scikit-learn's
    ``f1_score(average="macro")``.

    Parameters
    ----------
    y, prediction : as for `accuracy`

    Returns
    -------
    f1 : float in [0, 1]
    """
    return float(f1_score(*_labels_and_predicted(y, prediction), average="macro"))


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
    # abs: the mean of -log(1) is -0.0, an ugly output.
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


def _labels_and_predicted(y: npt.ArrayLike, prediction: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    given = np.asarray(prediction)
    if given.ndim != 1:
        predictions = check_predictions(y, given)
        return predictions.labels, predictions.predicted
    labels = check_labels(y)
    predicted = check_labels(given, name="prediction")
    check_same_rows(labels.shape[0], predicted.shape[0], "prediction")
    return labels, predicted
