"""Gradient boosting peers: rounds stopped on rows left out, with the defaults or after a search."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold

from nearwise_lab.experiments.network import mean_nll
from nearwise_lab.experiments.peers.bag import TemperedBag
from nearwise_lab.experiments.peers.peer import Peer, held_out_split
from nearwise_lab.experiments.preprocess import NativeEncoder, Table, take_rows

Library = Literal["sklearn", "lightgbm", "catboost"]
Range = tuple[str, float, float] | tuple[str, tuple[Any, ...]]
FOLDS = 3
FOLDS_BELOW = 5_000
GIVEN_UP = 1.3  # times the first fold's NLL of the best trial so far
# The spaces of TabArena (Erickson et al., NeurIPS 2025), which both follow those of TabRepo. Rounds
# are not in them: each fit stops by itself.
SPACES: dict[str, dict[str, Range]] = {
    "lightgbm": {
        "learning_rate": ("log", 5e-3, 1e-1),
        "feature_fraction": ("uniform", 0.4, 1.0),
        "bagging_fraction": ("uniform", 0.7, 1.0),
        "bagging_freq": ("one of", (1,)),
        "num_leaves": ("log, whole", 2, 200),
        "min_data_in_leaf": ("log, whole", 1, 64),
        "extra_trees": ("one of", (False, True)),
        "min_data_per_group": ("log, whole", 2, 100),
        "cat_l2": ("log", 5e-3, 2.0),
        "cat_smooth": ("log", 1e-3, 100.0),
        "max_cat_to_onehot": ("log, whole", 8, 100),
        "lambda_l1": ("log", 1e-5, 1.0),
        "lambda_l2": ("log", 1e-5, 2.0),
    },
    "catboost": {
        "learning_rate": ("log", 5e-3, 1e-1),
        "bootstrap_type": ("one of", ("Bernoulli",)),
        "subsample": ("uniform", 0.7, 1.0),
        "grow_policy": ("one of", ("SymmetricTree", "Depthwise")),
        "depth": ("one of", (4, 5, 6, 7, 8)),
        "colsample_bylevel": ("uniform", 0.85, 1.0),
        "l2_leaf_reg": ("log", 1e-4, 5.0),
        "leaf_estimation_iterations": ("log, whole", 1, 20),
        "one_hot_max_size": ("log, whole", 8, 100),
        "model_size_reg": ("log", 0.1, 1.5),
        "max_ctr_complexity": ("one of", (2, 3, 4, 5)),
        "boosting_type": ("one of", ("Plain",)),
        "max_bin": ("one of", (254,)),
    },
}


def stopping_splits(y: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit on, and rows for early stopping, from class positions (n_rows,).

    Three stratified folds below 5,000 rows where every class has 3 rows; otherwise 15 % held out,
    stratified where every class has 2 rows.
    """
    if len(y) < FOLDS_BELOW and np.bincount(y).min() >= FOLDS:
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        return list(folds.split(np.zeros(len(y)), y))
    return [held_out_split(y, seed)]


def draw_settings(library: str, rng: np.random.Generator) -> dict[str, Any]:
    """Draw one setting of a library from its published space."""
    return {name: _draw(spec, rng) for name, spec in SPACES[library].items()}


def _draw(spec: Range, rng: np.random.Generator) -> Any:
    if len(spec) == 2:
        return spec[1][int(rng.integers(len(spec[1])))]
    kind, low, high = spec
    if kind == "uniform":
        return float(rng.uniform(low, high))
    if kind == "log":
        return float(math.exp(rng.uniform(math.log(low), math.log(high))))
    # The upper end is a value like the others, so that its share is not nought.
    return int(math.exp(rng.uniform(math.log(low), math.log(high + 1))))


@dataclass(eq=False, repr=False)
class BoostingMember(Peer):
    """One boosting model on encoded rows; `choice_` has its number of rounds.

    `settings` are the library's, `categorical` names the columns of categories for CatBoost.
    With rows to stop on, fitting ends where their log loss has not fallen for `patience` rounds;
    without, after `max_rounds`.
    """

    library: Library
    settings: dict[str, Any]
    categorical: list[Any] | None = None
    max_rounds: int = 2000
    patience: int = 50
    n_threads: int = 1
    random_state: int = 0

    def fit(self, X: Table, y: np.ndarray, X_val: Any = None, y_val: Any = None) -> Self:
        """Fit, with early stopping on `X_val`; all its labels must occur in `y`."""
        labels = self._learn_classes(y)
        stops = None if X_val is None else (X_val, np.searchsorted(self.classes_, y_val))
        fit = {"sklearn": self._sklearn, "lightgbm": self._lightgbm, "catboost": self._catboost}
        self.choice_ = {"n_rounds": fit[self.library](X, labels, stops)}
        return self

    def _sklearn(self, X: Table, labels: np.ndarray, stops: Any) -> int:
        self._model: Any = HistGradientBoostingClassifier(
            max_iter=self.max_rounds, early_stopping=stops is not None,
            n_iter_no_change=self.patience, random_state=self.random_state, **self.settings,
        )  # fmt: skip
        if stops is None:
            self._model.fit(X, labels)
            return self.max_rounds
        self._model.fit(X, labels, X_val=stops[0], y_val=stops[1])
        return int(np.argmax(self._model.validation_score_))  # entry 0 is before the first round

    def _lightgbm(self, X: Table, labels: np.ndarray, stops: Any) -> int:
        import lightgbm

        self._model = lightgbm.LGBMClassifier(
            n_estimators=self.max_rounds, n_jobs=self.n_threads, random_state=self.random_state,
            deterministic=True, force_row_wise=True, verbose=-1, **self.settings,
        )  # fmt: skip
        stopping: dict[str, Any] = {}
        if stops is not None:
            stop = lightgbm.early_stopping(self.patience, verbose=False)
            stopping = {"eval_set": [stops], "callbacks": [stop]}
        with warnings.catch_warnings():  # of eval_set, and of settings under two names
            warnings.simplefilter("ignore")
            self._model.fit(X, labels, **stopping)
        return int(self._model.best_iteration_ or self.max_rounds)

    def _catboost(self, X: Table, labels: np.ndarray, stops: Any) -> int:
        import catboost

        self._model = catboost.CatBoostClassifier(
            iterations=self.max_rounds, thread_count=self.n_threads,
            random_seed=self.random_state, allow_writing_files=False, verbose=False,
            cat_features=self.categorical or None, **self.settings,
        )  # fmt: skip
        patience = {} if stops is None else {"early_stopping_rounds": self.patience}
        self._model.fit(X, labels, eval_set=stops, **patience)
        return int(self._model.tree_count_)

    def _proba(self, X: Table) -> np.ndarray:
        with warnings.catch_warnings():  # LightGBM on names of columns that an array lacks
            warnings.simplefilter("ignore")
            return np.asarray(self._model.predict_proba(X))


