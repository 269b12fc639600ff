"""KNNProbe: classification by the nearest training features."""

from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.functional import aggregate_labels, distance_weights, uniform_weights
from nearwise.memory import IndexName
from nearwise.metrics import brier
from nearwise.probes.base import Codes, Probe, Rows, Validation, joined
from nearwise.probes.key_space import METRICS, ProbeMetric, make_probe_index

Weights = Literal["uniform", "distance", "softmax"]
SIZES = (5, 10, 20, 50, 100, 200)
TEMPERATURES = (0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.5)
_JUDGED = 2000  # training rows used for choices without validation rows


class KNNProbe(Probe):
    """Classify features by a vote of their nearest training features.

    Parameters
    ----------
    n_neighbors : int or "val", default=20
        Number of neighbors. "val" takes the number with the lowest Brier score among 5, 10, 20, 50,
        100, 200. The NLL mostly measures whether any vote is right, and would choose too many
        neighbors for the best accuracy.
    weights : {"uniform", "distance", "softmax"}, default="uniform"
        Weights of the votes. "distance" is 1 / distance, as in scikit-learn; "softmax" is
        ``softmax(-distance / temperature)``, which for "cosine" equals DINO's
        ``softmax(similarity / temperature)``. `AttentionProbe` with ``keys="features"`` uses the
        same neighbors.
    metric : {"cosine", "euclidean"}, default="cosine"
    temperature : float or "val", default=0.07
        Positive temperature of "softmax", in the unit of the distance.
    index : str, default="auto"
        Index of `nearwise.memory`: "auto" is exact below 100,000 rows.
    device : str, default="cpu"
        Device of the neighbor search: "cpu", "cuda", "auto".
    random_state : int, RandomState or None, default=None
        Seed of the training rows used for choices.

    Attributes
    ----------
    classes_, n_features_in_, choice_
        As for every probe; `choice_` holds n_neighbors and temperature, and their Brier
        score.

    References
    ----------
    Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", ICCV 2021 (k 20,
    cosine, T 0.07).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> KNNProbe(1).fit(X, ["a", "a", "b", "b"]).predict([[0.8, 0.1]]).tolist()
    ['a']
    """

    chosen_by = "Brier score"
    can_refit = True

    def __init__(
        self,
        n_neighbors: int | Literal["val"] = 20,
        *,
        weights: Weights = "uniform",
        metric: ProbeMetric = "cosine",
        temperature: float | Literal["val"] = 0.07,
        index: IndexName = "auto",
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.metric = metric
        self.temperature = temperature
        self.index = index
        self.device = device
        self.random_state = random_state

    @torch.inference_mode(False)
    def fit(
        self, X: Any, y: Any, validation: Validation | None = None, *, refit: bool = False
    ) -> Self:
        """Store rows; arguments and errors as for `LinearProbe.fit`.

        "val" chooses by `validation`; these rows do not vote, unless `refit`. Without it training
        rows are used, each left out of its own neighbors.
        """
        self._check_settings()
        rows = self._training_rows(X, y)
        if isinstance(self.n_neighbors, (int, np.integer)) and self.n_neighbors > len(rows.X):
            raise ValueError(
                f"n_neighbors={self.n_neighbors} exceeds the {len(rows.X)} training rows. Lower "
                "n_neighbors or add rows."
            )
        self._remember(rows)
        self.choice_: dict[str, Any] = {
            "n_neighbors": self.n_neighbors,
            "temperature": self.temperature,
        }
        if "val" in (self.n_neighbors, self.temperature):
            self._choose(validation)
        held = None if validation is None else self._other_rows(validation)  # this checks them, too
        if refit and held is not None:
            self._remember(joined(rows, held))
        return self

    def _remember(self, rows: Rows) -> None:
        self._keys, self._codes = torch.from_numpy(rows.X), torch.from_numpy(rows.codes)
        self.index_ = make_probe_index(self._keys, self.metric, self.index, self.device)

    def _check_settings(self) -> None:
        if self.weights not in get_args(Weights):
            raise ValueError(
                f"weights={self.weights!r} is not one of {', '.join(get_args(Weights))}."
            )
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is not one of {', '.join(METRICS)}.")
        k, temperature = self.n_neighbors, self.temperature
        whole = isinstance(k, (int, np.integer)) and not isinstance(k, bool)
        if k != "val" and (not whole or k < 1):
            raise ValueError(f'n_neighbors={k!r} is neither a positive integer nor "val".')
        real = isinstance(temperature, (int, float, np.number)) and not isinstance(
            temperature, bool
        )
        if temperature != "val" and (not real or not temperature > 0):
            raise ValueError(f'temperature={temperature!r} is neither positive nor "val".')

    def _choose(self, validation: Validation | None) -> None:
        """Choose size and temperature by the lowest Brier score, from one search."""
        n = len(self._codes)
        if self.n_neighbors == "val":
            sizes = [k for k in SIZES if k < n] or [max(1, n - 1)]
        else:
            sizes = [int(self.n_neighbors)]
        temperatures = TEMPERATURES if self.temperature == "val" else (self.temperature,)
        if self.weights != "softmax":
            temperatures = temperatures[:1]
        wanted = max(sizes)
        if validation is None:
            some = np.random.default_rng(self._seed()).permutation(n)[:_JUDGED]
            at = torch.from_numpy(np.sort(some))
            found = self.index_.search(self._keys[at], wanted, at)
            truth = self._codes[at].numpy()
        else:
            rows = self._other_rows(validation)
            found = self.index_.search(torch.from_numpy(rows.X), wanted)
            truth = rows.codes
        scores = {
            (k, t): brier(truth, self._vote(found.distances[:, :k], found.indices[:, :k], t))
            for k in sizes
            for t in temperatures
        }
        k, t = min(scores, key=lambda pair: scores[pair])
        self.choice_ = {"n_neighbors": k, "temperature": t, "brier": scores[k, t]}

    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None
    ) -> tuple[NDArray[np.float32], Codes]:
        """Return distances and training positions of the nearest rows, each (n, n_neighbors).

        Parameters
        ----------
        X : array of shape (n, D), optional
            Queries. None: the stored rows, each without itself.
        n_neighbors : int, optional
            Number of neighbors; by default that of the vote.
        """
        check_is_fitted(self)
        k = self.choice_["n_neighbors"] if n_neighbors is None else n_neighbors
        if X is None:
            found = self.index_.search(self._keys, k, torch.arange(len(self._keys)))
        else:
            found = self.index_.search(torch.from_numpy(self._query(X)), k)
        return found.distances.numpy(), found.indices.numpy()

    def predict_proba(self, X: Any = None) -> NDArray[np.float64]:
        """Return class probabilities, (n, n_classes).

        Parameters
        ----------
        X : array of shape (n, D), optional
            Rows to predict. None: the stored rows, each without itself (leave-one-out).
        """
        check_is_fitted(self)
        distances, positions = self.kneighbors(X)
        temperature = self.choice_["temperature"]
        return self._vote(torch.from_numpy(distances), torch.from_numpy(positions), temperature)

    def _vote(self, distances: Tensor, positions: Tensor, temperature: Any) -> NDArray[np.float64]:
        distances = distances.double()
        if self.weights == "softmax":
            weights = distance_weights(distances, temperature)
        elif self.weights == "distance":
            weights = _inverse(distances)
        else:
            weights = uniform_weights(distances)
        votes = aggregate_labels(weights, self._codes[positions], len(self.classes_))
        proba: NDArray[np.float64] = votes.numpy()
        return proba


def _inverse(distances: Tensor) -> Tensor:
    """Return weights 1 / distance; rows at distance 0 are the only voters."""
    exact = distances == 0
    weights = torch.where(
        exact.any(1, keepdim=True), exact.double(), 1 / distances.clamp_min(1e-300)
    )
    return weights / weights.sum(1, keepdim=True)
