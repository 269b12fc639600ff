"""Effect of the weighting of neighbors: weightings exchanged, all else equal.

One classifier is fitted. For rows that neither its memory nor its networks have seen, and for the
test rows, it finds neighbors in its key spaces. Each weighting then turns the same neighbors into
class votes, and the same pool, with parameters fitted to the same rows, joins the votes of the
spaces and the base:

    log p = a log p_base + sum_s b_s log((1 - e) v_s + e prior) + const

followed by a temperature. `a`, `b_s` and `e` are positive and fitted by their NLL. Where labels may
be wrong, that is the NLL of the given labels, through the same transition for every weighting.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearwise.estimators.fit.problem import make_folds
from nearwise.estimators.model.label_model import AS_GIVEN, LabelModel
from nearwise.estimators.model.log_linear_pool import fit_temperature, merge_views
from nearwise.nn import PretrainedNeighborHead
from nearwise.nn.neighbor_trunk import softmax_or_nothing
from nearwise.training import BatchLoss, train_epochs
from nearwise.training.engine import minimize
from nearwise.training.settings import EngineConfig
from nearwise_lab.nn import MultiHeadNeighborAttention

WEIGHTINGS = (
    "uniform", "distance", "distance-tuned", "distance-learned", "distance+agreement",
    "multi-head", "attention", "attention-normalised",
)  # fmt: skip
SCALES = tuple(2.0 ** (step / 2) for step in range(-6, 15))  # of the tuned temperature
_RIDGE = 2.0  # pull of every parameter to its start, in rows
_START_SMOOTHING = -4.0  # logit
_FOLDS = 5
_HEADS = 4
_TRAINING = {"epochs": 30, "batch_size": 256, "weight_decay": 1e-4, "patience": 4}
_RATES = (1e-3, 3e-3, 1e-2)  # of learning; the study's is the first
_CHUNK = 1024
Progress = Callable[[str], None]


@dataclass(frozen=True)
class View:
    """Neighbors of n queries in every embedding space, from one view of the queries.

    Per space: the inputs of the classifier's own head (`NeighborSet`, with distances, labels and
    log-weights (n, k)), positions (n, k) of the neighbors in the memory, and keys (n, width) of
    the queries. `base_log_proba` is (n, C).
    """

    spaces: list[Any]
    positions: list[Tensor]
    queries: list[Tensor]
    base_log_proba: Tensor | None

    def take(self, rows: Tensor) -> "View":
        """Return the view of some of the queries."""
        return View(
            [space.take(rows) for space in self.spaces],
            [positions[rows] for positions in self.positions],
            [keys[rows] for keys in self.queries],
            None if self.base_log_proba is None else self.base_log_proba[rows],
        )


Weights = list[Tensor]  # (n, k) per space; what is missing to 1 goes to the class shares


@dataclass(frozen=True)
class Exchange:
    """Data common to all weightings.

    Attributes
    ----------
    fitted, test : list of View
        Of the rows that parameters are fitted to (with their given `labels`, (n,)), which all else
        has not seen, and of the test rows.
    prior : Tensor of shape (C,)
        Class shares.
    memory : list of Tensor of shape (n_memory, width)
        Keys of the remembered rows in each space.
    own : (list of Weights, list of Weights)
        Weights of the classifier's own attention, for each view of both.
    learned : (list of View, int64 Tensor) or None
        The rows that the classifier's own attention learned from, each left out of its neighbors,
        and their given labels; None where their keys are not known in every space.
    label_model : LabelModel
        How given labels come about from the classes to predict.
    """

    fitted: list[View]
    test: list[View]
    labels: Tensor
    prior: Tensor
    memory: list[Tensor]
    own: tuple[list[Weights], list[Weights]]
    seed: int
    learned: tuple[list[View], Tensor] | None = None
    label_model: LabelModel = AS_GIVEN

    def nll(self, log_proba: Tensor, labels: Tensor) -> Tensor:
        """Mean NLL of given labels (n,) under log-probabilities (n, C) of the classes."""
        return F.nll_loss(self.label_model.given_log_proba(log_proba), labels)

    @property
    def has_base(self) -> bool:
        """Whether the pool includes a base."""
        return self.fitted[0].base_log_proba is not None

    @property
    def k(self) -> int:
        """Neighbors in each space."""
        return int(self.test[0].positions[0].shape[1])


@dataclass(frozen=True)
class Weighed:
    """Test predictions (n_test, C) under one weighting, and its fitted parameters.

    `details` are gates of the pool, smoothing, temperature and scales of the distances, if any.
    """

    proba: np.ndarray
    details: dict[str, Any]


def weigh(exchange: Exchange, name: str, progress: Progress = lambda text: None) -> Weighed:
    """Predict the test rows under one of `WEIGHTINGS`.

    "uniform": all alike; "distance": the reciprocal of the distance, as scikit-learn's; with
    "distance-tuned" ``exp(-s d)``, `s` by the NLL of the neighbors alone; with "distance-learned"
    one `s` per space, fitted with the pool from there on; "distance+agreement" has beside it one
    `a` per space, ``exp(a g - s d)``, where `g` is the share of the query's neighbors with the
    neighbor's label; "multi-head": the study's attention over keys, trained on the rows that the
    classifier's own attention learned from, at the best of three learning rates; "attention": the
    classifier's own, which leaves a part to the class shares; "attention-normalised": brought to a
    sum of 1. The trained ones have not seen the fitted rows.
    """
    if name == "attention":
        return _predicted(exchange, *exchange.own)
    if name == "attention-normalised":
        return _predicted(exchange, *(_normalised(views) for views in exchange.own))
    if name == "multi-head":
        return _predicted(exchange, *_multi_head(exchange, progress))
    if name in ("distance-learned", "distance+agreement"):
        return _with_learned_scales(exchange, agreement=name == "distance+agreement")
    scale = _tuned_scale(exchange) if name == "distance-tuned" else None
    weights = [
        [[_plain(name, space, scale) for space in view.spaces] for view in views]
        for views in (exchange.fitted, exchange.test)
    ]
    found = _predicted(exchange, weights[0], weights[1])
    return found if scale is None else Weighed(found.proba, found.details | {"scale": scale})


def _normalised(views: list[Weights]) -> list[Weights]:
    return [[weight / weight.sum(1, keepdim=True).clamp_min(1e-6) for weight in v] for v in views]


def _plain(name: str, space: Any, scale: float | Tensor | None) -> Tensor:
    """Weights (n, k) by distance, or uniform."""
    scores = space.log_weight
    if name == "distance":
        scores = scores - torch.log(space.distances.clamp_min(1e-6))
    elif name != "uniform":
        scores = scores - scale * space.distances
    return softmax_or_nothing(scores)


def _tuned_scale(exchange: Exchange) -> float:
    """Find the distance scale with the lowest NLL of the neighbors alone."""
    labels = exchange.labels.repeat(len(exchange.fitted))

    def nll(scale: float) -> float:
        votes = [
            _votes(view, [_plain("", space, scale) for space in view.spaces], exchange.prior)
            for view in exchange.fitted
        ]
        epsilon = torch.sigmoid(torch.tensor(_START_SMOOTHING))
        mixed = (1 - epsilon) * torch.cat(votes) + epsilon * exchange.prior
        return float(exchange.nll(torch.log_softmax(mixed.log().mean(1), dim=1), labels))

    return min(SCALES, key=nll)


def _votes(view: View, weights: Weights, prior: Tensor) -> Tensor:
    """Votes (n, S, C) of the neighbors in each space; without weight: the class shares."""
    votes = []
    for space, weight in zip(view.spaces, weights, strict=True):
        vote = weight.new_zeros(len(weight), len(prior)).scatter_add(1, space.labels, weight)
        votes.append(vote + (1 - weight.sum(1, keepdim=True)).clamp_min(0.0) * prior)
    return torch.stack(votes, dim=1)


class _Pool(nn.Module):
    """The log-linear pool of spaces and base."""

    def __init__(self, n_spaces: int, prior: Tensor, has_base: bool) -> None:
        super().__init__()
        self.prior, self.has_base = prior, has_base
        start = math.log((0.2 if has_base else 1.0) / n_spaces)
        self.space = nn.Parameter(torch.full((n_spaces,), start))
        self.smoothing = nn.Parameter(torch.tensor(_START_SMOOTHING))
        self.base = nn.Parameter(torch.zeros(()), requires_grad=has_base)

    def forward(self, votes: Tensor, base_log_proba: Tensor | None) -> Tensor:
        """Log-probabilities (n, C) of votes (n, S, C) and the base's (n, C)."""
        epsilon = torch.sigmoid(self.smoothing)
        mixed = torch.log((1 - epsilon) * votes + epsilon * self.prior)
        pooled = (self.space.exp()[:, None] * mixed).sum(1)
        if base_log_proba is not None:
            pooled = pooled + self.base.exp() * base_log_proba
        return torch.log_softmax(pooled, dim=1)

    def describe(self) -> dict[str, Any]:
        """Gates and smoothing, as plain numbers."""
        base = float(self.base.exp()) if self.has_base else None
        smoothing = float(torch.sigmoid(self.smoothing))
        return {"base": base, "spaces": self.space.exp().tolist(), "smoothing": smoothing}


