"""The stages of a fit: features, embedder, base, memory, heads, acceptance."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.fit.base import (
    Base,
    Candidate,
    auto_candidates,
    cross_fit,
    given_candidate,
)
from nearwise.classifier.fit.embedding import (
    HEAD,
    AnyRows,
    Embedding,
    default_config,
    train_member,
)
from nearwise.classifier.fit.feature_space import choose_feature_space
from nearwise.classifier.fit.head_fitting import fit_heads
from nearwise.classifier.fit.problem import FitSettings, Problem
from nearwise.classifier.fit.progress import Progress
from nearwise.classifier.inputs.table import LARGE, ready_embeddings
from nearwise.classifier.model.class_prior import capped_rows
from nearwise.classifier.model.gates import pooled
from nearwise.classifier.model.memory_views import (
    BASE,
    FINDABLE,
    FOLD,
    MemoryViews,
    SpaceSpec,
)
from nearwise.classifier.model.predictor import Predictor, as_float
from nearwise.classifier.model.row_models import FeatureSpace, FoldModels, supervised_keys
from nearwise.functional import topk_neighbors
from nearwise.memory import MemoryBank
from nearwise.nn import NeighborNetwork
from nearwise.training import TrainConfig
from nearwise.training.settings import plain_message

_SMALL_FOR_EMBEDDER = 400
_SHARPNESS, _SURE = 4.0, 0.98  # of plain votes: per median distance, and beside even shares


def cross_fit_problem(problem: Problem, settings: FitSettings, progress: Progress) -> Predictor:
    """Run all stages and return what predicts."""
    kind = embedder_kind(problem, settings)
    train = {} if kind is None else training_settings(kind, problem, settings)
    features = fit_features(problem, np.arange(len(problem.labels)), settings, progress)
    keys = features(*problem.table)
    settings.label_fitter.fit(problem, settings, lambda: keys, progress)
    if kind == "table" and settings.embedder == "auto":  # it has no part in the base

        def earns(network: NeighborNetwork) -> bool:
            return _earns_its_space(network, problem, settings, keys, base)

        base = _fit_base(problem, settings, None, progress)
        embedding = fit_embedding(kind, train, problem, settings, progress, earns=earns)
    else:
        embedding = fit_embedding(kind, train, problem, settings, progress)
        base = _fit_base(problem, settings, embedding, progress)
    progress.stage("memory")
    views = _build_views(problem, settings, keys, embedding, base)
    encoder, _ = problem.table
    n_members = len(problem.folds)
    predictor = Predictor(
        encoder=encoder,
        row_models=FoldModels(encoder, features, embedding, base, n_members),
        views=views,
        prior=problem.prior,
        choice=problem.choice,
        history=problem.history,
    )
    return fit_heads(predictor, problem, settings, progress)


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
        settings.n_neighbors,
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
    earns: Callable[[NeighborNetwork], bool] | None = None,
) -> Embedding | None:
    """Train one network per fold; `second` is another view of the rows, taken half the time.

    `earns` says of the first network whether the others shall be trained.
    """
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
                "Interrupted before every member had an embedder: the trained space is left out "
                "and the fit goes on with what there is."
            )
            choice["embedder"] = "identity (interrupted)"
            return None
        if earns is not None and not member and not earns(network):
            choice["embedder"] = f"identity ({kind} brought nothing)"
            return None
    choice["embedder_nll"], choice["networks"] = nlls, len(networks)
    return Embedding(kind, networks)


def _earns_its_space(
    network: NeighborNetwork,
    problem: Problem,
    settings: FitSettings,
    features: Tensor,
    base: Base | None,
) -> bool:
    """Whether votes in the first member's trained space add to the base and to other votes.

    They are pooled on the rows that the member held out, and must lower the NLL by more than two
    parameters do by chance, 1/n: their power, and the epoch, which these rows have chosen.
    """
    train, held_out = problem.folds[0]
    own = Embedding("table", [network]).keys(0, problem.encoder, problem.rows)
    parts = {} if base is None else {BASE: base.oof_log_proba[held_out]}
    for name, keys in (("features", features), ("trained", own)):
        found = topk_neighbors(
            keys[held_out],
            keys[train],
            min(settings.n_neighbors, len(train)),
            metric=settings.metric if name == "features" else "euclidean",
            memory_budget=settings.memory_budget,
        )
        unit = found.distances.median().clamp_min(1e-12)
        share = torch.softmax(-_SHARPNESS * found.distances / unit, dim=1).double()
        labels = problem.truth[torch.from_numpy(train)][found.indices]
        vote = share.new_zeros(len(held_out), problem.n_classes).scatter_add_(1, labels, share)
        parts[name] = np.log(_SURE * vote.numpy() + (1 - _SURE) / problem.n_classes)
    some = problem.labels[held_out], None if problem.weight is None else problem.weight[held_out]
    with_own = pooled(parts, *some, problem.label_model).nll
    del parts["trained"]
    return pooled(parts, *some, problem.label_model).nll - with_own > 1 / len(held_out)


def embedder_kind(problem: Problem, settings: FitSettings) -> str | None:
    """Decide what "auto" means for this table; None for no network."""
    n = len(problem.labels)
    if settings.embedder == "identity":
        return None
    if settings.embedder != "auto":
        return settings.embedder
    if n < _SMALL_FOR_EMBEDDER or (settings.fast and n > LARGE):
        return None
    return "deep" if n > LARGE and ready_embeddings(problem.table[0]) else "table"


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


def _fit_base(
    problem: Problem,
    settings: FitSettings,
    embedding: Embedding | None,
    progress: Progress,
) -> Base | None:
    choice = problem.choice
    if settings.base is None:
        choice["base"] = None
        return None
    candidates, extra = _candidates(problem, settings), None
    if embedding is not None and embedding.has_head and settings.base == "auto":
        if len(problem.labels) > LARGE and ready_embeddings(problem.table[0]):
            candidates = []  # the network is ahead of a linear model, which would cost more time
        out = np.zeros((len(problem.labels), problem.n_classes))
        for member, (_, held_out) in enumerate(problem.folds):
            rows = problem.rows.take(held_out)
            out[held_out] = embedding.head_log_proba(member, problem.encoder, rows).numpy()
        extra = {HEAD: out}
    base = cross_fit(
        candidates,
        *problem.table,
        problem.labels,
        problem.weight,
        problem.folds,
        problem.n_classes,
        extra=extra,
        label_model=problem.label_model,
        progress=progress.stage,
    )
    choice["base"] = {name: round(gate, 4) for name, gate in base.gates.items()}
    choice["base_nll"] = base.nll
    return base


def _candidates(problem: Problem, settings: FitSettings) -> list[Candidate]:
    if not isinstance(settings.base, str):
        return [given_candidate(settings.base)]
    return auto_candidates(
        problem.table[0],
        len(problem.labels),
        problem.n_classes,
        fast=settings.fast,
        seed=settings.seed,
        n_jobs=settings.n_jobs,
    )


def _build_views(
    problem: Problem,
    settings: FitSettings,
    features: Tensor,
    embedding: Embedding | None,
    base: Base | None,
) -> MemoryViews:
    keys: dict[str, Tensor] = {"features": features}
    folds = torch.zeros(len(problem.labels), dtype=torch.int64)
    for member, (_, held_out) in enumerate(problem.folds):
        folds[held_out] = member
    columns = {FOLD: folds}
    findable = np.ones(len(problem.labels), dtype=bool)
    weight = None if problem.weight is None else as_float(problem.weight)
    if settings.max_per_class is not None:
        votes, stands_for = capped_rows(problem.labels, settings.max_per_class, settings.seed)
        findable = np.isin(np.arange(len(findable)), votes)
        columns[FINDABLE] = torch.from_numpy(findable)
        weight = problem.row_weight.clone()
        weight[torch.from_numpy(votes)] *= as_float(stands_for)
    everyone = min(settings.n_neighbors, int(findable.sum()) - 1)
    specs = [SpaceSpec("features", "all", False, settings.metric, 1.0, everyone)]
    if base is not None:
        columns[BASE] = as_float(base.oof_log_proba)
        keys["supervised"] = supervised_keys(keys["features"], columns[BASE])
        smallest = min(int(findable[held_out].sum()) for _, held_out in problem.folds)
        if smallest > 2:
            in_fold = min(settings.fold_neighbors, smallest - 1)
            specs.append(SpaceSpec("supervised", "fold", False, "euclidean", 1.0, in_fold))
    if embedding is not None:
        for member in range(len(problem.folds)):
            keys[f"trained_{member}"] = embedding.keys(member, problem.encoder, problem.rows)
        specs.append(SpaceSpec("trained", "all", True, "euclidean", 1.0, everyone))
    columns |= problem.label_model.columns(torch.arange(len(problem.labels)))
    bank = MemoryBank(
        keys,
        problem.truth,
        sample_weight=weight,
        n_classes=problem.n_classes,
        columns=columns,
    )
    return measured_views(bank, specs, problem, settings, len(problem.folds))


def measured_views(
    bank: MemoryBank,
    specs: list[SpaceSpec],
    problem: Problem,
    settings: FitSettings,
    n_members: int,
) -> MemoryViews:
    """Open a filled bank for searches; take the spaces' units and the rows' reliability from it."""
    views = MemoryViews(
        bank,
        [],
        settings.index,
        settings.memory_budget,
        settings.search_device,
        problem.label_model.remembered(),
    )
    return views.measure(specs, n_members)


def _plain_record(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in ("epoch", "train_loss", "held_out_nll")}
