"""Gradient boosting peers: rounds found by early stopping inside the training part, then refit."""

import warnings
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit
from sklearn.utils.validation import check_is_fitted

from nearwise_lab.experiments.preprocess import NativeEncoder, Table, take_rows

Library = Literal["sklearn", "lightgbm", "catboost"]
FOLDS = 3
FOLDS_BELOW = 5_000
VALIDATION_FRACTION = 0.15


def stopping_splits(y: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit on and rows to stop on: 3 stratified folds below 5,000 rows, one split above.

    Parameters
    ----------
    y : int ndarray of shape (n_rows,)
        Class positions.
    seed : int
        Shuffles the rows.

    Returns
    -------
    list of (fit rows, stop rows)
        Three folds on small data where every class has 3 rows; otherwise 15 % held out,
        stratified where every class has 2 rows.
    """
    rarest, n_classes = int(np.bincount(y).min()), len(np.bincount(y))
    if len(y) < FOLDS_BELOW and rarest >= FOLDS:
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        return list(folds.split(np.zeros(len(y)), y))
    splitter = StratifiedShuffleSplit if rarest >= 2 else ShuffleSplit
    n_stop = max(int(np.ceil(VALIDATION_FRACTION * len(y))), n_classes)
    split = splitter(1, test_size=min(n_stop, len(y) // 2), random_state=seed)
    return list(split.split(np.zeros(len(y)), y))


class StoppedBoosting(ClassifierMixin, BaseEstimator):
    """Boosting with categories split natively and the number of rounds stopped on log loss.

    Below 5,000 rows the rounds are the median over 3 folds, above that those of one 15 %
    hold-out; then one model is fitted on all training rows with that many rounds.

    Parameters
    ----------
    library : {"sklearn", "lightgbm", "catboost"}
        Whose implementation; each keeps its own defaults for depth, leaves and regularisation.
    learning_rate : float, default=0.05
        Shrinkage a round.
    max_rounds : int, default=2000
        Most rounds tried.
    patience : int, default=50
        Rounds without a better log loss before stopping.
    n_threads : int, default=1
        Threads of the library.
    random_state : int, default=0
        Seed of the splits and the library.

    Attributes
    ----------
    n_rounds_ : int
        Rounds of the final model.
    """

    def __init__(
        self,
        library: Library = "sklearn",
        learning_rate: float = 0.05,
        max_rounds: int = 2000,
        patience: int = 50,
        n_threads: int = 1,
        random_state: int = 0,
    ) -> None:
        self.library = library
        self.learning_rate = learning_rate
        self.max_rounds = max_rounds
        self.patience = patience
        self.n_threads = n_threads
        self.random_state = random_state

    def fit(self, X: Table, y: Any) -> Self:
        """Find the rounds, then fit on all rows."""
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        self._encoder = NativeEncoder("text" if self.library == "catboost" else "category")
        encoded = self._encoder.fit_transform(X)
        rounds = []
        for fit_rows, stop_rows in stopping_splits(labels, self.random_state):
            known = np.isin(labels[stop_rows], labels[fit_rows])  # log loss needs known classes
            stop = stop_rows[known]
            rounds.append(
                self._fit_stopped(
                    take_rows(encoded, fit_rows),
                    labels[fit_rows],
                    take_rows(encoded, stop),
                    labels[stop],
                )
            )
        self.n_rounds_ = max(1, int(np.median(rounds)))
        self._model = self._build(self.n_rounds_)
        self._model.fit(encoded, labels, **self._fit_options())
        return self

    def _build(self, rounds: int, stopping: bool = False) -> Any:
        if self.library == "sklearn":
            return HistGradientBoostingClassifier(
                learning_rate=self.learning_rate,
                max_iter=rounds,
                early_stopping=stopping,
                n_iter_no_change=self.patience,
                random_state=self.random_state,
            )
        if self.library == "lightgbm":
            import lightgbm

            return lightgbm.LGBMClassifier(
                learning_rate=self.learning_rate,
                n_estimators=rounds,
                n_jobs=self.n_threads,
                random_state=self.random_state,
                deterministic=True,
                force_row_wise=True,
                verbose=-1,
            )
        import catboost

        return catboost.CatBoostClassifier(
            learning_rate=self.learning_rate,
            iterations=rounds,
            thread_count=self.n_threads,
            random_seed=self.random_state,
            allow_writing_files=False,
            verbose=False,
        )

    def _fit_options(self) -> dict[str, Any]:
        if self.library == "catboost" and self._encoder.categorical_:
            return {"cat_features": self._encoder.categorical_}
        return {}

    def _fit_stopped(self, X: Table, y: np.ndarray, X_stop: Table, y_stop: np.ndarray) -> int:
        model = self._build(self.max_rounds, stopping=True)
        # Classes may be absent from the rows to fit on: positions are compacted again.
        present, y = np.unique(y, return_inverse=True)
        y_stop = np.searchsorted(present, y_stop)
        if self.library == "sklearn":
            model.fit(X, y, X_val=X_stop, y_val=y_stop)
            losses = np.asarray(model.validation_score_)
            return int(np.argmax(losses))  # entry 0 is the score before the first round
        if self.library == "lightgbm":
            from lightgbm import early_stopping

            stop = early_stopping(self.patience, verbose=False)
            with warnings.catch_warnings():  # eval_set works in every version, and warns in some
                warnings.simplefilter("ignore")
                model.fit(X, y, eval_set=[(X_stop, y_stop)], callbacks=[stop])
            return int(model.best_iteration_)
        model.fit(
            X,
            y,
            eval_set=(X_stop, y_stop),
            early_stopping_rounds=self.patience,
            use_best_model=False,
            **self._fit_options(),
        )
        return int(model.get_best_iteration()) + 1

    def predict_proba(self, X: Table) -> np.ndarray:
        """Return class probabilities, ndarray of shape (n_rows, n_classes)."""
        check_is_fitted(self, "classes_")
        return np.asarray(self._model.predict_proba(self._encoder.transform(X)))

    def predict(self, X: Table) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
