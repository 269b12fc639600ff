"""Logistic regression with its penalty chosen by cross-validated NLL."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.validation import check_is_fitted


class TunedLogistic(ClassifierMixin, BaseEstimator):
    """Multinomial logistic regression, C chosen by cross-validated NLL, refitted on all rows.

    Parameters
    ----------
    n_penalties : int, default=11
        Values of C tried, log-spaced from 0.001 to 100.
    n_folds : int, default=5
        Folds, cut to the rarest class; where that has one row, C = 1 is taken.
    max_iter : int, default=2000
        Iterations of the solver.
    random_state : int, default=0
        Shuffles the folds.

    Attributes
    ----------
    choice_ : dict
        The C chosen.
    """

    def __init__(
        self,
        n_penalties: int = 11,
        n_folds: int = 5,
        max_iter: int = 2000,
        random_state: int = 0,
    ) -> None:
        self.n_penalties = n_penalties
        self.n_folds = n_folds
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Choose C and fit."""
        self.classes_, counts = np.unique(np.asarray(y), return_counts=True)
        folds = min(self.n_folds, int(counts.min()))
        if folds < 2:
            self.model_ = LogisticRegression(max_iter=self.max_iter).fit(X, y)
            self.choice_ = {"C": 1.0}
            return self
        self.model_ = LogisticRegressionCV(
            Cs=np.logspace(-3, 2, self.n_penalties),
            cv=StratifiedKFold(folds, shuffle=True, random_state=self.random_state),
            scoring="neg_log_loss",
            max_iter=self.max_iter,
            l1_ratios=(0.0,),  # the plain squared penalty
            use_legacy_attributes=False,
        ).fit(X, y)
        self.choice_ = {"C": float(self.model_.C_)}
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities, ndarray of shape (n_rows, n_classes)."""
        check_is_fitted(self, "model_")
        return np.asarray(self.model_.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
