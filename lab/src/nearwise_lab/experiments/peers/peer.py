"""Base class of all peers: positions of the classes, and class predictions."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils.validation import check_is_fitted

HELD_OUT = 0.15


class Peer(ClassifierMixin, BaseEstimator):
    """Base class of classifiers: `fit` sets `classes_` (sorted), `_proba` predicts.

    Subclasses are dataclasses: their fields are the parameters, which the constructor only stores.
    """

    classes_: np.ndarray

    def _learn_classes(self, y: Any) -> np.ndarray:
        """Set `classes_`, and return the position of each label in them."""
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        return labels

    def _proba(self, X: Any) -> np.ndarray:
        raise NotImplementedError

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities, ndarray of shape (n_rows, n_classes)."""
        check_is_fitted(self, "classes_")
        return self._proba(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class; ties go to the first."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def held_out_split(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit on and 15 % to stop on, stratified where every class has 2 rows."""
    counts = np.bincount(y)
    n_stop = max(int(np.ceil(HELD_OUT * len(y))), len(counts))
    splitter = StratifiedShuffleSplit if counts.min() >= 2 else ShuffleSplit
    split = splitter(1, test_size=min(n_stop, len(y) // 2), random_state=seed)
    return next(split.split(np.zeros(len(y)), y))
