"""The feature space of a fit, and the training of its networks."""

import hashlib
import re
from typing import Any

import numpy as np

from nearwise.classifier.fit.embedding import AnyRows, Embedding, default_config, train_member
from nearwise.classifier.fit.feature_space import choose_feature_space
from nearwise.classifier.fit.problem import FitSettings, Problem
from nearwise.classifier.fit.progress import Progress
from nearwise.classifier.inputs.table import LARGE, ready_embeddings
from nearwise.classifier.model.row_models import FeatureSpace
from nearwise.training import TrainConfig
from nearwise.training.settings import plain_message


def fit_features(
    problem: Problem, positions: np.ndarray, settings: FitSettings, progress: Progress
) -> FeatureSpace:
    """Choose the feature space of a table by the rows at these positions."""
    progress.stage("features")
    encoder, rows = problem.table
    features, problem.choice["feature_nll"] = choose_feature_space(
        encoder,
        rows.take(positions),
        problem.labels[positions],
        min(settings.n_neighbors, len(positions) - 1),
        metric=settings.metric,
        seed=settings.seed,
        memory_budget=settings.memory_budget,
    )
    problem.choice["features"] = features.kind
    return features


def fit_embedding(
    kind: str | None,
    train: dict[str, Any],
    problem: Problem,
    settings: FitSettings,
    progress: Progress,
    second: AnyRows | None = None,
) -> Embedding | None:
    """Train one network per fold; `second` is another view of the rows, taken half the time."""
    choice = problem.choice
    choice["embedder"] = kind or "identity"
    if kind is None:
        return None
    networks, nlls = [], []
    described = hashlib.sha256(repr(sorted(train.items())).encode()).hexdigest()[:8]
    name = re.sub(r"[^\w.-]+", "-", kind) + f"-{described}"
    name += problem.label_model.checkpoint_tag
    for member, fold in enumerate(problem.folds):

        def note(record: dict[str, Any], member: int = member) -> None:
            progress.epoch(f"embedder {kind}, member {member + 1}", record, train["epochs"])

        network, result = train_member(
            kind,
            problem.encoder,
            problem.rows,
            *problem.target(member),
            fold,
            problem.n_classes,
            train,
            seed=settings.seed + member,
            device=settings.device,
            checkpoint=settings.checkpoint and settings.checkpoint / f"embedder-{name}-{member}",
            progress=note,
            second=second,
            options=settings.embedder_options,
        )
        networks.append(network)
        nlls.append(result.best_value)
        problem.history.extend(
            {"stage": f"embedder {kind}", "member": member} | _plain_record(record)
            for record in result.history
        )
        if result.interrupted and settings.validation_fraction is not None:
            break  # the networks so far share the memory as well as all of them would
        if result.interrupted and member + 1 < len(problem.folds):
            progress.say(
                "Interrupted before every member had a network: networks are left out and the fit "
                "goes on with what there is."
            )
            choice["embedder"] = "identity (interrupted)"
            return None
    choice["embedder_nll"], choice["networks"] = nlls, len(networks)
    return Embedding(kind, networks)


def embedder_kind(problem: Problem, settings: FitSettings) -> str | None:
    """Decide what "auto" means for this table; None for no network."""
    if settings.embedder != "auto":
        return None if settings.embedder == "identity" else settings.embedder
    if settings.validation_fraction is not None:
        return "deep"
    many = len(problem.labels) > LARGE and ready_embeddings(problem.table[0])
    return "deep" if many and not settings.fast else None


def training_settings(kind: str, problem: Problem, settings: FitSettings) -> dict[str, Any]:
    """Give the training settings of a table's network, changed as the user says."""
    defaults = default_config(kind, len(problem.labels), fast=settings.fast)
    return changed_by_user(defaults, settings, kind)


def changed_by_user(defaults: dict[str, Any], settings: FitSettings, kind: str) -> dict[str, Any]:
    """Change a network's training settings as the user says; refused before anything is fitted."""
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
