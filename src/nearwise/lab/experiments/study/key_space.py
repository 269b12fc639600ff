"""Plain neighbors in the key space of the upper bound, tuned on rows it has not seen."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

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
from nearwise.lab.experiments.neighbors import K_GRID, SMOOTHING_GRID, TEMPERATURE_GRID
from nearwise.lab.experiments.network import mean_nll
from nearwise.lab.experiments.study.evaluate import Prediction, to_numpy
from nearwise.lab.experiments.study.model import encode, unit
from nearwise.lab.experiments.study.upper_bound import UpperBound
from nearwise.training.encoding import Precision

N_NEIGHBORS = 16
TEMPERATURES = (*TEMPERATURE_GRID, 1.0)  # in the unit of squared L2 distances


@dataclass(frozen=True)
class KeySpace:
    """Keys of unit length: remembered rows, rows held out for tuning, test rows.

    Attributes
    ----------
    memory, held_out, test : Tensor of shape (n, dim)
    memory_labels, held_out_labels : int64 Tensor of shape (n,)
    n_classes : int
    """

    memory: Tensor
    memory_labels: Tensor
    held_out: Tensor
    held_out_labels: Tensor
    test: Tensor
    n_classes: int

    def predictions(self, k: int = N_NEIGHBORS) -> Iterator[Prediction]:
        """Uniform and distance (squared L2 over 1) at `k`, and distance tuned on held-out rows."""
        yield from self.plain(k)
        yield self.tuned()

    def plain(self, k: int) -> Iterator[Prediction]:
        """Uniform and distance weighting at `k`."""
        k = min(k, len(self.memory))
        found = self._search(self.test, k)
        for method, weights in (
            ("uniform", uniform_weights(found.distances)),
            ("distance", distance_weights(found.distances)),
        ):
            proba = aggregate_labels(weights, self.memory_labels[found.indices], self.n_classes)
            yield Prediction(method, to_numpy(proba), k, 0.0)

    def tuned(self) -> Prediction:
        """Distance weighting with k, temperature and smoothing of the lowest held-out NLL."""
        sizes = sorted({min(k, len(self.memory)) for k in K_GRID})
        held_out = self._search(self.held_out, sizes[-1])
        labels = self.held_out_labels.cpu().numpy()
        best: tuple[float, tuple[int, float, float]] | None = None
        for k, temperature, smoothing in product(sizes, TEMPERATURES, SMOOTHING_GRID):
            nll = mean_nll(self._vote(held_out, k, temperature, smoothing), labels)
            if best is None or nll < best[0]:
                best = nll, (k, temperature, smoothing)
        assert best is not None  # the grid is not empty
        proba = self._vote(self._search(self.test, sizes[-1]), *best[1])
        return Prediction("distance-tuned", proba, best[1][0], 0.0)

    def _search(self, query: Tensor, k: int) -> Neighbors:
        return topk_neighbors(query, self.memory, k, metric="sqeuclidean")

    def _vote(self, found: Neighbors, k: int, temperature: float, smoothing: float) -> np.ndarray:
        weights = distance_weights(found.distances[:, :k], temperature)
        labels = self.memory_labels[found.indices[:, :k]]
        return to_numpy(aggregate_labels(weights, labels, self.n_classes, eps=smoothing))


def cnn_keys(bound: UpperBound, device: torch.device, precision: Precision) -> KeySpace:
    """Keys of the upper bound's rows: those it was trained on, held-out ones, test rows."""
    inputs, embedder = bound.inputs, bound.network.embedder
    keys = unit(encode(embedder, inputs.x_train, device, precision))
    labels, held_out = inputs.y_train.to(device), inputs.held_out.to(device)
    return KeySpace(
        keys[~held_out], labels[~held_out], keys[held_out], labels[held_out],
        unit(encode(embedder, inputs.x_test, device, precision)), inputs.n_classes,
    )  # fmt: skip
