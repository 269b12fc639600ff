"""RetrievalConfidence: how sure a retriever may be that its list holds the answer."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.memory import read_folder, write_folder
from nearwise.training import EngineConfig, Objective, train_epochs
from nearwise.training.objective import Parts, Record
from nearwise_lab.retrieval.rank_attention import RankAttention

_KIND, _VERSION = "retrieval confidence", 1
_HELD_OUT = 0.2
_PATIENCE = 20
_FEWEST = 50

_Lists = tuple[Tensor, Tensor | None, Tensor]  # similarities, further features, target


class RetrievalConfidence(BaseEstimator):
    """Turn the similarities of a ranked list into the probability that the answer is in it.

    Attention over the retrieved items and a null slot gives the rank of the first relevant item;
    the null carries "at none". The probability that the answer is among the first k is
    then the sum over the first k ranks, for every k at once, and rises with k.

    Parameters
    ----------
    epochs : int, default=200
        Most passes over the queries; training stops by a fifth of them that is held out.
    batch_size : int, default=256
    lr : float, default=1e-2
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    n_ranks_ : int
        Length of the lists in `fit`.
    held_out_nll_ : float
        NLL of the rank of the first relevant item on the queries held out, in nats.
    history_ : list of dict
        epoch, held_out_nll.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> similarity = np.sort(rng.random((400, 5)))[:, ::-1]
    >>> relevance = rng.random((400, 5)) < similarity - 0.4
    >>> model = RetrievalConfidence(epochs=20, random_state=0).fit(similarity, relevance)
    >>> model.predict_proba(similarity[:2]).shape
    (2,)
    """

    def __init__(
        self,
        *,
        epochs: int = 200,
        batch_size: int = 256,
        lr: float = 1e-2,
        random_state: Any = None,
    ) -> None:
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.random_state = random_state

    def fit(self, similarity: Any, relevance: Any, item_features: Any = None) -> Self:
        """Learn from queries whose retrieved items have relevance labels.

        Parameters
        ----------
        similarity : array-like of shape (n, K)
            Of the retrieved items, best first: a row must not rise.
        relevance : array-like of shape (n, K)
            In [0, 1]: 1 answers the query, 0 does not; a grade between is the probability that a
            reader finds the answer there.
        item_features : array-like of shape (n, K, F), optional
            Further numbers about each item, such as a reranker's score or its agreement with the
            other items; then needed for predictions as well.

        Returns
        -------
        self : RetrievalConfidence

        Raises
        ------
        ValueError
            If shapes or ranges do not fit, similarities rise, or fewer than 50 queries are given.
        """
        scores = check_lists(similarity)
        target = first_relevant(check_relevance(relevance, scores.shape))
        if len(scores) < _FEWEST:
            raise ValueError(
                f"{len(scores)} queries are too few to learn from and to stop by. Give {_FEWEST} "
                "or more."
            )
        self.n_ranks_ = scores.shape[1]
        self.center_, self.spread_ = float(scores.mean()), float(scores.std()) or 1.0
        extra = self._scaled(item_features, scores.shape, fit=True)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        order = np.random.default_rng(seed).permutation(len(scores))
        n_out = max(1, round(_HELD_OUT * len(order)))
        data = (self._units(scores), extra, torch.from_numpy(target).float())
        self._train(data, order[n_out:], order[:n_out], seed)
        return self

    def _train(
        self,
        data: _Lists,
        train: np.ndarray,
        held_out: np.ndarray,
        seed: int,
    ) -> None:
        extra = data[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = RankAttention(0 if extra is None else extra.shape[2])
        objective = _RankObjective(network, data, train, held_out)
        config = EngineConfig(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=1e-3,
            patience=_PATIENCE,
        )
        result = train_epochs(objective, config, seed=seed, monitor="held_out_nll")
        self.network_, self.history_ = network, result.history
        with torch.no_grad():
            self.held_out_nll_ = float(objective.nll(objective.held_out))

    def predict_ranks(self, similarity: Any, item_features: Any = None) -> np.ndarray:
        """Probabilities of the rank of the first relevant item.

        Parameters
        ----------
        similarity : array-like of shape (n, K)
            K as in `fit`.
        item_features : array-like of shape (n, K, F), optional

        Returns
        -------
        proba : ndarray of shape (n, K + 1)
            Rows sum to 1; the last column is the null: no item is relevant.
        """
        check_is_fitted(self)
        scores = check_lists(similarity)
        if scores.shape[1] != self.n_ranks_:
            raise ValueError(
                f"The lists have {scores.shape[1]} items and those in fit had {self.n_ranks_}. "
                "Retrieve as many."
            )
        extra = self._scaled(item_features, scores.shape, fit=False)
        with torch.no_grad():
            log_proba = self.network_(self._units(scores), extra)
        proba: np.ndarray = torch.softmax(log_proba.double(), dim=1).numpy()
        return proba

    def predict_proba(
        self, similarity: Any, k: int | None = None, item_features: Any = None
    ) -> np.ndarray:
        """Probability that one of the first k items is relevant, ndarray of shape (n,).

        Parameters
        ----------
        similarity, item_features
            As in `predict_ranks`.
        k : int, optional
            All by default.
        """
        ranks = self.predict_ranks(similarity, item_features)
        k = self.n_ranks_ if k is None else k
        if not 1 <= k <= self.n_ranks_:
            raise ValueError(f"k={k} must lie between 1 and the {self.n_ranks_} ranks of the list.")
        held: np.ndarray = ranks[:, :k].sum(1)
        return held

    def _units(self, scores: np.ndarray) -> Tensor:
        return torch.from_numpy(((scores - self.center_) / self.spread_).astype(np.float32))

    def _scaled(self, features: Any, shape: tuple[int, ...], *, fit: bool) -> Tensor | None:
        """Check and standardise further features; None where there are none."""
        if fit:
            self.n_item_features_ = 0 if features is None else np.shape(features)[-1]
        if features is None and not self.n_item_features_:
            return None
        array = np.asarray(features if features is not None else [], dtype=np.float64)
        expected = (*shape, self.n_item_features_)
        if array.shape != expected or not expected[-1]:
            found = "none" if features is None else f"shape {array.shape}"
            raise ValueError(
                f"item_features has {found}, but {expected} is wanted: numbers of every item, as "
                "many as in fit, and none where fit had none."
            )
        if not np.isfinite(array).all():
            raise ValueError("item_features holds NaN or infinity. Give finite numbers.")
        if fit:
            spread = array.std((0, 1))
            self.feature_units_ = np.stack([array.mean((0, 1)), np.where(spread > 0, spread, 1.0)])
        center, scale = self.feature_units_
        return torch.from_numpy(((array - center) / scale).astype(np.float32))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted model to a folder, in one step."""
        check_is_fitted(self)
        meta = {
            "params": self.get_params() | {"random_state": None},
            "network": self.network_.config,
            "n_ranks": self.n_ranks_,
            "units": [self.center_, self.spread_],
            "features": self.feature_units_.tolist() if self.n_item_features_ else None,
            "held_out_nll": self.held_out_nll_,
            "history": self.history_,
        }
        tensors = dict(self.network_.state_dict())
        write_folder(Path(folder), kind=_KIND, format_version=_VERSION, tensors=tensors, meta=meta)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "RetrievalConfidence":
        """Read what `save` wrote; it predicts bit for bit the same."""
        content = read_folder(Path(folder), kind=_KIND, newest_version=_VERSION)
        meta = content.meta
        model = cls(**meta["params"])
        model.n_ranks_, model.history_ = meta["n_ranks"], meta["history"]
        model.center_, model.spread_ = meta["units"]
        model.held_out_nll_ = meta["held_out_nll"]
        model.n_item_features_ = meta["network"]["n_extra"]
        if model.n_item_features_:
            model.feature_units_ = np.array(meta["features"])
        model.network_ = RankAttention(**meta["network"])
        model.network_.load_state_dict(content.tensors)
        model.network_.eval()
        return model


