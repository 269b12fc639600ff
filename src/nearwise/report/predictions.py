"""What a method says about test rows."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Predictions:
    """Probabilities of one method for the test part of one split.

    Attributes
    ----------
    y : int64 ndarray of shape (n_test,)
        True class positions.
    proba : float64 ndarray of shape (n_test, n_classes)
        Rows sum to 1.
    test_index : int64 ndarray of shape (n_test,)
        Row positions in the data set.
    classes : list of str
        Class names by position.
    """

    y: np.ndarray
    proba: np.ndarray
    test_index: np.ndarray
    classes: list[str]
