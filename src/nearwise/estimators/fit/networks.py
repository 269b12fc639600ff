"""Feature space of a fit, and training of its networks."""

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.fit.embedding import Embedding, default_config, train_member
from nearwise.estimators.fit.feature_space import choose_feature_space, mean_error
from nearwise.estimators.fit.problem import FitSettings, Problem, make_folds
from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.inputs.table import LARGE, ready_embeddings
from nearwise.estimators.model.row_models import FeatureSpace, StageSpace
from nearwise.estimators.progress import Progress
from nearwise.nn import NeighborNetwork
from nearwise.training import TrainConfig, TrainingResult
from nearwise.training.settings import plain_message

_LEAST_TRAINED = 2_000  # fewest rows to try a trained key space
_DEEP = 10_000  # rows above which networks add to Gaussian classes of ready embeddings
_STOPS = 10  # one in this many rows is for early stopping of a key space


def fit_features(
    problem: Problem, positions: np.ndarray, settings: FitSettings, progress: Progress
) -> FeatureSpace:
    """Choose the feature space of a table by the rows at these positions."""
    progress.stage("features")
    encoder, rows = problem.table
    encoder, rows = encoder.without_texts(rows.take(positions))
    features, losses = choose_feature_space(
        encoder,
        rows,
        problem.carried[positions],
        settings.n_neighbors,
        metric=settings.metric,
        seed=settings.seed,
        groups=problem.groups_at(positions),
        loss=None if problem.targets is None else mean_error,
    )
    name = "feature_nll" if problem.targets is None else "feature_error"
    problem.choice |= {name: losses, "features": features.kind}
    reduced = problem.table[0].sparse_columns
    if reduced is not None:
        sizes = {"columns": reduced.n_columns, "components": reduced.n_components}
        problem.choice["sparse"] = sizes
    return features


def fit_texts(problem: Problem) -> StageSpace | None:
    """Fit the key space of texts beside other columns; None without."""
    encoder, rows = problem.table
    if encoder.without_texts(rows)[0] is encoder:
        return None
    return StageSpace.fit(torch.from_numpy(encoder.components(rows)))


def fit_embedding(
    kind: str | None,
    train: dict[str, Any],
    problem: Problem,
    settings: FitSettings,
    progress: Progress,
    second: AnyRows | None = None,
    likelihood: Tensor | None = None,
) -> Embedding | None:
    """Train the networks of each fold; `second` is another view of the rows, used half the time.

    With the `likelihood` (n, C) of the given labels, networks correct their targets during
    training, and the last epoch is kept instead of the best.
    """
    choice = problem.choice
    choice["embedder"] = kind or "identity"
    if kind is None:
        return None
    trainer = _Trainer(kind, train, problem, settings, progress)
    networks, nlls = [], []
    folds = problem.folds * problem.n_networks
    for member, fold in enumerate(folds):
        name = f"embedder {kind}, member {member + 1}"
        network, result = trainer.fit(fold, member, name, second, likelihood)
        networks.append(network)
        nlls.append(result.best_value)
        if result.interrupted and problem.is_held_out:
            break  # the networks so far predict as well as all of them would
        if result.interrupted and member + 1 < len(folds):
            progress.say(
                "Interrupted before every member had a network: networks are left out and the fit "
                "goes on with what there is."
            )
            choice["embedder"] = "identity (interrupted)"
            return None
    choice["networks"] = len(networks)
    if likelihood is None:  # else the epoch was not chosen by NLL
        choice["embedder_nll"] = nlls
    return Embedding(kind, networks)


