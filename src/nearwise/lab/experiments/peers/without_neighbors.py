"""Peers that combine classifiers without asking neighbors: a stack, and this library's own base."""

import warnings
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils.validation import check_is_fitted

from nearwise.classifier.fit.base import Base, auto_candidates, cross_fit
from nearwise.classifier.inputs.table import TableEncoder
from nearwise.lab.experiments.linear import TunedLogistic
from nearwise.lab.experiments.network import fit_temperature, mean_nll, tempered
from nearwise.lab.experiments.peers.bag import RIDGE
from nearwise.lab.experiments.preprocess import Table


def stack(n_folds: int, n_threads: int, seed: int) -> StackingClassifier:
    """scikit-learn's stack of four classifiers on encoded rows; a logistic regression on top.

    The last stage is fitted to out-of-fold probabilities, its penalty chosen by cross-validated
    NLL: it holds a temperature.
    """
    forest = {"n_estimators": 300, "n_jobs": n_threads, "random_state": seed}
    return StackingClassifier(
        [
            ("logistic", TunedLogistic(n_penalties=6, n_folds=3, random_state=seed)),
            ("random-forest", RandomForestClassifier(**forest)),
            ("extra-trees", ExtraTreesClassifier(**forest)),
            ("boosting", HistGradientBoostingClassifier(learning_rate=0.05, random_state=seed)),
        ],
        TunedLogistic(random_state=seed),
        cv=StratifiedKFold(n_folds, shuffle=True, random_state=seed),
        stack_method="predict_proba",
    )


class BaseAlone(ClassifierMixin, BaseEstimator):
    """The base of `AttnKNNClassifier` without any neighbor: its candidates, folds and pool.

    Cross-fitted classifiers, pooled in the log domain by out-of-fold NLL; the mean of the folds'
    predictions at one out-of-fold temperature.

    Parameters
    ----------
    fast : bool, default=False
        The candidates of `preset="fast"`.
    n_folds : int, default=5
        Members.
    n_threads : int, default=1
        Threads of the forests.
    random_state : int, default=0
        Seed of the folds and the candidates.

    Attributes
    ----------
    choice_ : dict
        Gates of the candidates in the pool, and the temperature.
    """

    def __init__(
        self, fast: bool = False, n_folds: int = 5, n_threads: int = 1, random_state: int = 0
    ) -> None:
        self.fast = fast
        self.n_folds = n_folds
        self.n_threads = n_threads
        self.random_state = random_state

    def fit(self, X: Table, y: Any) -> Self:
        """Cross-fit the candidates and pool them."""
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        self._encoder = TableEncoder()
        n_classes, seed = len(self.classes_), self.random_state
        rows = self._encoder.fit(X if isinstance(X, pd.DataFrame) else np.asarray(X))
        candidates = auto_candidates(
            self._encoder, len(labels), n_classes, fast=self.fast, seed=seed, n_jobs=self.n_threads
        )
        kind = StratifiedKFold if np.bincount(labels).min() >= self.n_folds else KFold
        splits = kind(min(self.n_folds, len(labels)), shuffle=True, random_state=seed)
        self._folds = list(splits.split(np.zeros(len(labels)), labels))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # classes that a fold lacks
            self._base: Base = cross_fit(
                candidates, self._encoder, rows, labels, None, self._folds, n_classes
            )
        unseen = np.exp(self._base.oof_log_proba)
        self.temperature_ = fit_temperature(unseen, labels, ridge=RIDGE / len(labels))
        self.oof_nll_ = mean_nll(tempered(unseen, self.temperature_), labels)
        self.choice_ = {"base": self._base.gates, "temperature": self.temperature_}
        return self

    def predict_proba(self, X: Table) -> np.ndarray:
        """Return the mean over the folds, ndarray of shape (n_rows, n_classes)."""
        check_is_fitted(self, "temperature_")
        rows = self._encoder.transform(X if isinstance(X, pd.DataFrame) else np.asarray(X))
        views = self._base.views(self._encoder, rows)
        folds = range(len(self._folds))
        base = self._base
        given = [np.exp(base.pooled(base.parts(views, fold, {}))) for fold in folds]
        return np.mean([tempered(one, self.temperature_) for one in given], axis=0)

    def predict(self, X: Table) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