def _fit_pool(exchange: Exchange, votes: Callable[[], Tensor], *scales: nn.Parameter) -> _Pool:
    """Fit the pool, with the scales that votes depend on, to all views of the fitting rows."""
    pool = _Pool(len(exchange.memory), exchange.prior, exchange.has_base)
    labels = exchange.labels.repeat(len(exchange.fitted))
    base = torch.cat(_bases(exchange.fitted)) if exchange.has_base else None
    learned = [one for one in (*pool.parameters(), *scales) if one.requires_grad]
    start = [one.detach().clone() for one in learned]
    ridge = _RIDGE / len(exchange.labels)

    def loss() -> Tensor:
        moved = [(now - then).square().sum() for now, then in zip(learned, start, strict=True)]
        return exchange.nll(pool(votes(), base), labels) + ridge * torch.stack(moved).sum()

    minimize(learned, loss)
    return pool


def _bases(views: Sequence[View]) -> list[Tensor]:
    return [view.base_log_proba for view in views if view.base_log_proba is not None]


def _predicted(exchange: Exchange, fitted: Sequence[Weights], test: Sequence[Weights]) -> Weighed:
    """Fit the pool to given weights and predict."""
    of_fitted, of_test = (
        [_votes(view, of_view, exchange.prior) for view, of_view in zip(*both, strict=True)]
        for both in ((exchange.fitted, fitted), (exchange.test, test))
    )
    together = torch.cat(of_fitted)
    return _finished(exchange, _fit_pool(exchange, lambda: together), of_fitted, of_test)


