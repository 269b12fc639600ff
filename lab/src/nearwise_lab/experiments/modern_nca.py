"""ModernNCA: labels voted by all training rows in one learned linear space."""

import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from nearwise.nn import PLRLiteEmbedding, euclidean
from nearwise_lab.experiments.preprocess import FeatureEncoder, Table

FLOOR = 1e-7
VALIDATION_FRACTION = 0.15


class _LinearKey(nn.Module):
    """Embed numbers (PLR-lite), set categories beside them, map linearly to the key."""

    def __init__(self, n_numeric: int, n_other: int, dim: int, embed: bool) -> None:
        super().__init__()
        self.n_numeric = n_numeric
        self.embedding = None
        width = n_numeric
        if embed and n_numeric:
            self.embedding = PLRLiteEmbedding(
                n_numeric, dim=34, n_frequencies=77, frequency_scale=0.044
            )
            width = 34 * n_numeric
        self.linear = nn.Linear(width + n_other, dim)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is None:
            return self.linear(x)
        numbers = self.embedding(x[:, : self.n_numeric]).flatten(1)
        return self.linear(torch.cat([numbers, x[:, self.n_numeric :]], dim=1))


@dataclass
class _Run:
    """One training run: the best weights, and how it went."""

    key: _LinearKey
    held_out_nll: float = float("inf")
    n_epochs: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