class _RankObjective(Objective):
    """NLL of the rank of the first relevant item."""

    name = "Training of the retrieval confidence"
    seeded_once = True
    min_gain = 1e-5
    last_rate = 0.02
    gradient_clip = None

    def __init__(
        self, network: RankAttention, data: _Lists, train: np.ndarray, held_out: np.ndarray
    ) -> None:
        super().__init__(network, len(train))
        self.network, self.data = network, data
        self.train, self.held_out = torch.from_numpy(train), torch.from_numpy(held_out)

    def make_optimizer(self, config: EngineConfig) -> torch.optim.Optimizer:
        """AdamW with one decay for all parameters."""
        parameters = self.network.parameters()
        return torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)

    def batches(
        self, epoch: int, config: EngineConfig, generator: torch.Generator
    ) -> Iterable[Tensor]:
        """Positions of queries."""
        order = torch.randperm(self.n_rows, generator=generator)
        return self.train[order].split(config.batch_size)

    def nll(self, rows: Tensor) -> Tensor:
        """Mean NLL of some queries."""
        scores, extra, target = self.data
        some = None if extra is None else extra[rows]
        return -(target[rows] * self.network(scores[rows], some)).sum(1).mean()

    def loss(self, batch: Tensor, generator: torch.Generator, step: int) -> Parts:
        """NLL of a batch."""
        return {"loss": self.nll(batch)}

    def evaluate(self, epoch: int) -> dict[str, Any]:
        """NLL of the queries held out."""
        return {"held_out_nll": self.nll(self.held_out)}

    def record(self, epoch: Record) -> Record:
        """Form of a record in the history."""
        return {"epoch": epoch["epoch"], **epoch["evaluation"]}


def first_relevant(relevance: np.ndarray) -> np.ndarray:
    """Distribution (n, K + 1) of the rank of the first relevant item; the last column is none.

    `relevance` (n, K) are probabilities that an item is relevant, taken as independent.
    """
    missed = np.cumprod(1 - relevance, axis=1)
    before = np.concatenate([np.ones((len(relevance), 1)), missed[:, :-1]], axis=1)
    return np.concatenate([relevance * before, missed[:, -1:]], axis=1)


def check_lists(similarity: Any) -> np.ndarray:
    """Check similarities: finite (n, K), best first."""
    scores: np.ndarray = check_array(similarity, dtype=np.float64)
    rising = np.flatnonzero((np.diff(scores, axis=1) > 1e-9).any(axis=1))
    if len(rising):
        raise ValueError(
            f"similarity rises along {len(rising)} of {len(scores)} rows, first in row "
            f"{rising[0]}. Sort items best first; of distances pass the negative."
        )
    return scores


def check_relevance(relevance: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Check grades: one in [0, 1] for every similarity."""
    grades = np.asarray(relevance, dtype=np.float64)
    if grades.shape != shape:
        raise ValueError(f"relevance has shape {grades.shape} but similarity has {shape}.")
    if not ((grades >= 0) & (grades <= 1)).all():
        raise ValueError(
            "relevance must lie in [0, 1]. Divide grades by the largest, so that 1 is a full "
            "answer."
        )
    return grades
