"""A multi-layer perceptron with early stopping on held-out NLL; temperatures of probabilities."""

import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.neural_network import MLPClassifier

from nearwise_lab.experiments.peers.peer import Peer

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
    """Temperature in [1/20, 20] with the lowest NLL, searched over its logarithm.

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


@dataclass(eq=False, repr=False)
class StoppedMLP(Peer):
    """scikit-learn's MLP with early stopping on the NLL of held-out rows.

    scikit-learn's own early stopping uses the accuracy of a tenth of the rows; stopping on
    the NLL of a held-out fold makes a stronger peer. One member of a `TemperedBag`; `choice_` has
    the epochs until the weights kept.
    """

    hidden: tuple[int, ...] = (256, 128)
    max_epochs: int = 200
    patience: int = 20
    random_state: int = 0

    def fit(self, X: Any, y: np.ndarray, X_val: Any, y_val: np.ndarray) -> Self:
        """Train until the NLL of the rows `X_val` with their labels `y_val` rises."""
        X, X_val = np.asarray(X, dtype=np.float32), np.asarray(X_val, dtype=np.float32)
        self._learn_classes(y)
        positions = np.searchsorted(self.classes_, y_val)
        network = MLPClassifier(
            self.hidden, batch_size=min(200, len(X)), random_state=self.random_state
        )
        best_nll, best_epoch = float("inf"), 0
        self._network = network
        for epoch in range(1, self.max_epochs + 1):
            network.partial_fit(X, y, classes=self.classes_)
            nll = mean_nll(network.predict_proba(X_val), positions)
            if nll < best_nll:
                best_nll, best_epoch = nll, epoch
                self._network = copy.deepcopy(network)
            elif epoch - best_epoch >= self.patience:
                break
        self.choice_ = {"epochs": best_epoch}
        return self

    def _proba(self, X: Any) -> np.ndarray:
        return np.asarray(self._network.predict_proba(np.asarray(X, dtype=np.float32)))