def _with_learned_scales(exchange: Exchange, *, agreement: bool) -> Weighed:
    start = math.log(_tuned_scale(exchange))
    log_scale = nn.Parameter(torch.full((len(exchange.memory),), start))
    trust = nn.Parameter(torch.zeros(len(exchange.memory)), requires_grad=agreement)
    fitted, test = (
        [(v, [_agreement(one) if agreement else 0.0 for one in v.spaces]) for v in views]
        for views in (exchange.fitted, exchange.test)
    )

    def votes(views: Sequence[tuple[View, list[Any]]]) -> list[Tensor]:
        found = []
        for view, agreeing in views:
            parts = zip(view.spaces, agreeing, log_scale.exp(), trust, strict=True)
            scores = [
                space.log_weight - scale * space.distances + side * share
                for space, share, scale, side in parts
            ]
            weights = [softmax_or_nothing(of_space) for of_space in scores]
            found.append(_votes(view, weights, exchange.prior))
        return found

    pool = _fit_pool(exchange, lambda: torch.cat(votes(fitted)), log_scale, trust)
    with torch.no_grad():
        found = _finished(exchange, pool, votes(fitted), votes(test))
    details = found.details | {"scale": log_scale.exp().tolist()}
    return Weighed(found.proba, details | ({"agreement": trust.tolist()} if agreement else {}))