@dataclass(eq=False, repr=False)
class StoppedBoosting(Peer):
    """Boosting with native categorical splits and early stopping on log loss.

    Depth, leaves and regularisation have the library's defaults. The rounds, `n_rounds_`, are the
    median over `stopping_splits`; then one model is fitted to all training rows with that many.
    """

    library: Library = "sklearn"
    learning_rate: float = 0.05
    max_rounds: int = 2000
    patience: int = 50
    n_threads: int = 1
    random_state: int = 0

    def fit(self, X: Table, y: Any) -> Self:
        """Choose the number of rounds, then fit on all rows."""
        labels, encoded = self._encode(X, y)
        settings = {"learning_rate": self.learning_rate}
        rounds = [
            self._member(settings, self.max_rounds).fit(*parts).choice_["n_rounds"]
            for parts in _stopping_parts(encoded, labels, self.random_state)
        ]
        self.n_rounds_ = max(1, int(np.median(rounds)))
        self._model: Peer = self._member(settings, self.n_rounds_).fit(encoded, labels)
        return self

    def _encode(self, X: Table, y: Any) -> tuple[np.ndarray, Table]:
        self._encoder = NativeEncoder("text" if self.library == "catboost" else "category")
        return self._learn_classes(y), self._encoder.fit_transform(X)

    def _member(self, settings: dict[str, Any], rounds: int) -> BoostingMember:
        return BoostingMember(
            self.library, settings, self._encoder.categorical_, rounds, self.patience,
            self.n_threads, self.random_state,
        )  # fmt: skip

    def _proba(self, X: Table) -> np.ndarray:
        return self._model.predict_proba(self._encoder.transform(X))


@dataclass(eq=False, repr=False)
class SearchedBoosting(StoppedBoosting):
    """Boosting with settings from a random search, then bagged over folds with a temperature.

    The first of `n_trials` has the library's defaults and `learning_rate`, the others are drawn
    from `SPACES`. A trial is scored by the NLL of the rows that its models stop on; one whose first
    fold is worse than that of the best one so far by more than 30 % is not fitted on the others.
    `choice_` has the settings, their NLL and that of the defaults, the number of trials that ran on
    all folds, and what the bag of `n_folds` chose.
    """

    n_trials: int = 30
    n_folds: int = 5

    def fit(self, X: Table, y: Any) -> Self:
        """Search, then fit the bag."""
        labels, encoded = self._encode(X, y)
        rng = np.random.default_rng(self.random_state)
        trials: list[dict[str, Any]] = [{"learning_rate": self.learning_rate}]
        trials += [draw_settings(self.library, rng) for _ in range(self.n_trials - 1)]
        splits = list(_stopping_parts(encoded, labels, self.random_state))
        best, best_folds, first, n_whole = trials[0], [math.inf], math.inf, 0
        for number, settings in enumerate(trials):
            folds = self._out_of_fold(settings, splits, GIVEN_UP * best_folds[0])
            if len(folds) == len(splits):
                n_whole += 1
                first = float(np.mean(folds)) if not number else first
                if np.mean(folds) < np.mean(best_folds):
                    best, best_folds = settings, folds
        member = self._member(best, self.max_rounds)
        bag = TemperedBag(member, n_folds=self.n_folds, random_state=self.random_state)
        self._model = bag
        self.choice_ = {
            **bag.fit(encoded, labels).choice_,
            "settings": best,
            "trial_nll": float(np.mean(best_folds)),
            "default_nll": first,
            "whole_trials": n_whole,
        }
        return self

    def _out_of_fold(
        self, settings: dict[str, Any], splits: list[tuple[Any, ...]], bound: float
    ) -> list[float]:
        """NLL of each fold; the first one alone where it is above `bound`."""
        folds: list[float] = []
        for parts in splits:
            member = self._member(settings, self.max_rounds).fit(*parts)
            positions = np.searchsorted(member.classes_, parts[3])
            folds.append(mean_nll(member.predict_proba(parts[2]), positions))
            if folds[0] > bound:
                break
        return folds


def _stopping_parts(X: Table, labels: np.ndarray, seed: int) -> Iterator[tuple[Any, ...]]:
    """Training part and early-stopping part, the latter without classes that the former lacks."""
    for rows, held_out in stopping_splits(labels, seed):
        stop = held_out[np.isin(labels[held_out], labels[rows])]  # log loss needs known classes
        yield take_rows(X, rows), labels[rows], take_rows(X, stop), labels[stop]
