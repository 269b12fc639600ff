"""A classifier's own network, and plain neighbors of its keys, tuned on rows it has not seen."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np
from torch import Tensor

from nearwise.classifier.model.memory_views import BASE, TRAINED
from nearwise.functional import (
    Neighbors,
    aggregate_labels,
    distance_weights,
    topk_neighbors,
    uniform_weights,
)
from nearwise_lab.experiments.neighbors import K_GRID, SMOOTHING_GRID, TEMPERATURE_GRID
from nearwise_lab.experiments.network import fit_temperature, mean_nll, tempered
from nearwise_lab.experiments.study.evaluate import Prediction, to_numpy
from nearwise_lab.experiments.study.upper_bound import RIDGE, upper_bound_names
from nearwise_lab.experiments.trial import align

PLAIN = ("uniform", "distance", "distance-tuned")
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

    def predictions(
        self, methods: Collection[str] = PLAIN, k: int = N_NEIGHBORS
    ) -> Iterator[Prediction]:
        """Predict by those of `PLAIN` that are requested.

        "uniform" and "distance" (squared L2 over 1) at `k`, "distance-tuned" by held-out rows.
        """
        for prediction in self._plain(k) if {"uniform", "distance"} & {*methods} else ():
            if prediction.method in methods:
                yield prediction
        if "distance-tuned" in methods:
            yield self._tuned()

    def _plain(self, k: int) -> Iterator[Prediction]:
        k = min(k, len(self.memory))
        found = self._search(self.test, k)
        for method, weights in (
            ("uniform", uniform_weights(found.distances)),
            ("distance", distance_weights(found.distances)),
        ):
            proba = aggregate_labels(weights, self.memory_labels[found.indices], self.n_classes)
            yield Prediction(method, to_numpy(proba), k, 0.0)

    def _tuned(self) -> Prediction:
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


@dataclass(frozen=True)
class NetworkView:
    """What the network of a classifier of images predicts for the test rows, in one view.

    Attributes
    ----------
    space : KeySpace
        Its keys.
    held_out, test : float64 ndarray of shape (n, n_classes) or None
        Log-probabilities of its head; None where it has none.
    classes : ndarray of shape (n_classes,)
    """

    space: KeySpace
    held_out: np.ndarray | None
    test: np.ndarray | None
    classes: np.ndarray

    def predictions(
        self, classes: np.ndarray, methods: Collection[str], k: int | None = None
    ) -> Iterator[Prediction]:
        """Predict by the network, by it with a temperature, and by plain neighbors of its keys.

        Of these, by `methods`. Columns are those of `classes`. The neighbors are `k`, else
        `N_NEIGHBORS`.
        """
        network = (one for one in self._network() if one.method in methods)
        neighbors = self.space.predictions(methods, N_NEIGHBORS if k is None else k)
        for one in chain(network, neighbors):
            yield replace(one, proba=align(one.proba, self.classes, classes))

    def _network(self) -> Iterator[Prediction]:
        if self.test is None or self.held_out is None:
            return
        labels = self.space.held_out_labels.cpu().numpy()
        proba = np.exp(self.test)
        temperature = fit_temperature(np.exp(self.held_out), labels, ridge=RIDGE / len(labels))
        plain, scaled = upper_bound_names(True)
        yield Prediction(plain, proba, None, 0.0)
        yield Prediction(scaled, tempered(proba, temperature), None, 0.0)


def network_view(model: Any, images: Any) -> NetworkView:
    """View of a fitted classifier of images on test images (n, h, w, c)."""
    predictor = model.fitted_.predictor
    bank, judged = predictor.views.bank, predictor.judged
    rows = predictor.row_models(model.fitted_.encoded(images)[0]).cpu()
    keys, labels = bank.keys[TRAINED], bank.labels
    space = KeySpace(
        keys[~judged], labels[~judged], keys[judged], labels[judged], rows.keys[TRAINED],
        len(model.classes_),
    )  # fmt: skip
    base = bank.columns.get(BASE)
    held_out, test = _numpy(None if base is None else base[judged]), _numpy(rows.base_log_proba)
    return NetworkView(space, held_out, test, model.classes_)


def _numpy(log_proba: Tensor | None) -> np.ndarray | None:
    return None if log_proba is None else log_proba.double().numpy()