def _agreement(space: Any) -> Tensor:
    """Share (n, k) of a query's neighbors with the same label as this neighbor."""
    there = torch.isfinite(space.log_weight)
    same = space.labels[:, :, None] == space.labels[:, None, :]
    return (same & there[:, None, :]).sum(2) / there.sum(1, keepdim=True).clamp_min(1)


@torch.no_grad()
def _finished(
    exchange: Exchange, pool: _Pool, fitted: Sequence[Tensor], test: Sequence[Tensor]
) -> Weighed:
    """Pool the votes of the views, and apply the temperature of the fitting rows."""
    parts = [
        [pool(v, view.base_log_proba) for view, v in zip(views, votes, strict=True)]
        for views, votes in ((exchange.fitted, fitted), (exchange.test, test))
    ]
    return _tempered(exchange, parts[0], parts[1], pool.describe())


def base_alone(exchange: Exchange) -> Weighed:
    """Test predictions of the base and a temperature, without any neighbor."""
    return _tempered(exchange, _bases(exchange.fitted), _bases(exchange.test), {})


def _tempered(
    exchange: Exchange, fitted: list[Tensor], test: list[Tensor], details: dict[str, Any]
) -> Weighed:
    """Average the views' probabilities, and apply the temperature of the fitting rows."""
    n_rows = len(exchange.labels)
    temperature, nll = fit_temperature(
        merge_views(fitted, "probabilities"), exchange.labels, torch.ones(n_rows),
        exchange.label_model, ridge=_RIDGE / n_rows,
    )  # fmt: skip
    scores = merge_views(test, "probabilities").double() / temperature
    found = {"temperature": temperature, "fitted_nll": nll}
    return Weighed(torch.softmax(scores, dim=1).numpy(), details | found)


# --- the study's attention ----------------------------------------------------------------------


def _multi_head(exchange: Exchange, progress: Progress) -> tuple[list[Weights], list[Weights]]:
    """Train the study's attention, and return weights for the fitting and the test rows.

    On the rows that the classifier's own attention learned from. Where these are not known in
    every space, on the fitted rows: on all folds but one at a time, and test rows get the mean.
    """
    if exchange.learned is not None:
        progress("multi-head attention")
        folds = make_folds(exchange.learned[1].numpy(), _FOLDS, exchange.seed)
        model = _best_multi_head(exchange, exchange.learned, *folds[0], exchange.seed)
        fitted, test = (
            [model.weights(view) for view in views] for views in (exchange.fitted, exchange.test)
        )
        return fitted, test
    folds = make_folds(exchange.labels.numpy(), _FOLDS, exchange.seed)
    fitted, test = (
        [[torch.zeros_like(space.distances) for space in view.spaces] for view in views]
        for views in (exchange.fitted, exchange.test)
    )
    for number, (others, held_out) in enumerate(folds):
        progress(f"multi-head attention, fold {number + 1} of {len(folds)}")
        stop = folds[number - 1][1] if len(folds) > 2 else held_out
        train = np.setdiff1d(others, stop) if len(folds) > 2 else others
        own = exchange.fitted, exchange.labels
        model = _best_multi_head(exchange, own, train, stop, exchange.seed + number)
        rows = torch.from_numpy(held_out)
        for view, of_view in zip(exchange.fitted, fitted, strict=True):
            for kept, weight in zip(of_view, model.weights(view.take(rows)), strict=True):
                kept[rows] = weight
        for view, of_view in zip(exchange.test, test, strict=True):
            for kept, weight in zip(of_view, model.weights(view), strict=True):
                kept += weight / len(folds)
    return fitted, test


