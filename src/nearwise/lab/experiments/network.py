"""A multi-layer perceptron as a fair peer: stopped on NLL, cross-fitted, temperature-scaled."""

import copy
from typing import Any, Self

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.utils.validation import check_is_fitted

FLOOR = 1e-7


def mean_nll(proba: np.ndarray, labels: np.ndarray) -> float:
    """Mean NLL in nats per row, clipped at 1e-7."""
    picked = proba[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(picked, FLOOR)).mean())


def tempered(proba: np.ndarray, temperature: float) -> np.ndarray:
    """Divide log-probabilities by a temperature and normalise; rows sum to 1."""
    scaled: np.ndarray = softmax(np.log(np.maximum(proba, FLOOR)) / temperature, axis=1)
    return scaled


def fit_temperature(proba: np.ndarray, labels: np.ndarray, *, ridge: float = 0.0) -> float:
    """Temperature in [1/20, 20] with the lowest NLL, sought over its logarithm.

    `ridge` times the square of the logarithm is added to what is minimised: where all of few rows
    are right, the NLL alone has no minimum.
    """
    bound = float(np.log(20.0))
    found = minimize_scalar(
        lambda log_t: mean_nll(tempered(proba, float(np.exp(log_t))), labels) + ridge * log_t**2,
        bounds=(-bound, bound),
        method="bounded",
    )
    return float(np.exp(found.x))


class BaggedMLP(ClassifierMixin, BaseEstimator):
    """scikit-learn MLPs, one per fold, stopped on its fold; one out-of-fold temperature for all.

    scikit-learn's own early stopping looks at the accuracy of a tenth of the rows; stopping on
    the NLL of the held-out fold makes a stronger peer. Probabilities are the mean of the
    members, each divided by the temperature that suits the out-of-fold predictions best.

    Parameters
    ----------
    hidden : tuple of int, default=(256, 128)
        Widths of the hidden layers.
    alpha : float, default=1e-4
        Squared penalty on the weights.
    n_folds : int, default=5
        Members of the bag; plain folds where the rarest class has fewer rows.
    max_epochs : int, default=200
        Most passes over the rows.
    patience : int, default=20
        Passes without a better held-out NLL before stopping.
    random_state : int, default=0
        Seed of the folds, the start and the batches.

    Attributes
    ----------
    choice_ : dict
        Epochs of each member, and the temperature.
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (256, 128),
        alpha: float = 1e-4,
        n_folds: int = 5,
        max_epochs: int = 200,
        patience: int = 20,
        random_state: int = 0,
    ) -> None:
        self.hidden = hidden
        self.alpha = alpha
        self.n_folds = n_folds
        self.max_epochs = max_epochs
        self.patience = patience
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the members and their temperatures."""
        X = np.asarray(X, dtype=np.float32)
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        folds = StratifiedKFold if np.bincount(labels).min() >= self.n_folds else KFold
        splits = folds(min(self.n_folds, len(X)), shuffle=True, random_state=self.random_state)
        self.members_: list[MLPClassifier] = []
        epochs = []
        out_of_fold = np.empty((len(X), len(self.classes_)))
        for number, (rows, held_out) in enumerate(splits.split(X, labels)):
            seed = self.random_state + number
            network, n = self._fit_member(
                X[rows], labels[rows], X[held_out], labels[held_out], seed
            )
            out_of_fold[held_out] = network.predict_proba(X[held_out])
            self.members_.append(network)
            epochs.append(n)
        self.temperature_ = fit_temperature(out_of_fold, labels)
        self.choice_ = {"epochs": epochs, "temperature": self.temperature_}
        return self

    def _fit_member(
        self, X: np.ndarray, y: np.ndarray, X_stop: np.ndarray, y_stop: np.ndarray, seed: int
    ) -> tuple[MLPClassifier, int]:
        network = MLPClassifier(
            self.hidden, alpha=self.alpha, batch_size=min(200, len(X)), random_state=seed
        )
        every_class = np.arange(len(self.classes_))
        best_nll, best, best_epoch = float("inf"), network, 0
        for epoch in range(1, self.max_epochs + 1):
            network.partial_fit(X, y, classes=every_class)
            nll = mean_nll(network.predict_proba(X_stop), y_stop)
            if nll < best_nll:
                best_nll, best_epoch = nll, epoch
                best = copy.deepcopy(network)
            elif epoch - best_epoch >= self.patience:
                break
        return best, best_epoch

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the mean of the members, ndarray of shape (n_rows, n_classes)."""
        check_is_fitted(self, "members_")
        X = np.asarray(X, dtype=np.float32)
        members = [tempered(m.predict_proba(X), self.temperature_) for m in self.members_]
        return np.mean(members, axis=0)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
