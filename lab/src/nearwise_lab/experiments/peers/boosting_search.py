"""LightGBM and CatBoost, tuned: random search by out-of-fold NLL, then a bag with a temperature."""

import math
import warnings
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from nearwise_lab.experiments.boosting import stopping_splits
from nearwise_lab.experiments.network import mean_nll
from nearwise_lab.experiments.peers.bag import TemperedBag
from nearwise_lab.experiments.preprocess import NativeEncoder, Table, take_rows

Library = Literal["lightgbm", "catboost"]
Range = tuple[str, float, float] | tuple[str, tuple[Any, ...]]

# The spaces of TabArena (Erickson et al., NeurIPS 2025), which both follow those of TabRepo. Rounds
# are not in them: each fit stops by itself.
SPACES: dict[Library, dict[str, Range]] = {
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
GIVEN_UP = 1.3  # times the first fold's NLL of the best trial so far


def draw_settings(library: Library, rng: np.random.Generator) -> dict[str, Any]:
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


class BoostingMember(ClassifierMixin, BaseEstimator):
    """One boosting model on encoded rows, its rounds stopped on rows left out.

    Parameters
    ----------
    library : {"lightgbm", "catboost"}
        Whose implementation.
    settings : dict, optional
        Of the library; what is not named keeps the library's default.
    categorical : list, optional
        Names of categorical columns (CatBoost needs them).
    max_rounds : int, default=2000
        Most rounds.
    patience : int, default=50
        Rounds without a better log loss before stopping.
    n_threads : int, default=1
        Threads of the library.
    random_state : int, default=0
        Seed of the library.
    """

    def __init__(
        self,
        library: Library,
        settings: dict[str, Any] | None = None,
        categorical: list[Any] | None = None,
        max_rounds: int = 2000,
        patience: int = 50,
        n_threads: int = 1,
        random_state: int = 0,
    ) -> None:
        self.library = library
        self.settings = settings
        self.categorical = categorical
        self.max_rounds = max_rounds
        self.patience = patience
        self.n_threads = n_threads
        self.random_state = random_state

    def fit(self, X: Table, y: np.ndarray, X_val: Table, y_val: np.ndarray) -> Self:
        """Fit until the log loss of `X_val` with the labels `y_val`, all known, rises."""
        self.classes_, labels = np.unique(y, return_inverse=True)
        stop = np.searchsorted(self.classes_, y_val)
        settings = self.settings or {}
        if self.library == "lightgbm":
            import lightgbm

            self._model: Any = lightgbm.LGBMClassifier(
                n_estimators=self.max_rounds,
                n_jobs=self.n_threads,
                random_state=self.random_state,
                deterministic=True,
                force_row_wise=True,
                verbose=-1,
                **settings,
            )
            stopping = lightgbm.early_stopping(self.patience, verbose=False)
            with warnings.catch_warnings():  # of eval_set, and of settings under two names
                warnings.simplefilter("ignore")
                self._model.fit(X, labels, eval_set=[(X_val, stop)], callbacks=[stopping])
            rounds = int(self._model.best_iteration_ or self.max_rounds)
        else:
            import catboost

            self._model = catboost.CatBoostClassifier(
                iterations=self.max_rounds,
                thread_count=self.n_threads,
                random_seed=self.random_state,
                allow_writing_files=False,
                verbose=False,
                cat_features=self.categorical or None,
                **settings,
            )
            self._model.fit(X, labels, eval_set=(X_val, stop), early_stopping_rounds=self.patience)
            rounds = int(self._model.tree_count_)
        self.choice_ = {"n_rounds": rounds}
        return self

    def predict_proba(self, X: Table) -> np.ndarray:
        """Return class probabilities, ndarray of shape (n_rows, n_classes)."""
        check_is_fitted(self, "classes_")
        with warnings.catch_warnings():  # LightGBM on names of columns that an array lacks
            warnings.simplefilter("ignore")
            return np.asarray(self._model.predict_proba(X))

    def predict(self, X: Table) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class SearchedBoosting(ClassifierMixin, BaseEstimator):
    """Boosting with settings from a random search, then bagged over folds with a temperature.

    The first trial has the library's defaults, the others are drawn from `SPACES`. A trial is
    scored by the out-of-fold NLL of its models, each stopped on its fold (three folds; one held-out
    part above 5,000 rows). A trial whose first fold is worse than that of the best one so far by
    more than 30 % is not fitted on the others.

    Parameters
    ----------
    library : {"lightgbm", "catboost"}
        Whose implementation.
    default_rate : float, default=0.05
        Learning rate of the first trial.
    n_trials : int, default=30
        Settings tried.
    n_folds : int, default=5
        Members of the bag with the settings chosen.
    max_rounds, patience, n_threads
        Of `BoostingMember`.
    random_state : int, default=0
        Seed of the settings, the folds and the library.

    Attributes
    ----------
    choice_ : dict
        The settings, their out-of-fold NLL and that of the defaults, the number of trials that ran
        on all folds, and what the bag chose.
    """

    def __init__(
        self,
        library: Library,
        default_rate: float = 0.05,
        n_trials: int = 30,
        n_folds: int = 5,
        max_rounds: int = 2000,
        patience: int = 50,
        n_threads: int = 1,
        random_state: int = 0,
    ) -> None:
        self.library = library
        self.default_rate = default_rate
        self.n_trials = n_trials
        self.n_folds = n_folds
        self.max_rounds = max_rounds
        self.patience = patience
        self.n_threads = n_threads
        self.random_state = random_state

    def fit(self, X: Table, y: Any) -> Self:
        """Search, then fit the bag."""
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        self._encoder = NativeEncoder("text" if self.library == "catboost" else "category")
        encoded = self._encoder.fit_transform(X)
        rng = np.random.default_rng(self.random_state)
        trials: list[dict[str, Any]] = [{"learning_rate": self.default_rate}]
        trials += [draw_settings(self.library, rng) for _ in range(self.n_trials - 1)]
        splits = stopping_splits(labels, self.random_state)
        best, best_folds, first, n_whole = trials[0], [math.inf], math.inf, 0
        for number, settings in enumerate(trials):
            folds = self._out_of_fold(settings, encoded, labels, splits, GIVEN_UP * best_folds[0])
            if len(folds) == len(splits):
                n_whole += 1
                first = float(np.mean(folds)) if not number else first
                if np.mean(folds) < np.mean(best_folds):
                    best, best_folds = settings, folds
        self._bag = TemperedBag(
            self._member(best), n_folds=self.n_folds, random_state=self.random_state
        ).fit(encoded, labels)
        self.choice_ = {
            **self._bag.choice_,
            "settings": best,
            "trial_nll": float(np.mean(best_folds)),
            "default_nll": first,
            "whole_trials": n_whole,
        }
        return self

    def _member(self, settings: dict[str, Any]) -> BoostingMember:
        return BoostingMember(
            self.library,
            settings,
            self._encoder.categorical_,
            self.max_rounds,
            self.patience,
            self.n_threads,
            self.random_state,
        )

    def _out_of_fold(
        self,
        settings: dict[str, Any],
        X: Table,
        labels: np.ndarray,
        splits: list[tuple[np.ndarray, np.ndarray]],
        bound: float,
    ) -> list[float]:
        """NLL of each fold; the first one alone where it is above `bound`."""
        folds: list[float] = []
        for rows, held_out in splits:
            stop = held_out[np.isin(labels[held_out], labels[rows])]
            there = take_rows(X, stop)
            member = self._member(settings)
            member.fit(take_rows(X, rows), labels[rows], there, labels[stop])
            positions = np.searchsorted(member.classes_, labels[stop])
            folds.append(mean_nll(member.predict_proba(there), positions))
            if folds[0] > bound:
                break
        return folds

    def predict_proba(self, X: Table) -> np.ndarray:
        """Return the mean of the bag, ndarray of shape (n_rows, n_classes)."""
        check_is_fitted(self, "choice_")
        return self._bag.predict_proba(self._encoder.transform(X))

    def predict(self, X: Table) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
