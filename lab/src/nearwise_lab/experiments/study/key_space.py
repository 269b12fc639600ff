"""A classifier's own network, and plain k-NN on its embedding, tuned on held-out rows."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from torch import Tensor

from nearwise.estimators.model.memory_views import BASE, TRAINED
from nearwise.functional import (
    Neighbors,
    aggregate_labels,
    distance_weights,
    topk_neighbors,
    uniform_weights,
)
from nearwise_lab.experiments.neighbors import K_GRID, SMOOTHING_GRID, TEMPERATURE_GRID
from nearwise_lab.experiments.network import mean_nll, tempered
from nearwise_lab.experiments.study.evaluate import Prediction
from nearwise_lab.experiments.study.model import to_numpy
from nearwise_lab.experiments.study.upper_bound import held_out_temperature, upper_bound_names

NETWORK = upper_bound_names(True)
N_NEIGHBORS = 16
TEMPERATURES = (*TEMPERATURE_GRID, 1.0)  # in the unit of squared L2 distances


@dataclass(frozen=True)
class KeySpace:
    """Keys (n, dim) of a network: remembered rows, rows held out for tuning, test rows.

    They have unit length; labels (n,) are positions in `classes`. `head`: probabilities
    (n, n_classes) that the network's head gives the rows held out and the test rows.
    """

    memory: Tensor
    memory_labels: Tensor
    held_out: Tensor
    held_out_labels: Tensor
    test: Tensor
    classes: np.ndarray
    head: tuple[np.ndarray, np.ndarray] | None = None

    def predict(self, method: str, k: int = N_NEIGHBORS) -> Prediction | None:
        """Predict the test rows; None if the network has no head.

        By the network ("cnn"), by it with a temperature, or by plain neighbors of its keys:
        "uniform" and "distance" (squared L2 over 1) at `k`, "distance-tuned" by held-out rows.
        """
        if method == "distance-tuned":
            return self._tuned()
        if method in NETWORK:
            return None if self.head is None else Prediction(method, self._network(method))
        k = min(k, len(self.memory))
        found = self._search(self.test, k)
        weigh = uniform_weights if method == "uniform" else distance_weights
        votes = self.memory_labels[found.indices]
        proba = aggregate_labels(weigh(found.distances), votes, len(self.classes))
        return Prediction(method, to_numpy(proba), k)

    def _network(self, method: str) -> np.ndarray:
        assert self.head is not None  # the caller has looked
        held_out, test = self.head
        if method == NETWORK[0]:
            return test
        return tempered(test, held_out_temperature(held_out, self.held_out_labels.numpy()))

    def _tuned(self) -> Prediction:
        """Distance weighting with k, temperature and smoothing of the lowest held-out NLL."""
        sizes = sorted({min(k, len(self.memory)) for k in K_GRID})
        held_out, labels = self._search(self.held_out, sizes[-1]), self.held_out_labels.numpy()
        best = min(
            product(sizes, TEMPERATURES, SMOOTHING_GRID),
            key=lambda trial: mean_nll(self._vote(held_out, *trial), labels),
        )
        proba = self._vote(self._search(self.test, sizes[-1]), *best)
        return Prediction("distance-tuned", proba, best[0])

    def _search(self, query: Tensor, k: int) -> Neighbors:
        return topk_neighbors(query, self.memory, k, metric="sqeuclidean")

    def _vote(self, found: Neighbors, k: int, temperature: float, smoothing: float) -> np.ndarray:
        weights = distance_weights(found.distances[:, :k], temperature)
        labels = self.memory_labels[found.indices[:, :k]]
        return to_numpy(aggregate_labels(weights, labels, len(self.classes), eps=smoothing))


def key_space(model: Any, images: Any) -> KeySpace:
    """Embedding of a fitted classifier's network, with test images (n, h, w, c) of one view."""
    predictor = model.fitted_.predictor
    bank, judged = predictor.views.bank, predictor.judged
    rows = predictor.row_models(model.fitted_.encoded(images)[0]).cpu()
    keys, labels, base = bank.keys[TRAINED], bank.labels, bank.columns.get(BASE)
    head = None
    if base is not None and rows.base_log_proba is not None:
        held_out, test = (p.double().exp().numpy() for p in (base[judged], rows.base_log_proba))
        head = held_out, test
    return KeySpace(
        keys[~judged], labels[~judged], keys[judged], labels[judged], rows.keys[TRAINED],
        model.classes_, head,
    )  # fmt: skip
