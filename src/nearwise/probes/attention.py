"""AttentionProbe: the pretrained neighbor attention on frozen features."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.memory import IndexName
from nearwise.nn import HeadOutput, NeighborSet, shared_head
from nearwise.probes.base import Probe, Rows, Validation, joined
from nearwise.probes.key_space import (
    METRICS,
    Keys,
    KeySpace,
    ProbeMetric,
    Whitening,
    make_probe_index,
)

_MOST_NEIGHBORS = 64  # maximum in the training of the head
_FOLDS = 5
_MANY = 2_000  # more rows need only one fold to choose the keys


class Attention(NamedTuple):
    """Neighbors of a query in one key space, with their weights.

    `positions` of training rows and `weights` are (n, n_neighbors), nearest first. The weights of
    all spaces and `null` (n,), the weight of the class prior, sum to 1.
    """

    positions: NDArray[np.int64]
    weights: NDArray[np.float64]
    null: NDArray[np.float64]


class AttentionProbe(Probe):
    """Classify features by attention over their nearest training features.

    The packaged head, pretrained on many tables, weights the neighbors by distance, rank, agreement
    and reliability, and a null neighbor. Nothing is trained here: labels enter through the votes,
    and through the map of the whitened features, which has a closed form.

    Parameters
    ----------
    n_neighbors : int, default=32
        Number of neighbors per key space; at most 64.
    keys : {"auto", "features", "whitened", "both"}, default="auto"
        Key spaces of the neighbor search. "features" weights the neighbors of plain k-NN;
        "whitened" searches by the cosine of the features after a linear map that equalizes the
        spread within classes; "auto" takes "features" or "both", by the lower NLL of rows that
        do not vote.
    metric : {"cosine", "euclidean"}, default="cosine"
        Metric of the plain features.
    index : str, default="auto"
    device : str, default="cpu"
        Device of the neighbor search.
    random_state : int, RandomState or None, default=None
        Seed of the folds for "auto".

    Attributes
    ----------
    classes_, n_features_in_
        As for every probe.
    choice_ : dict
        Chosen keys; for "auto" also the NLL of both choices.
    map_ : Whitening or None
    n_parameters_ : int
        Number of parameters of the map.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> AttentionProbe(8, keys="features").fit(X, y).predict(X[:2]).tolist()
    [0, 0]
    """

    can_refit = True

    def __init__(
        self,
        n_neighbors: int = 32,
        *,
        keys: Keys = "auto",
        metric: ProbeMetric = "cosine",
        index: IndexName = "auto",
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.keys = keys
        self.metric = metric
        self.index = index
        self.device = device
        self.random_state = random_state

    @torch.inference_mode(False)
    def fit(
        self, X: Any, y: Any, validation: Validation | None = None, *, refit: bool = False
    ) -> Self:
        """Store rows, and choose the keys; arguments and errors as for `LinearProbe.fit`.

        "auto" chooses by `validation`; these rows do not vote, unless `refit`. Without it each
        fifth of the training rows is predicted from the others; above 2,000 rows only one fifth.
        With fewer than 10 rows it takes "features".
        """
        self._check_settings()
        rows = self._training_rows(X, y)
        valid = None if validation is None else self._other_rows(validation)
        self.choice_: dict[str, Any] = {"keys": self.keys}
        if self.keys == "auto" and valid is None and len(rows.X) < 2 * _FOLDS:
            self.choice_ = {"keys": "features"}
        elif self.keys == "auto":
            self._choose(self._folds(rows) if valid is None else [(rows, valid)])
        self._remember(joined(rows, valid) if refit and valid is not None else rows)
        return self

    def _check_settings(self) -> None:
        if self.keys not in get_args(Keys):
            raise ValueError(f"keys={self.keys!r} is not one of {', '.join(get_args(Keys))}.")
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is not one of {', '.join(METRICS)}.")
        if not 1 <= self.n_neighbors <= _MOST_NEIGHBORS:
            raise ValueError(
                f"n_neighbors={self.n_neighbors} must lie between 1 and {_MOST_NEIGHBORS}, the "
                "most that the head supports."
            )

    def _folds(self, rows: Rows) -> Iterator[tuple[Rows, Rows]]:
        """Yield training and validation rows of each fold, stratified by class."""
        order = np.random.default_rng(self._seed()).permutation(len(rows.codes))
        order = order[np.argsort(rows.codes[order], kind="stable")]
        for fold in range(1 if len(order) > _MANY else _FOLDS):
            judged = np.arange(len(order)) % _FOLDS == fold
            known, left = order[~judged], order[judged]
            yield Rows(rows.X[known], rows.codes[known]), Rows(rows.X[left], rows.codes[left])

    def _choose(self, parts: Iterable[tuple[Rows, Rows]]) -> None:
        """Choose the keys by the NLL of validation rows."""
        losses: dict[str, list[Tensor]] = {"features": [], "both": []}
        self.choice_["keys"] = "both"
        for known, queries in parts:
            self._remember(known)
            seen, _ = self._see(queries.X)
            truth = torch.from_numpy(queries.codes)[:, None]
            for keys, spaces in (("features", seen[:1]), ("both", seen)):
                log_proba = shared_head().predict(spaces).log_proba
                losses[keys].append(-log_proba.gather(1, truth)[:, 0])
        nll = {keys: float(torch.cat(found).mean()) for keys, found in losses.items()}
        self.choice_ = {"keys": min(nll, key=lambda keys: nll[keys]), "nll": nll}

    def _remember(self, rows: Rows) -> None:
        plain = self.choice_["keys"] == "features"
        self.map_ = None if plain else Whitening(rows)
        self.n_parameters_ = 0 if self.map_ is None else self.map_.n_parameters
        metrics = {"features": self.metric, "whitened": "cosine"}
        sizes = {"n_classes": len(self.classes_), "n_columns": rows.X.shape[1]}
        self.spaces_ = {}
        for name, keys in self._keys_of(rows.X).items():
            index = make_probe_index(keys, metrics[name], self.index, self.device)
            self.spaces_[name] = KeySpace(index, keys, torch.from_numpy(rows.codes), **sizes)

    def _keys_of(self, X: NDArray[np.float32]) -> dict[str, Tensor]:
        """Return the keys of rows in each space, by its name."""
        plain = {} if self.choice_["keys"] == "whitened" else {"features": torch.from_numpy(X)}
        return plain if self.map_ is None else {**plain, "whitened": self.map_(X)}

    def _see(self, X: NDArray[np.float32] | None) -> tuple[list[NeighborSet], dict[str, Tensor]]:
        """Return neighbor sets of rows (None: leave-one-out), and positions by space."""
        keys = {} if X is None else self._keys_of(X)
        seen, positions = [], {}
        for name, space in self.spaces_.items():
            neighbors, positions[name] = space.see(keys.get(name), self.n_neighbors)
            seen.append(neighbors)
        return seen, positions

    def _answer(self, X: Any) -> tuple[HeadOutput, dict[str, Tensor]]:
        """Predict rows; return the positions of their neighbors in each space, too."""
        check_is_fitted(self)
        seen, positions = self._see(None if X is None else self._query(X))
        return shared_head().predict(seen), positions

    def predict_proba(self, X: Any = None) -> NDArray[np.float64]:
        """Return class probabilities, (n, n_classes).

        Parameters
        ----------
        X : array of shape (n, D), optional
            Rows to predict. None: the training rows, each without itself. The whitened features
            depend on their labels; for an unbiased score take ``keys="features"``, or other rows.
        """
        proba = self._answer(X)[0].log_proba.double().exp()
        shares: NDArray[np.float64] = (proba / proba.sum(1, keepdim=True)).numpy()
        return shares

    def attend(self, X: Any = None) -> dict[str, Attention]:
        """Return neighbors and weights of each row, for each key space by name.

        Parameters
        ----------
        X : array of shape (n, D), optional
            Rows to explain. None: the training rows, each without itself.
        """
        output, positions = self._answer(X)
        null = output.null_mass.double().numpy()
        return {
            name: Attention(at.numpy(), weights.double().numpy(), null)
            for (name, at), weights in zip(positions.items(), output.weights, strict=True)
        }
