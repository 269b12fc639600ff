"""Plain k-nearest-neighbor voting: uniform, distance-weighted, and tuned by leave-one-out NLL."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.functional import (
    Neighbors,
    aggregate_labels,
    distance_weights,
    topk_neighbors,
    uniform_weights,
)
from nearwise_lab.experiments.peers.peer import Peer

Weighting = Literal["uniform", "softmax", "inverse"]

K_GRID = (5, 10, 16, 32, 64)
TEMPERATURE_GRID = (0.02, 0.05, 0.1, 0.2, 0.4)
INVERSE_POWERS = (1.0, 2.0)
SMOOTHING_GRID = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
MAX_TUNING_QUERIES = 10_000
FLOOR = 1e-7
NEARLY_ZERO = 1e-6  # distances below count as this one, so that weights stay finite


def neighbor_weights(distances: Tensor, temperature: float) -> Tensor:
    """Weigh neighbors by softmax(-distance / temperature); infinity gives 1/k each."""
    if math.isinf(temperature):
        return uniform_weights(distances)
    return distance_weights(distances, temperature)


def inverse_weights(distances: Tensor, power: float) -> Tensor:
    """Weigh neighbors by distance ** -power; rows identical to the query take all the weight."""
    return distance_weights(distances.clamp_min(NEARLY_ZERO).log(), 1.0 / power)


def _search(query: np.ndarray, keys: Tensor, k: int, query_ids: Tensor | None = None) -> Neighbors:
    key_ids = None if query_ids is None else torch.arange(len(keys))
    rows = torch.from_numpy(np.ascontiguousarray(query, dtype=np.float32))
    found = topk_neighbors(rows, keys, k, query_ids=query_ids, key_ids=key_ids)
    return Neighbors(found.distances.double(), found.indices)


def _as_keys(X: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(X, dtype=np.float32, order="C"))


@dataclass(eq=False, repr=False)
class PlainKNN(Peer):
    """k-NN vote over Euclidean neighbors: 1/k each, or softmax of -distance / `temperature`.

    `n_neighbors` is cut to the number of training rows; `temperature` is positive, in the unit of
    the (un-squared) distance of the features given.
    """

    n_neighbors: int = 16
    weights: Literal["uniform", "distance"] = "uniform"
    temperature: float = 1.0

    def fit(self, X: np.ndarray, y: Any) -> Self:
        """Store the training rows."""
        self._labels, self._keys = torch.from_numpy(self._learn_classes(y)), _as_keys(X)
        self.n_neighbors_ = min(self.n_neighbors, len(self._keys))
        return self

    def _proba(self, X: np.ndarray) -> np.ndarray:
        found = _search(X, self._keys, self.n_neighbors_)
        temperature = math.inf if self.weights == "uniform" else self.temperature
        weights = neighbor_weights(found.distances, temperature)
        return aggregate_labels(weights, self._labels[found.indices], len(self.classes_)).numpy()


@dataclass(frozen=True)
class KNNChoice:
    """Settings of a tuned k-NN and the leave-one-out NLL they reached, in nats per row.

    `parameter` is the temperature of "softmax", in the unit of the distances, or the power of
    "inverse"; `smoothing` the share of the class prior mixed into the vote. Features are divided by
    their standard deviation to the power `scale_power`.
    """

    n_neighbors: int = 1
    weights: Weighting = "uniform"
    parameter: float = math.inf
    smoothing: float = 0.0
    scale_power: float = 1.0
    loo_nll: float = math.inf

    def weigh(self, distances: Tensor) -> Tensor:
        """Weights of shape (n_queries, n_neighbors); rows sum to 1."""
        if self.weights == "inverse":
            return inverse_weights(distances, self.parameter)
        return neighbor_weights(distances, self.parameter)


def _weightings(typical: float) -> list[tuple[Weighting, float]]:
    """All candidate weightings; `typical` is a distance that sets the temperatures' unit."""
    softmax: list[tuple[Weighting, float]] = [("softmax", t * typical) for t in TEMPERATURE_GRID]
    return [("uniform", math.inf), *softmax, *(("inverse", power) for power in INVERSE_POWERS)]


@dataclass(eq=False, repr=False)
class TunedKNN(Peer):
    """k-NN vote with k, weights, smoothing and feature scaling chosen by leave-one-out NLL.

    Every training row (or 10,000 of them, drawn by `random_state`) is predicted from the
    others, itself left out by id; the settings with the lowest NLL win: `choice_`, the fields of
    `KNNChoice`. Distances are Euclidean, not squared; temperatures are relative to the median
    distance to the k-th neighbor. `scale_powers` are tried; 0 leaves units alone, 1 standardises.
    """

    scale_powers: tuple[float, ...] = (1.0,)
    random_state: int = 0

    def fit(self, X: np.ndarray, y: Any) -> Self:
        """Store the training rows and choose the settings."""
        X = np.asarray(X, dtype=np.float64)
        labels = self._learn_classes(y)
        self._labels = torch.from_numpy(labels)
        self._prior = np.bincount(labels) / len(labels)
        self._std = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
        trials = [self._tune(X, power) for power in self.scale_powers]
        self._best = min(trials, key=lambda choice: choice.loo_nll)
        self.choice_ = asdict(self._best)
        self.n_neighbors_ = self._best.n_neighbors
        self._keys = _as_keys(X / self._std**self._best.scale_power)
        return self

    def _tuning_rows(self, n: int) -> np.ndarray:
        if n < 2:
            raise ValueError(f"knn-tuned needs at least 2 training rows to leave one out, got {n}.")
        if n <= MAX_TUNING_QUERIES:
            return np.arange(n, dtype=np.int64)
        rng = np.random.default_rng(self.random_state)
        return np.sort(rng.choice(n, MAX_TUNING_QUERIES, replace=False))

    def _tune(self, X: np.ndarray, power: float) -> KNNChoice:
        ids = self._tuning_rows(len(X))
        k_max = min(max(K_GRID), len(X) - 1)
        scaled = X / self._std**power
        found = _search(scaled[ids], _as_keys(scaled), k_max, query_ids=torch.from_numpy(ids))
        hit = (self._labels[found.indices] == self._labels[ids][:, None]).double()
        prior = torch.from_numpy(self._prior)[self._labels[ids]]
        best = KNNChoice()
        for k in sorted({min(k, k_max) for k in K_GRID}):
            distances = found.distances[:, :k]
            # Duplicates can put the median at 0: any unit does then.
            for weights, parameter in _weightings(float(distances[:, -1].median()) or 1.0):
                trial = KNNChoice(k, weights, parameter, scale_power=power)
                mass = (trial.weigh(distances) * hit[:, :k]).sum(1)
                for smoothing in SMOOTHING_GRID:
                    p = (1 - smoothing) * mass + smoothing * prior
                    loss = float(-p.clamp_min(FLOOR).log().mean())
                    if loss < best.loo_nll:
                        best = replace(trial, smoothing=smoothing, loo_nll=loss)
        return best

    def _proba(self, X: np.ndarray) -> np.ndarray:
        query = np.asarray(X, dtype=np.float64) / self._std**self._best.scale_power
        found = _search(query, self._keys, self.n_neighbors_)
        weights = self._best.weigh(found.distances)
        votes = aggregate_labels(weights, self._labels[found.indices], len(self.classes_)).numpy()
        smoothing = self._best.smoothing
        return (1 - smoothing) * votes + smoothing * self._prior
