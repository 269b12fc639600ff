"""Plain k-nearest-neighbor voting: uniform, distance-weighted, and tuned by leave-one-out NLL."""

import math
from itertools import product
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.functional import (
    Neighbors,
    aggregate_labels,
    distance_weights,
    topk_neighbors,
    uniform_weights,
)

K_GRID = (5, 10, 16, 32, 64)
TEMPERATURE_GRID = (0.02, 0.05, 0.1, 0.2, 0.4, float("inf"))
SMOOTHING_GRID = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
MAX_TUNING_QUERIES = 10_000
FLOOR = 1e-7


def neighbor_weights(distances: Tensor, temperature: float) -> Tensor:
    """Weigh neighbors by softmax(-distance / temperature); infinity gives 1/k each."""
    if math.isinf(temperature):
        return uniform_weights(distances)
    return distance_weights(distances, temperature)


def _search(query: np.ndarray, keys: Tensor, k: int, query_ids: Tensor | None = None) -> Neighbors:
    key_ids = None if query_ids is None else torch.arange(len(keys))
    rows = torch.from_numpy(np.ascontiguousarray(query, dtype=np.float32))
    found = topk_neighbors(rows, keys, k, query_ids=query_ids, key_ids=key_ids)
    return Neighbors(found.distances.double(), found.indices)


def _as_keys(X: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(X, dtype=np.float32, order="C"))


class PlainKNN(ClassifierMixin, BaseEstimator):
    """k-NN vote over Euclidean neighbors with fixed settings.

    Parameters
    ----------
    n_neighbors : int, default=16
        Votes a query; cut to the number of training rows.
    weights : {"uniform", "distance"}, default="uniform"
        1/k each, or softmax of -distance / `temperature`.
    temperature : float, default=1.0
        Positive, in the unit of the (un-squared) Euclidean distance of the features given.
    """

    def __init__(
        self,
        n_neighbors: int = 16,
        weights: Literal["uniform", "distance"] = "uniform",
        temperature: float = 1.0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.temperature = temperature

    def fit(self, X: np.ndarray, y: Any) -> Self:
        """Remember the training rows."""
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        self._labels, self._keys = torch.from_numpy(labels), _as_keys(X)
        self.n_neighbors_ = min(self.n_neighbors, len(self._keys))
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the vote, ndarray of shape (n_rows, n_classes); rows sum to 1."""
        check_is_fitted(self, "classes_")
        found = _search(X, self._keys, self.n_neighbors_)
        temperature = float("inf") if self.weights == "uniform" else self.temperature
        weights = neighbor_weights(found.distances, temperature)
        return aggregate_labels(weights, self._labels[found.indices], len(self.classes_)).numpy()

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the most voted class; ties go to the first."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class TunedKNN(ClassifierMixin, BaseEstimator):
    """k-NN vote with k, temperature, smoothing and feature scaling chosen by leave-one-out NLL.

    Every training row (or 10,000 of them, drawn by `random_state`) is predicted from the
    others, itself left out by id; the settings with the lowest NLL win. Distances are
    Euclidean, not squared. The temperature grid is relative to the median distance to the k-th
    neighbor, and includes infinity (uniform); smoothing mixes in the class prior.

    Parameters
    ----------
    scale_powers : tuple of float, default=(1.0,)
        Candidate powers p; each feature is divided by its standard deviation to the power p
        (0 leaves units alone, 1 standardises).
    random_state : int, default=0
        Draws the tuning queries of large training sets.

    Attributes
    ----------
    choice_ : dict
        The settings chosen: n_neighbors, temperature, smoothing, scale_power, loo_nll.
    """

    def __init__(self, scale_powers: tuple[float, ...] = (1.0,), random_state: int = 0) -> None:
        self.scale_powers = scale_powers
        self.random_state = random_state

    def fit(self, X: np.ndarray, y: Any) -> Self:
        """Remember the training rows and choose the settings."""
        X = np.asarray(X, dtype=np.float64)
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        self._labels = torch.from_numpy(labels)
        self._prior = np.bincount(labels) / len(labels)
        self._std = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
        trials = [self._tune(X, power) for power in self.scale_powers]
        self.choice_ = min(trials, key=lambda t: t["loo_nll"])
        self.n_neighbors_ = int(self.choice_["n_neighbors"])
        self._keys = _as_keys(X / self._std ** self.choice_["scale_power"])
        return self

    def _tuning_rows(self, n: int) -> np.ndarray:
        if n < 2:
            raise ValueError(f"knn-tuned needs at least 2 training rows to leave one out, got {n}.")
        if n <= MAX_TUNING_QUERIES:
            return np.arange(n, dtype=np.int64)
        rng = np.random.default_rng(self.random_state)
        return np.sort(rng.choice(n, MAX_TUNING_QUERIES, replace=False))

    def _tune(self, X: np.ndarray, power: float) -> dict[str, float]:
        ids = self._tuning_rows(len(X))
        k_max = min(max(K_GRID), len(X) - 1)
        scaled = X / self._std**power
        found = _search(scaled[ids], _as_keys(scaled), k_max, query_ids=torch.from_numpy(ids))
        hit = (self._labels[found.indices] == self._labels[ids][:, None]).double()
        prior = torch.from_numpy(self._prior)[self._labels[ids]]
        best: dict[str, float] = {"loo_nll": float("inf")}
        for k, relative in product(sorted({min(k, k_max) for k in K_GRID}), TEMPERATURE_GRID):
            distances = found.distances[:, :k]
            # Duplicates can put the median at 0: any unit does then.
            temperature = relative * (float(distances[:, -1].median()) or 1.0)
            mass = (neighbor_weights(distances, temperature) * hit[:, :k]).sum(1)
            for smoothing in SMOOTHING_GRID:
                p = (1 - smoothing) * mass + smoothing * prior
                loss = float(-p.clamp_min(FLOOR).log().mean())
                if loss < best["loo_nll"]:
                    best = {
                        "loo_nll": loss,
                        "n_neighbors": k,
                        "temperature": temperature,
                        "smoothing": smoothing,
                        "scale_power": power,
                    }
        return best

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the smoothed vote, ndarray of shape (n_rows, n_classes); rows sum to 1."""
        check_is_fitted(self, "classes_")
        query = np.asarray(X, dtype=np.float64) / self._std ** self.choice_["scale_power"]
        found = _search(query, self._keys, self.n_neighbors_)
        weights = neighbor_weights(found.distances, self.choice_["temperature"])
        votes = aggregate_labels(weights, self._labels[found.indices], len(self.classes_)).numpy()
        smoothing = self.choice_["smoothing"]
        return (1 - smoothing) * votes + smoothing * self._prior

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
