"""Logistic regression with its penalty chosen by cross-validated NLL."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold

from nearwise_lab.experiments.peers.peer import Peer


@dataclass(eq=False, repr=False)
class TunedLogistic(Peer):
    """Multinomial logistic regression, C chosen by cross-validated NLL, refitted on all rows.

    `n_penalties` values of C are tried, log-spaced from 0.001 to 100, on `n_folds` folds, cut to
    the rarest class; where that has one row, C = 1 is taken. `choice_` has the C.
    """

    n_penalties: int = 11
    n_folds: int = 5
    max_iter: int = 2000
    random_state: int = 0

    def fit(self, X: Any, y: Any) -> Self:
        """Choose C and fit."""
        folds = min(self.n_folds, int(np.bincount(self._learn_classes(y)).min()))
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

    def _proba(self, X: Any) -> np.ndarray:
        return np.asarray(self.model_.predict_proba(X))
