"""Key spaces and indexes of probes: the features themselves, and a linear map of them."""

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.functional import Metric, Neighbors
from nearwise.functional.devices import choose_device
from nearwise.memory import IndexName, NeighborIndex, make_index
from nearwise.nn import (
    Neighborhood,
    NeighborNetwork,
    TableEmbedder,
    describe_neighborhood,
    pair_reliability,
)
from nearwise.probes.base import Rows, channel_scale
from nearwise.training import TrainConfig, TrainingResult, TrainingRows, train_embedder

ProbeMetric = Literal["cosine", "l2"]
METRICS: dict[str, Metric] = {"cosine": "cosine", "l2": "euclidean"}


def make_probe_index(
    keys: Tensor, metric: ProbeMetric, index: IndexName, device: str
) -> NeighborIndex:
    """Index of a probe's training features, on its device."""
    chosen = choose_device(device)
    made = make_index(
        index, METRICS[metric], len(keys), device=None if chosen.type == "cpu" else chosen
    )
    return made.fit(keys)


OWN_NEIGHBORS = 16
_UNIT_ROWS = 1000
_LARGE = 10_000

Keys = Literal["auto", "features", "learned", "both"]


class KeySpace:
    """Remembered rows in one space, and what a head sees of a query's nearest."""

    def __init__(self, index: NeighborIndex, keys: Tensor, codes: Tensor, n_neighbors: int) -> None:
        self.index, self.keys, self.codes = index, keys, codes
        self.n_neighbors = min(n_neighbors, len(keys) - 1)
        self._rows = torch.arange(len(keys), device=keys.device)
        self.unit = self._median_distance()
        wanted = min(OWN_NEIGHBORS + 1, len(keys) - 1)
        self.own = index.search(keys, wanted, self._rows).indices
        counted = self.own[:, : max(wanted - 1, 1)]
        self.reliability = (codes[counted] == codes[:, None]).float().mean(1)

    def _median_distance(self) -> float:
        some = self._rows[:: max(1, len(self._rows) // _UNIT_ROWS)]
        found = self.index.search(self.keys[some], self.n_neighbors, some).distances
        positive = found[found > 0]
        return float(positive.median()) if len(positive) else 1.0

    def search(self, query: Tensor | None, rows: Tensor | None = None) -> Neighbors:
        """Find the nearest rows of queries, or of remembered `rows`, each without itself."""
        if query is None:
            assert rows is not None  # one of the two is given
            return self.index.search(self.keys[rows], self.n_neighbors, rows)
        return self.index.search(query, self.n_neighbors)

    def see(self, found: Neighbors, prior: Tensor, rows: Tensor | None = None) -> Neighborhood:
        """Describe what was found, with the class shares as the base's prediction."""
        labels = self.codes[found.indices]
        if rows is None:
            reliability = self.reliability[found.indices]
        else:
            reliability = pair_reliability(found.indices, self.own, self.codes, rows)
        base = prior.log().expand(len(labels), -1)
        return describe_neighborhood(found.distances / self.unit, labels, reliability, base)


class LearnedMap:
    """A linear map to unit keys, trained so that the nearest rows share a label.

    It starts as the leading principal components of the standardised features. Without `epochs` it
    trains for 40 at most, or 15 above 10,000 rows.
    """

    def __init__(self, dim: int, epochs: int | None) -> None:
        self.dim, self.epochs = dim, epochs

    def fit(
        self, rows: Rows, valid: Rows, n_classes: int, *, seed: int, device: torch.device
    ) -> TrainingResult:
        """Train on `rows` by the leave-one-out NLL of all, stopped by the NLL of `valid`."""
        self.mean = rows.X.mean(axis=0, dtype=np.float64)
        self.scale = channel_scale(rows.X.std(axis=0, dtype=np.float64), self.mean)
        X = self._standardized(rows.X)
        dim = min(self.dim, *X.shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            embedder = TableEmbedder(
                X.shape[1], numeric_embedding=None, dim=dim, dropout=0.1, normalize=True
            )
            self.network = NeighborNetwork(embedder, n_classes, similarity="cosine")
        _start_as_components(embedder, X, seed)
        held = TrainingRows(
            self._standardized(valid.X),
            torch.from_numpy(valid.codes),
            ids=torch.arange(len(valid.codes)) + len(X),
        )
        epochs = self.epochs or (40 if len(X) <= _LARGE else 15)
        config = TrainConfig.model_validate(
            {"epochs": epochs, "lr": 1e-3, "weight_decay": 1e-3, "patience": 5}
            | {"batch_size": min(256, max(2, len(X) // 4))}
        )
        train = TrainingRows(X, torch.from_numpy(rows.codes))
        result = train_embedder(
            self.network, train.to(device), held.to(device), config, seed=seed, device=device
        )
        self.network.eval()
        return result

    def _standardized(self, X: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(((X - self.mean) / self.scale).astype(np.float32))

    def __call__(self, X: NDArray[np.float32], device: torch.device) -> Tensor:
        """Keys (n, dim) on the device."""
        with torch.no_grad():
            parts = [
                self.network.embedder(part.to(device), None)
                for part in self._standardized(X).split(8192)
            ]
        keys: Tensor = torch.cat(parts)
        return keys


def _start_as_components(embedder: TableEmbedder, X: Tensor, seed: int) -> None:
    """Set the linear map to the leading principal components."""
    layer = embedder.trunk[1]  # type: ignore[index]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        some = X[torch.randperm(len(X))[:_LARGE]]
        rank = min(embedder.dim + 8, *some.shape)
        _, _, components = torch.pca_lowrank(some, q=rank, niter=3)
    # a component counts as much as in the standardised features, whose typical length is one
    width = min(embedder.dim, components.shape[1])
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:width] = components[:, :width].T / math.sqrt(X.shape[1])
        layer.bias.zero_()