def fit_keys(
    problem: Problem,
    settings: FitSettings,
    rows: np.ndarray,
    member: int,
    progress: Progress,
) -> Embedding:
    """Train a network on the rows at these positions, for keys with classes close together.

    A tenth of these rows, not the held-out rows, is for early stopping. The networks of a fold
    and of all rows are then trained alike, and held-out rows stay unused.
    """
    order = np.random.default_rng(settings.seed).permutation(rows)
    n_stop = max(len(rows) // _STOPS, 1)
    fold = (order[n_stop:], order[:n_stop])
    if problem.groups is not None:
        parts = make_folds(problem.labels[rows], _STOPS, settings.seed, problem.groups[rows])[0]
        fold = (rows[parts[0]], rows[parts[1]])
    train = training_settings("table", problem, settings)
    name = f"key space {member + 1} of {len(problem.folds) + 1}"
    trainer = _Trainer("table", train, problem, settings, progress)
    return Embedding("table", [trainer.fit(fold, member, name)[0]])


def fit_apart(
    kind: str,
    train: dict[str, Any],
    problem: Problem,
    settings: FitSettings,
    rows: np.ndarray,
    number: int,
    name: str,
    progress: Progress,
) -> NeighborNetwork:
    """Train a network outside the ensemble, on memory rows and their current targets."""
    apart, member = replace(problem, history=[]), problem.n_networks + number
    fold = rows, problem.folds[0][1]
    return _Trainer(kind, train, apart, settings, progress).fit(fold, member, name)[0]


@dataclass(frozen=True)
class _Trainer:
    """Trainer of networks of one kind, with training history and optional checkpoints."""

    kind: str
    train: dict[str, Any]
    problem: Problem
    settings: FitSettings
    progress: Progress

    def fit(
        self,
        fold: tuple[np.ndarray, np.ndarray],
        member: int,
        name: str,
        second: AnyRows | None = None,
        likelihood: Tensor | None = None,
    ) -> tuple[NeighborNetwork, TrainingResult]:
        """Train one network on a fold; its progress is shown under `name`."""
        kind, train, problem, settings = self.kind, self.train, self.problem, self.settings
        self.progress.stage(name)
        described = hashlib.sha256(repr(sorted(train.items())).encode()).hexdigest()[:8]
        folder = re.sub(r"[^\w.-]+", "-", kind) + f"-{described}"
        folder += f"-{member}"
        network, result = train_member(
            kind,
            problem.encoder,
            problem.rows,
            *problem.target,
            fold,
            problem.n_classes,
            train,
            seed=settings.seed + member,
            device=settings.device,
            checkpoint=settings.checkpoint and settings.checkpoint / f"embedder-{folder}",
            progress=lambda record: self.progress.epoch(name, record, train["epochs"]),
            second=second,
            options=settings.embedder_options,
            likelihood=likelihood,
            groups=problem.groups,
        )
        problem.history.extend(
            {"stage": f"embedder {kind}", "member": member} | _plain_record(record)
            for record in result.history
        )
        return network, result


def embedder_kind(problem: Problem, settings: FitSettings) -> str | None:
    """Network kind for this table, with "auto" resolved; None for no network."""
    if settings.embedder != "auto":
        return None if settings.embedder == "identity" else settings.embedder
    if problem.views:
        return "deep"
    if len(problem.labels) < _LEAST_TRAINED or problem.table[0].has_only_texts:
        return None
    if not ready_embeddings(problem.table[0]):
        return "table"
    # With fewer rows a linear model adds nearly as much to Gaussian classes, at 1/10 of the cost.
    return "deep" if len(problem.labels) > (_DEEP if problem.is_gaussian else LARGE) else None


def training_settings(kind: str, problem: Problem, settings: FitSettings) -> dict[str, Any]:
    """Training settings of a table's network, with the user's changes."""
    defaults = default_config(kind, len(problem.labels))
    return changed_by_user(defaults, settings, kind)


def changed_by_user(defaults: dict[str, Any], settings: FitSettings, kind: str) -> dict[str, Any]:
    """Apply the user's changes to a network's training settings; ValueError if they do not fit."""
    merged = defaults | settings.train
    try:
        TrainConfig(**merged)
    except ValueError as error:
        changes = ", ".join(f"{name}={value!r}" for name, value in settings.train.items())
        raise ValueError(
            f'train ({changes}) does not fit the "{kind}" network\'s own settings: '
            f"{plain_message(error)}"
        ) from error
    return merged


def _plain_record(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in ("epoch", "train_loss", "held_out_nll")}
