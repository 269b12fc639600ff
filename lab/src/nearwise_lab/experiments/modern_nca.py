"""ModernNCA: labels voted by all training rows in one learned linear space."""

import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from nearwise.nn import PLRLiteEmbedding, euclidean
from nearwise_lab.experiments.peers.peer import Peer, held_out_split
from nearwise_lab.experiments.preprocess import FeatureEncoder, Table

FLOOR = 1e-7
DIM, WEIGHT_DECAY, BATCH_SIZE = 128, 2e-4, 1024
MAX_CANDIDATES = 4096  # rows that vote in a step; the published code has no bound
MAX_EMBEDDED = 100  # tables with more numeric columns skip the PLR-lite embedding


class _LinearKey(nn.Module):
    """Embed numbers (PLR-lite), append categories, and map both linearly to the embedding."""

    def __init__(self, n_numeric: int, n_other: int) -> None:
        super().__init__()
        self.n_numeric = n_numeric
        self.embedding = None
        width = n_numeric
        if 0 < n_numeric <= MAX_EMBEDDED:
            self.embedding = PLRLiteEmbedding(
                n_numeric, dim=34, n_frequencies=77, frequency_scale=0.044
            )
            width = 34 * n_numeric
        self.linear = nn.Linear(width + n_other, DIM)

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


@dataclass(eq=False, repr=False)
class ModernNCAClassifier(Peer):
    """ModernNCA with its published defaults and early stopping on held-out NLL.

    p(c | x) = sum of softmax(-||z_x - z_i||) over the rows i of class c; the distance is not
    squared, the temperature is 1, a row is left out of its own vote by its id. Each step votes
    with a random half of the rows (at most `MAX_CANDIDATES`); prediction uses all of them, the
    rows held out for stopping included.

    AdamW's rate is constant; of several `learning_rates` the one with the lowest held-out NLL is
    kept, with the weights of the best pass, after which at most `patience` follow. `scale` is that
    of `FeatureEncoder`. `n_epochs_` counts the passes until the weights kept, `choice_` has the
    rate and its held-out NLL, `history_` epoch, train_loss and held_out_nll (nats per row).

    References
    ----------
    Ye et al., "Revisiting Nearest Neighbor for Tabular Data: A Deep Tabular Baseline Two
    Decades Later", ICLR 2025.
    """

    learning_rates: tuple[float, ...] = (0.01,)
    max_epochs: int = 200
    patience: int = 20
    scale: Literal["columns", "overall"] = "columns"
    random_state: int = 0

    def fit(self, X: Table, y: Any) -> Self:
        """Train the embedding and store every training row in it."""
        labels = self._learn_classes(y)
        self._encoder = FeatureEncoder(self.scale).fit(X)
        x = torch.from_numpy(self._encoder.transform(X).astype(np.float32))
        target = torch.from_numpy(labels.astype(np.int64))
        fit_rows, stop_rows = held_out_split(labels, self.random_state)
        parts = x[fit_rows], target[fit_rows], x[stop_rows], target[stop_rows]
        best = float("inf")
        for lr in self.learning_rates:
            run = self._train(*parts, lr)
            if run.held_out_nll < best:
                best = run.held_out_nll
                self._key, self.history_, self.n_epochs_ = run.key, run.history, run.n_epochs
                self.choice_ = {"learning_rate": lr, "held_out_nll": best}
        with torch.no_grad():
            self._memory, self._labels = _embed(self._key, x), target
        return self

    def _train(self, x: Tensor, y: Tensor, x_stop: Tensor, y_stop: Tensor, lr: float) -> "_Run":
        n_numeric = self._encoder.n_numeric_
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            key = _LinearKey(n_numeric, x.shape[1] - n_numeric)
        generator = torch.Generator().manual_seed(self.random_state)
        optimizer = torch.optim.AdamW(key.parameters(), lr=lr, weight_decay=WEIGHT_DECAY)
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
        n_candidates = min(max(n // 2, 2), MAX_CANDIDATES)
        total = 0.0
        for rows in torch.randperm(n, generator=generator).split(BATCH_SIZE):
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
            proba = self._vote_of_all(_embed(key, x_stop), _embed(key, x), y)
            return float(-torch.log(proba.gather(1, y_stop[:, None]) + FLOOR).mean())

    def _vote_of_all(self, query: Tensor, memory: Tensor, labels: Tensor) -> Tensor:
        rows = max(1, 2**24 // max(1, len(memory)))  # 64 MiB of distances at a time
        return torch.cat([self._vote(euclidean(q, memory), labels) for q in query.split(rows)])

    def _proba(self, X: Table) -> np.ndarray:
        x = torch.from_numpy(self._encoder.transform(X).astype(np.float32))
        with torch.no_grad():
            proba = self._vote_of_all(_embed(self._key, x), self._memory, self._labels).double()
        return (proba / proba.sum(dim=1, keepdim=True)).numpy()


def _embed(key: _LinearKey, x: Tensor) -> Tensor:
    return torch.cat([key(rows) for rows in x.split(4096)])