def _best_multi_head(
    exchange: Exchange,
    rows: tuple[list[View], Tensor],
    train: np.ndarray,
    stop: np.ndarray,
    seed: int,
) -> "_MultiHead":
    """Return the model of the learning rate with the lowest loss on the stopping rows."""
    found = [_train_multi_head(exchange, rows, train, stop, lr, seed) for lr in _RATES]
    return min(found, key=lambda one: one[1])[0]


class _MultiHead(nn.Module):
    """The study's attention in every space, with the pool used in its training."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self.memory = exchange.memory
        self.attention = nn.ModuleList(
            MultiHeadNeighborAttention(keys.shape[1], _heads_for(keys.shape[1]))
            for keys in exchange.memory
        )
        self.pool = _Pool(len(exchange.memory), exchange.prior, exchange.has_base)

    def attend(self, view: View) -> Weights:
        """Weights (n, k) in each space."""
        parts = self.attention, self.memory, view.queries, view.positions, view.spaces
        return [
            attention(queries, memory[positions], mask=torch.isfinite(space.log_weight))
            for attention, memory, queries, positions, space in zip(*parts, strict=True)
        ]

    def forward(self, view: View) -> Tensor:
        """Log-probabilities (n, C)."""
        votes = _votes(view, self.attend(view), self.pool.prior)
        result: Tensor = self.pool(votes, view.base_log_proba)
        return result

    def weights(self, view: View) -> Weights:
        """Compute `attend` in chunks."""
        return _in_chunks(len(view.queries[0]), lambda rows: self.attend(view.take(rows)))


def _heads_for(width: int) -> int:
    return next(heads for heads in range(_HEADS, 0, -1) if width % heads == 0)


def _train_multi_head(
    exchange: Exchange,
    of: tuple[list[View], Tensor],
    train: np.ndarray,
    stop: np.ndarray,
    lr: float,
    seed: int,
) -> tuple[_MultiHead, float]:
    """Train on some rows, in a view drawn per step, with early stopping on the others.

    Returns the model and its NLL on those others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _MultiHead(exchange)
    (views, labels), rows, stopping = of, torch.from_numpy(train), torch.from_numpy(stop)

    def loss(batch: Tensor, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        view = views[int(torch.randint(len(views), (), generator=generator))]
        some = rows[batch]
        return {"loss": exchange.nll(model(view.take(some)), labels[some])}

    def evaluate(epoch: int) -> dict[str, float]:
        parts = [model(views[0].take(some)) for some in stopping.split(_CHUNK)]
        return {"nll": float(exchange.nll(torch.cat(parts), labels[stopping]))}

    config = EngineConfig.model_validate(_TRAINING | {"lr": lr})
    train_epochs(BatchLoss(model, loss, len(train), evaluate), config, seed=seed, monitor="nll")
    with torch.no_grad():
        return model, evaluate(0)["nll"]


# --- the classifier's own -----------------------------------------------------------------------


def own_weights(head: PretrainedNeighborHead, spaces: list[Any]) -> Weights:
    """Weights (n, k) of the neighbors in each space, by the classifier's head."""

    def of_chunk(rows: Tensor) -> Weights:
        read = head.attend([space.take(rows) for space in spaces])
        left = torch.sigmoid(-read.of_spaces[:, 0])
        return [softmax_or_nothing(scores) * left[:, [at]] for at, scores in enumerate(read.scores)]

    return _in_chunks(len(spaces[0].labels), of_chunk)


@torch.no_grad()
def _in_chunks(n_rows: int, weigh: Callable[[Tensor], Weights]) -> Weights:
    parts = [weigh(rows) for rows in torch.arange(n_rows).split(_CHUNK)]
    return [torch.cat(of_space) for of_space in zip(*parts, strict=True)]
