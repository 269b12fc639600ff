"""The stages of a fit: features, embedder, base, memory, heads, acceptance."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from nearwise.estimators.base import (
    Base,
    Candidate,
    auto_candidates,
    cross_fit,
    given_candidate,
)
from nearwise.estimators.embedding import (
    HEAD,
    EmbedderName,
    Embedding,
    default_config,
    train_member,
)
from nearwise.estimators.feature_space import FeatureSpace, choose_feature_space
from nearwise.estimators.pooling import Acceptance, accept, fit_temperature, mean_nll
from nearwise.estimators.progress import Progress
from nearwise.estimators.state import LearnedState, as_float, supervised_keys
from nearwise.estimators.table import Encoded, TableEncoder
from nearwise.estimators.views import BASE, FOLD, MemoryViews, SpaceSpec
from nearwise.functional import Metric
from nearwise.memory import IndexName, MemoryBank
from nearwise.nn import NeighborHead, Neighborhood
from nearwise.nn.neighbor_attention import Pooling
from nearwise.training import HeadConfig, HeadRows, predict_with_head, train_head

_SMALL_FOR_EMBEDDER = 400
_WIDE = 64
_TRIED = 2  # members by which the pooling is chosen


@dataclass(frozen=True)
class FitSettings:
    """Parameters of the estimator, checked and with "auto" still to be decided."""

    n_neighbors: int
    fold_neighbors: int
    embedder: EmbedderName
    base: Any
    fast: bool
    metric: Metric
    pooling: Literal["auto", "log-linear", "mixture"]
    null: bool
    num_heads: int
    k_ensemble: tuple[int, ...] | None
    adaptive_k: Literal["entropy"] | None
    calibrate: bool
    index: IndexName
    memory_budget: int
    train: dict[str, Any]
    head: HeadConfig
    seed: int
    device: str
    n_jobs: int | None
    checkpoint: Path | None


@dataclass
class Problem:
    """The training rows of one fit."""

    encoder: TableEncoder
    rows: Encoded
    labels: np.ndarray
    weight: np.ndarray | None
    n_classes: int
    folds: list[tuple[np.ndarray, np.ndarray]]

    @property
    def row_weight(self) -> Tensor:
        """Weight of each row, ones by default; float32 (n,)."""
        return torch.ones(len(self.labels)) if self.weight is None else as_float(self.weight)

    @property
    def truth(self) -> Tensor:
        """Class positions, int64 (n,)."""
        return torch.from_numpy(self.labels)


def make_folds(
    labels: np.ndarray, n_members: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Stratified folds, one a member; at most as many as the largest class has rows."""
    n_splits = max(2, min(n_members, int(np.bincount(labels).max())))
    splitter = StratifiedKFold(n_splits, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # A rare class is missing from some folds; the base's floor and the neighbors stand in.
        warnings.filterwarnings("ignore", message="The least populated class")
        return [
            (train, held_out) for train, held_out in splitter.split(np.zeros(len(labels)), labels)
        ]


def fit_state(problem: Problem, settings: FitSettings, progress: Progress) -> LearnedState:
    """Run all stages and return what predicts."""
    choice: dict[str, Any] = {}
    progress.stage("features")
    features, choice["feature_nll"] = choose_feature_space(
        problem.encoder,
        problem.rows,
        problem.labels,
        settings.n_neighbors,
        metric=settings.metric,
        seed=settings.seed,
        memory_budget=settings.memory_budget,
    )
    choice["features"] = features.kind
    history: list[dict[str, Any]] = []
    embedding = _fit_embedding(problem, settings, progress, choice, history)
    base = _fit_base(problem, settings, embedding, progress, choice)
    progress.stage("memory")
    views = _build_views(problem, settings, features, embedding, base)
    prior = torch.from_numpy(np.bincount(problem.labels, minlength=problem.n_classes)).float() + 0.5
    state = LearnedState(
        problem.encoder,
        features,
        embedding,
        base,
        [],
        views,
        Acceptance(1.0, 1.0, "none", float("nan")),
        prior / prior.sum(),
        choice=choice,
        history=history,
    )
    _fit_heads(state, problem, settings, progress)
    return state


def _fit_embedding(
    problem: Problem,
    settings: FitSettings,
    progress: Progress,
    choice: dict[str, Any],
    history: list[dict[str, Any]],
) -> Embedding | None:
    kinds = _embedder_kinds(problem, settings)
    if not kinds:
        choice["embedder"] = "identity"
        return None

    def train(kind: EmbedderName, member: int) -> tuple[Any, Any]:
        settings_ = default_config(kind, len(problem.labels), fast=settings.fast) | settings.train

        def note(record: dict[str, Any]) -> None:
            progress.epoch(f"embedder {kind}, member {member + 1}", record, settings_["epochs"])

        place = settings.checkpoint and settings.checkpoint / f"embedder-{kind}-{member}"
        network, result = train_member(
            kind,
            problem.encoder,
            problem.rows,
            problem.labels,
            problem.weight,
            problem.folds[member],
            problem.n_classes,
            settings_,
            seed=settings.seed + member,
            device=settings.device,
            checkpoint=place,
            progress=note,
        )
        history.extend(
            {"stage": f"embedder {kind}", "member": member} | _plain_record(record)
            for record in result.history
        )
        return network, result

    firsts = {kind: train(kind, 0) for kind in kinds}
    best = min(firsts, key=lambda kind: firsts[kind][1].best_nll)
    choice["embedder"] = best
    choice["embedder_nll"] = {kind: result.best_nll for kind, (_, result) in firsts.items()}
    networks = [firsts[best][0]]
    interrupted = firsts[best][1].interrupted
    for member in range(1, len(problem.folds)):
        if interrupted:
            break
        network, result = train(best, member)
        networks.append(network)
        interrupted = result.interrupted
    if len(networks) < len(problem.folds):
        progress.say(
            "Interrupted before every member had an embedder: the trained space is left out and "
            "the fit goes on with what there is."
        )
        choice["embedder"] = "identity (interrupted)"
        return None
    return Embedding(best, networks)


def _embedder_kinds(problem: Problem, settings: FitSettings) -> list[EmbedderName]:
    n, width = len(problem.labels), len(problem.encoder.columns)
    if settings.embedder == "identity":
        return []
    if settings.embedder != "auto":
        return [settings.embedder]
    if n < _SMALL_FOR_EMBEDDER or (settings.fast and n > 5_000):
        return []
    if width >= _WIDE and n > 5_000:
        return ["deep"]
    return ["table", "deep"] if not settings.fast else ["table"]


def _fit_base(
    problem: Problem,
    settings: FitSettings,
    embedding: Embedding | None,
    progress: Progress,
    choice: dict[str, Any],
) -> Base | None:
    if settings.base is None:
        choice["base"] = None
        return None
    candidates = _candidates(problem, settings)
    extra = None
    if embedding is not None and embedding.has_head and settings.base == "auto":
        out = np.zeros((len(problem.labels), problem.n_classes))
        for member, (_, held_out) in enumerate(problem.folds):
            rows = problem.rows.take(held_out)
            out[held_out] = embedding.head_log_proba(member, problem.encoder, rows)
        extra = {HEAD: out}
    base = cross_fit(
        candidates,
        problem.encoder,
        problem.rows,
        problem.labels,
        problem.weight,
        problem.folds,
        problem.n_classes,
        extra=extra,
        progress=progress.stage,
    )
    choice["base"] = {name: round(gate, 4) for name, gate in base.gates.items()}
    choice["base_nll"] = base.nll
    return base


def _candidates(problem: Problem, settings: FitSettings) -> list[Candidate]:
    if not isinstance(settings.base, str):
        return [given_candidate(settings.base)]
    return auto_candidates(
        problem.encoder,
        len(problem.labels),
        problem.n_classes,
        fast=settings.fast,
        seed=settings.seed,
        n_jobs=settings.n_jobs,
    )


def _build_views(
    problem: Problem,
    settings: FitSettings,
    features: FeatureSpace,
    embedding: Embedding | None,
    base: Base | None,
) -> MemoryViews:
    keys: dict[str, Tensor] = {"features": features(problem.encoder, problem.rows)}
    folds = torch.zeros(len(problem.labels), 1)
    for member, (_, held_out) in enumerate(problem.folds):
        folds[held_out] = member
    keys[FOLD] = folds
    everyone = min(settings.n_neighbors, len(problem.labels) - 1)
    plan: list[tuple[str, Literal["all", "fold"], bool, Metric, int]] = [
        ("features", "all", False, settings.metric, everyone)
    ]
    if base is not None:
        keys[BASE] = as_float(base.oof_log_proba)
        keys["supervised"] = supervised_keys(keys["features"], keys[BASE])
        smallest = min(len(held_out) for _, held_out in problem.folds)
        if smallest > 2:
            in_fold = min(settings.fold_neighbors, smallest - 1)
            plan.append(("supervised", "fold", False, "euclidean", in_fold))
    if embedding is not None:
        for member in range(len(problem.folds)):
            keys[f"trained_{member}"] = embedding.keys(member, problem.encoder, problem.rows)
        plan.append(("trained", "all", True, "euclidean", everyone))
    weight = None if problem.weight is None else as_float(problem.weight)
    bank = MemoryBank(keys, problem.truth, sample_weight=weight, n_classes=problem.n_classes)
    views = MemoryViews(bank, [], settings.index, settings.memory_budget)
    for name, scope, per_member, metric, k in plan:
        spec = SpaceSpec(name, scope, per_member, metric, 1.0, k)
        views.specs.append(_measured(views, spec))
    for spec in views.specs:
        _note_reliability(views, spec, len(problem.folds))
    return views


def _measured(views: MemoryViews, spec: SpaceSpec) -> SpaceSpec:
    """Set the unit of a space to its median neighbor distance, over at most 1,000 rows."""
    rows = views.rows(spec, 0)
    some = rows[:: max(1, len(rows) // 1000)]
    keys = views.bank.keys[spec.key(0)][some]
    found = views.search(spec, 0, keys, spec.n_neighbors, views.bank.ids[some])
    positive = found.distances[found.distances > 0]
    unit = float(positive.median()) if len(positive) else 1.0
    return SpaceSpec(**(spec.to_json() | {"unit": unit}))


def _note_reliability(views: MemoryViews, spec: SpaceSpec, n_members: int) -> None:
    """Store each row's reliability as a column of the bank."""
    bank = views.bank
    for member in range(n_members):
        if spec.scope == "fold":
            own = bank.keys[FOLD][:, :1] == member
            before = bank.keys.get(spec.side, torch.full((len(bank), 1), 0.5))
            bank.keys[spec.side] = torch.where(own, views.reliability(spec, member), before)
        elif member == 0 and not spec.per_member:
            bank.keys[spec.side] = views.reliability(spec, member)


def _fit_heads(
    state: LearnedState, problem: Problem, settings: FitSettings, progress: Progress
) -> None:
    progress.stage("neighborhoods")
    data = _cross_fitted_rows(state, problem)
    poolings: list[Pooling] = [settings.pooling] if settings.pooling != "auto" else ["log-linear"]
    if settings.pooling == "auto" and state.base is not None and not settings.fast:
        poolings.append("mixture")
    tried = {
        pooling: _cross_fit_heads(state, problem, settings, data, pooling, _TRIED, progress)
        for pooling in poolings
    }
    judged = torch.cat([torch.from_numpy(rows) for _, rows in problem.folds[:_TRIED]])
    tried_nll = {
        pooling: mean_nll(fit.log_proba[judged], problem.truth[judged], problem.row_weight[judged])
        for pooling, fit in tried.items()
    }
    best = min(tried_nll, key=lambda pooling: tried_nll[pooling])
    fit = _cross_fit_heads(
        state, problem, settings, data, best, len(problem.folds), progress, tried[best]
    )
    state.heads = fit.heads
    oof_nll = mean_nll(fit.log_proba, problem.truth, problem.row_weight)
    base = data.base_log_proba if state.base is not None else None
    state.part_temperatures = tuple(
        fit_temperature(part, problem.truth, problem.row_weight)[0]
        for part in (data.base_log_proba, fit.alone)
    )
    state.acceptance = (
        accept(fit.log_proba, base, problem.truth, problem.row_weight)
        if settings.calibrate
        else Acceptance(1.0, 1.0, "none (calibration=None)", oof_nll)
    )
    state.choice |= {
        "pooling": best,
        "pooling_nll": tried_nll,
        "head_nll": oof_nll,
        "head_share": state.acceptance.share,
        "spaces": [spec.name for spec in state.views.specs],
    }


def _cross_fitted_rows(state: LearnedState, problem: Problem) -> HeadRows:
    """Every training row as its own member sees it: as a new row, itself left out."""
    order = [torch.from_numpy(held_out) for _, held_out in problem.folds]
    views = [state.look_again(member, positions) for member, positions in enumerate(order)]
    back = torch.argsort(torch.cat(order))
    spaces = [
        Neighborhood(*(torch.cat(parts)[back] for parts in zip(*seen, strict=True)))
        for seen in zip(*(view.spaces for view in views), strict=True)
    ]
    base = torch.cat([view.base_log_proba for view in views])[back]
    return HeadRows(spaces, base, problem.truth, problem.row_weight)


class _CrossFit(NamedTuple):
    """Heads, and out-of-fold log-probabilities (n, C): pooled, and of the neighbors alone."""

    heads: list[NeighborHead]
    log_proba: Tensor
    alone: Tensor


def _cross_fit_heads(
    state: LearnedState,
    problem: Problem,
    settings: FitSettings,
    data: HeadRows,
    pooling: Pooling,
    n_members: int,
    progress: Progress,
    begun: _CrossFit | None = None,
) -> _CrossFit:
    """Fit the first `n_members` heads, each stopped on its fold; go on from those begun."""
    empty = torch.zeros(len(problem.labels), problem.n_classes)
    fit = begun or _CrossFit([], empty, empty.clone())
    for member in range(len(fit.heads), min(n_members, len(problem.folds))):
        train, held_out = problem.folds[member]
        rows = torch.from_numpy(held_out)
        head = _make_head(state, settings, pooling, len(data.spaces), settings.seed + member)

        def note(record: dict[str, Any], member: int = member) -> None:
            progress.epoch(f"{pooling} head, member {member + 1}", record, settings.head.epochs)

        held = data.take(rows)
        records = train_head(
            head,
            data.take(torch.from_numpy(train)),
            held,
            settings.head,
            seed=settings.seed + member,
            progress=note,
        )
        state.history.extend(
            {"stage": f"{pooling} head", "member": member} | record for record in records
        )
        output = predict_with_head(head, held.spaces, held.base_log_proba)
        fit.log_proba[rows], fit.alone[rows] = output.log_proba, output.neighbor_log_proba
        fit.heads.append(head)
    return fit


def _make_head(
    state: LearnedState, settings: FitSettings, pooling: Pooling, n_spaces: int, seed: int
) -> NeighborHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NeighborHead(
            n_spaces,
            state.prior,
            has_base=state.base is not None,
            pooling=pooling,
            num_heads=settings.num_heads,
            null=settings.null,
            k_ensemble=settings.k_ensemble,
            adaptive_k=settings.adaptive_k,
        )


def _plain_record(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in ("epoch", "train_loss", "held_out_nll")}
