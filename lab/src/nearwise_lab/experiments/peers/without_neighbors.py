"""Peers that combine classifiers without neighbors: a stack, and this library's own base."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline

from nearwise.estimators.fit.base import Base, auto_candidates, cross_fit
from nearwise.estimators.fit.problem import auto_folds, make_folds
from nearwise.estimators.inputs.table import LARGE, TableEncoder
from nearwise.functional.threads import one_thread
from nearwise_lab.experiments.linear import TunedLogistic
from nearwise_lab.experiments.network import fit_temperature, mean_nll, tempered
from nearwise_lab.experiments.peers.bag import RIDGE
from nearwise_lab.experiments.peers.peer import Peer
from nearwise_lab.experiments.preprocess import Table


def stack(n_folds: int, n_train: int, n_threads: int, seed: int) -> StackingClassifier:
    """scikit-learn's stack of classifiers on encoded rows; a logistic regression on top.

    They are of the kinds that the base of `AttnKNNClassifier` tries: up to 5,000 rows a network of
    two hidden layers and a kernel map join the linear model, the trees and boosting. The last stage
    is fitted to out-of-fold probabilities, its penalty chosen by cross-validated NLL: it holds a
    temperature.
    """
    forest = {"n_estimators": 300, "n_jobs": n_threads, "random_state": seed}
    members: list[tuple[str, Any]] = [
        ("logistic", TunedLogistic(n_penalties=6, n_folds=3, random_state=seed)),
        ("random-forest", RandomForestClassifier(**forest)),
        ("extra-trees", ExtraTreesClassifier(**forest)),
        ("boosting", HistGradientBoostingClassifier(learning_rate=0.05, random_state=seed)),
    ]
    if n_train <= LARGE:
        kernel = Nystroem(n_components=max(1, min(400, n_train // 2)), random_state=seed)
        linear = LogisticRegression(C=30.0, max_iter=100)
        network = MLPClassifier(
            (64, 64), alpha=0.3, learning_rate_init=3e-3, max_iter=100, random_state=seed
        )
        members += [("kernel-logistic", make_pipeline(kernel, linear)), ("mlp", network)]
    return StackingClassifier(
        members,
        TunedLogistic(random_state=seed),
        cv=StratifiedKFold(n_folds, shuffle=True, random_state=seed),
        stack_method="predict_proba",
    )


@dataclass(eq=False, repr=False)
class BaseAlone(Peer):
    """The base of `AttnKNNClassifier` without any neighbor: its candidates, folds and pool.

    Cross-fitted classifiers, pooled in the log domain by out-of-fold NLL; the mean of a
    classifier's models of the folds predicts, at the out-of-fold temperature. There are as many
    folds as the classifier takes unless `n_folds` says so; `choice_` has the gates of the
    candidates in the pool, and the temperature.
    """

    n_folds: int | None = None
    n_threads: int = 1
    random_state: int = 0

    def fit(self, X: Table, y: Any) -> Self:
        """Cross-fit the candidates and pool them."""
        with one_thread():  # as the classifier does
            return self._fit(X, y)

    def _fit(self, X: Table, y: Any) -> Self:
        labels = self._learn_classes(y)
        self._encoder = TableEncoder()
        n, n_classes, seed = len(labels), len(self.classes_), self.random_state
        rows = self._encoder.fit(X if isinstance(X, pd.DataFrame) else np.asarray(X))
        candidates = auto_candidates(self._encoder, n, n_classes, seed=seed, n_jobs=self.n_threads)
        n_folds = auto_folds(n) if self.n_folds is None else self.n_folds
        folds = make_folds(labels, n_folds, seed)
        self._base: Base = cross_fit(
            candidates, self._encoder, rows, labels, None, folds, n_classes
        )
        unseen = np.exp(self._base.oof_log_proba)
        self.temperature_ = fit_temperature(unseen, labels, ridge=RIDGE / n)
        self.oof_nll_ = mean_nll(tempered(unseen, self.temperature_), labels)
        self.choice_ = {"base": self._base.gates, "temperature": self.temperature_}
        return self

    def _proba(self, X: Table) -> np.ndarray:
        rows = self._encoder.transform(X if isinstance(X, pd.DataFrame) else np.asarray(X))
        pooled = np.exp(self._base.pooled(self._base.parts(self._encoder, rows)))
        return tempered(pooled, self.temperature_)