class ModernNCAClassifier(ClassifierMixin, BaseEstimator):
    """ModernNCA with its published defaults, stopped on held-out NLL.

    p(c | x) = sum of softmax(-||z_x - z_i||) over the rows i of class c; the distance is not
    squared, the temperature is 1, a row is left out of its own vote by its id. Each step votes
    with a random half of the rows (at most `max_candidates`); prediction uses all of them, the
    rows held out for stopping included.

    Parameters
    ----------
    dim : int, default=128
        Width of the key.
    learning_rates : tuple of float, default=(0.01,)
        Of AdamW, constant; of several, the one with the lowest held-out NLL is kept.
    weight_decay : float, default=2e-4
        Of AdamW.
    batch_size : int, default=1024
        Rows per training step.
    max_epochs : int, default=200
        Maximum number of passes over the rows.
    patience : int, default=20
        Passes without a better held-out NLL before stopping.
    max_candidates : int, default=4096
        Maximum number of voting rows per training step; the published code has no bound.
    max_embedded : int, default=100
        Tables with more numeric columns skip the PLR-lite embedding.
    scale : {"columns", "overall"}, default="columns"
        Units of the numeric columns, see `FeatureEncoder`.
    random_state : int, default=0
        Seed of the split, the start and the batches.

    Attributes
    ----------
    n_epochs_ : int
        Passes until the weights kept.
    choice_ : dict
        The learning rate and its held-out NLL.
    history_ : list of dict
        epoch, train_loss and held_out_nll (nats per row) of each pass.

    References
    ----------
    Ye et al., "Revisiting Nearest Neighbor for Tabular Data: A Deep Tabular Baseline Two
    Decades Later", ICLR 2025.
    """

    def __init__(
        self,
        dim: int = 128,
        learning_rates: tuple[float, ...] = (0.01,),
        weight_decay: float = 2e-4,
        batch_size: int = 1024,
        max_epochs: int = 200,
        patience: int = 20,
        max_candidates: int = 4096,
        max_embedded: int = 100,
        scale: Literal["columns", "overall"] = "columns",
        random_state: int = 0,
    ) -> None:
        self.dim = dim
        self.learning_rates = learning_rates
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.max_candidates = max_candidates
        self.max_embedded = max_embedded
        self.scale = scale
        self.random_state = random_state

    def fit(self, X: Table, y: Any) -> Self:
        """Learn the space; remember every training row in it."""
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        self._encoder = FeatureEncoder(self.scale).fit(X)
        x = torch.from_numpy(self._encoder.transform(X).astype(np.float32))
        target = torch.from_numpy(labels.astype(np.int64))
        fit_rows, stop_rows = self._split(labels)
        parts = x[fit_rows], target[fit_rows], x[stop_rows], target[stop_rows]
        best = float("inf")
        for lr in self.learning_rates:
            run = self._train(*parts, lr)
            if run.held_out_nll < best:
                best = run.held_out_nll
                self._key, self.history_, self.n_epochs_ = run.key, run.history, run.n_epochs
                self.choice_ = {"learning_rate": lr, "held_out_nll": best}
        with torch.no_grad():
            self._memory, self._labels = self._embed(self._key, x), target
        return self

    def _start(self, n_features: int) -> _LinearKey:
        n_numeric = self._encoder.n_numeric_
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            embed = n_numeric <= self.max_embedded
            return _LinearKey(n_numeric, n_features - n_numeric, self.dim, embed)

    def _split(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        counts = np.bincount(labels)
        n_stop = max(int(np.ceil(VALIDATION_FRACTION * len(labels))), len(counts))
        splitter = StratifiedShuffleSplit if counts.min() >= 2 else ShuffleSplit
        split = splitter(1, test_size=min(n_stop, len(labels) // 2), random_state=self.random_state)
        return next(split.split(np.zeros(len(labels)), labels))

    def _train(self, x: Tensor, y: Tensor, x_stop: Tensor, y_stop: Tensor, lr: float) -> "_Run":
        key = self._start(x.shape[1])
        generator = torch.Generator().manual_seed(self.random_state)
        optimizer = torch.optim.AdamW(key.parameters(), lr=lr, weight_decay=self.weight_decay)
        run = _Run(copy.deepcopy(key))
        for epoch in range(1, self.max_epochs + 1):
            loss = self._one_epoch(key, x, y, optimizer, generator)
            nll = self._held_out_nll(key, x, y, x_stop, y_stop)
            run.history.append({"epoch": epoch, "train_loss": loss, "held_out_nll": nll})
            if nll < run.held_out_nll:
                run.held_out_nll, run.n_epochs = nll, epoch
                run.key.load_state_dict(key.state_dict())
            elif epoch - run.n_epochs >= self.patience:
                break
        return run

    def _one_epoch(
        self,
        key: _LinearKey,
        x: Tensor,
        y: Tensor,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
    ) -> float:
        n = len(x)
        n_candidates = min(max(n // 2, 2), self.max_candidates)
        total = 0.0
        for rows in torch.randperm(n, generator=generator).split(self.batch_size):
            candidates = torch.randperm(n, generator=generator)[:n_candidates]
            distances = euclidean(key(x[rows]), key(x[candidates]))
            itself = rows[:, None] == candidates[None, :]
            loss = self._nll(distances.masked_fill(itself, float("inf")), y[candidates], y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        return total / n

    def _vote(self, distances: Tensor, labels: Tensor) -> Tensor:
        votes = torch.zeros(len(distances), len(self.classes_))
        return votes.index_add(1, labels, torch.softmax(-distances, dim=1))

    def _nll(self, distances: Tensor, labels: Tensor, target: Tensor) -> Tensor:
        p = self._vote(distances, labels).gather(1, target[:, None])
        return -torch.log(p + FLOOR).mean()

    def _held_out_nll(
        self, key: _LinearKey, x: Tensor, y: Tensor, x_stop: Tensor, y_stop: Tensor
    ) -> float:
        with torch.no_grad():
            proba = self._proba(self._embed(key, x_stop), self._embed(key, x), y)
            return float(-torch.log(proba.gather(1, y_stop[:, None]) + FLOOR).mean())

    @staticmethod
    def _embed(key: _LinearKey, x: Tensor) -> Tensor:
        return torch.cat([key(rows) for rows in x.split(4096)])

    def _proba(self, query: Tensor, memory: Tensor, labels: Tensor) -> Tensor:
        rows = max(1, 2**24 // max(1, len(memory)))  # 64 MiB of distances at a time
        return torch.cat([self._vote(euclidean(q, memory), labels) for q in query.split(rows)])

    def predict_proba(self, X: Table) -> np.ndarray:
        """Return the vote of all training rows, ndarray of shape (n_rows, n_classes)."""
        check_is_fitted(self, "classes_")
        x = torch.from_numpy(self._encoder.transform(X).astype(np.float32))
        with torch.no_grad():
            proba = self._proba(self._embed(self._key, x), self._memory, self._labels).double()
        return (proba / proba.sum(dim=1, keepdim=True)).numpy()

    def predict(self, X: Table) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
