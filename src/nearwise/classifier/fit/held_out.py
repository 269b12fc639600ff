"""A fit on one split: networks and memory from most rows, heads and calibration from the rest."""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.fit.cross_fitting import cross_fit_table
from nearwise.classifier.fit.head_fitting import accept_heads, choose_heads, correct_classes
from nearwise.classifier.fit.image_networks import fit_image_networks
from nearwise.classifier.fit.networks import (
    embedder_kind,
    fit_embedding,
    fit_features,
    training_settings,
)
from nearwise.classifier.fit.parameter_checks import check_held_out
from nearwise.classifier.fit.problem import FitSettings, Problem, Unseen, make_folds
from nearwise.classifier.inputs.images import ImageEncoder
from nearwise.classifier.inputs.table import Encoded
from nearwise.classifier.model.class_prior import capped_rows
from nearwise.classifier.model.label_model import LabelModel
from nearwise.classifier.model.learned_rows import held_digests
from nearwise.classifier.model.log_linear_pool import (
    Answer,
    Calibration,
    Merge,
    fit_temperature,
    merge_answers,
)
from nearwise.classifier.model.memory_views import (
    FOLD,
    MemoryViews,
    Retrieval,
    SpaceSpec,
    below_each_other,
)
from nearwise.classifier.model.predictor import HeldOut, Predictor, as_float
from nearwise.classifier.model.row_models import KeyedRows, RowModels, TableNetworks, average_views
from nearwise.classifier.progress import Progress
from nearwise.data import hold_out
from nearwise.functional.threads import one_thread, own_threads
from nearwise.memory import MemoryBank
from nearwise.training import HeadRows

N_HEADS = 5
_NETWORKS = 3  # that share the memory of a table
_EPOCHS_OF_VIEWS = 12
_RIDGE = 2.0  # pull of the temperatures towards 1, in rows


def fit_problem(problem: Problem, settings: FitSettings, progress: Progress) -> Predictor:
    """Cross-fit or hold rows out once, by the settings."""
    images = isinstance(problem.encoder, ImageEncoder)
    with own_threads() if images else one_thread(settings.n_jobs):
        return _fit(problem, settings, progress)


def _fit(problem: Problem, settings: FitSettings, progress: Progress) -> Predictor:
    if not isinstance(share := settings.cv, float):
        return cross_fit_table(problem, settings, progress)
    n_networks = 1 if isinstance(problem.encoder, ImageEncoder) else _NETWORKS
    check_held_out(len(problem.labels), problem.n_classes, share)
    folds = settings.folds or [hold_out(problem.labels, share, settings.seed)]
    problem.folds = folds * n_networks
    if problem.weight is not None and not problem.weight[problem.folds[0][1]].any():
        raise ValueError(
            "Every row that was held out has sample_weight 0, so nothing can be fitted to them. "
            "Drop the rows without weight, or change random_state."
        )
    return fit_shared(problem, settings, progress)


def fit_shared(problem: Problem, settings: FitSettings, progress: Progress) -> Predictor:
    """Train on most rows, remember them, and fit heads and temperatures to the others.

    `problem.folds` holds, once for each network, the positions of the rows for the memory and of
    the rows held out.
    """
    memory, held_out = problem.folds[0]
    stands_for = np.ones(len(memory))
    if settings.max_per_class is not None:
        labels = problem.labels[memory]
        votes, stands_for = capped_rows(labels, settings.max_per_class, settings.seed)
        memory = memory[votes]
    choice = problem.choice
    choice["held_out"] = len(held_out)
    images = isinstance(problem.encoder, ImageEncoder)
    fit_networks = fit_image_networks if images else fit_table_networks
    row_models: RowModels = fit_networks(problem, settings, progress)
    choice["base"] = "the networks' heads" if row_models.has_base else None
    progress.stage("memory")
    views = [problem.rows, *problem.views]
    remembered = average_views([row_models(view.take(memory)) for view in views])
    progress.stage("neighborhoods")
    keyed = [row_models(view.take(held_out)) for view in views]
    truth = problem.truth[torch.from_numpy(held_out)]
    weight = problem.row_weight[torch.from_numpy(held_out)]
    folds = make_folds(problem.labels[held_out], N_HEADS, settings.seed)
    digests = held_digests(problem.rows.take(held_out))
    predictor = Predictor(
        encoder=problem.encoder,
        row_models=row_models,
        views=_remember(remembered, problem, memory, stands_for, settings),
        prior=problem.prior,
        choice=choice,
        history=problem.history,
        held=HeldOut([rows.cpu() for rows in keyed], truth, _numbered(folds), weight, digests),
        tta=problem.tta,
        n_views=len(views),
    )
    looks = [predictor.retrieval(rows) for rows in keyed]
    data = _head_rows(looks, truth, weight, problem.label_model)
    repeated = replace(
        problem,
        labels=data.labels.cpu().numpy(),
        weight=data.weight.cpu().numpy(),
        folds=[_of_all_views(fold, len(truth), len(views)) for fold in folds],
    )
    fit = choose_heads(predictor, repeated, settings, data, progress)
    first = torch.arange(len(truth))
    ridge = _RIDGE / len(truth)
    of_first, data = fit.take(first), data.take(first)
    predictor = accept_heads(predictor, of_first, data, problem, settings, ridge=ridge)
    if len(views) == 1:
        return predictor
    progress.stage("views")
    merge, merged, of_views = _calibrate_views(predictor, looks, problem.label_model, settings)
    scores = merged.log_proba / of_views.whole
    corrected = correct_classes(predictor, scores, data, problem, settings)
    return replace(predictor, merge=merge, of_views=of_views._replace(classes=corrected))


def fit_table_networks(
    problem: Problem, settings: FitSettings, progress: Progress
) -> TableNetworks:
    """Choose the feature space and train the networks of a table or of ready embeddings."""
    encoder, rows = problem.table
    kind = embedder_kind(problem, settings)
    train = {} if kind is None else training_settings(kind, problem, settings)
    if kind is not None and problem.views and "epochs" not in settings.train:
        train["epochs"] = max(train["epochs"], _EPOCHS_OF_VIEWS)
    features = fit_features(problem, problem.folds[0][0], settings, progress)

    def unseen() -> Unseen:
        label_free = TableNetworks(encoder, features, None)
        views = [label_free(cast(Encoded, view)) for view in (rows, *problem.views)]
        return Unseen(average_views(views).keys["features"])

    settings.label_fitter.fit(problem, settings, unseen, progress)
    second = problem.views[0] if problem.views else None
    embedding = fit_embedding(kind, train, problem, settings, progress, second)
    use_head = settings.base is not None
    return TableNetworks(encoder, features, embedding, use_head)


def _remember(
    keyed: KeyedRows,
    problem: Problem,
    memory: np.ndarray,
    stands_for: np.ndarray,
    settings: FitSettings,
) -> MemoryViews:
    """Fill the memory; ids are the rows' positions among the training rows."""
    rows = torch.from_numpy(memory)
    weight = None
    if problem.weight is not None or settings.max_per_class is not None:
        weight = problem.row_weight[rows] * as_float(stands_for)
    keys = keyed.cpu().keys
    bank = MemoryBank(
        keys,
        problem.truth[rows],
        ids=rows,
        sample_weight=weight,
        n_classes=problem.n_classes,
        columns={FOLD: torch.full((len(rows),), -1)} | problem.label_model.columns(rows),
        next_id=len(problem.labels),
    )
    k = min(settings.n_neighbors, len(rows) - 1)
    specs = [
        SpaceSpec(name, settings.metric if name == "features" else "euclidean", 1.0, k)
        for name in keys
    ]
    options = (settings.index, settings.memory_budget, settings.search_device)
    return MemoryViews(bank, [], *options, problem.label_model.remembered()).measure(specs)


def _head_rows(
    looks: list[Retrieval], truth: Tensor, weight: Tensor, label_model: LabelModel
) -> HeadRows:
    """All views of the held-out rows, one after the other."""
    spaces, base = below_each_other(looks)
    truth, weight = truth.to(base.device), weight.to(base.device)
    repeated = truth.repeat(len(looks)), weight.repeat(len(looks))
    return HeadRows(spaces, base, *repeated, label_model.given_log_proba)


def _numbered(folds: list[tuple[np.ndarray, np.ndarray]]) -> Tensor:
    """Fold of every row, int64 (n,)."""
    numbers = torch.zeros(sum(len(held_out) for _, held_out in folds), dtype=torch.int64)
    for fold, (_, held_out) in enumerate(folds):
        numbers[held_out] = fold
    return numbers


def _of_all_views(
    fold: tuple[np.ndarray, np.ndarray], n_rows: int, n_views: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of a fold's rows in all views: a row's views stay on one side of the split."""
    starts = n_rows * np.arange(n_views)[:, None]
    train, held_out = ((starts + part).ravel() for part in fold)
    return train, held_out


def _calibrate_views(
    predictor: Predictor, looks: list[Retrieval], label_model: LabelModel, settings: FitSettings
) -> tuple[Merge, Answer, Calibration]:
    """Choose how views are merged, and fit the temperatures to the merged predictions."""
    held, n_classes = predictor.held, len(predictor.prior)
    assert held is not None  # views are merged where rows were held out
    each = [predictor.out_of_fold(look, n_classes) for look in looks]
    wanted = settings.tta_merge
    merges: tuple[Merge, ...] = ("probabilities", "logits") if wanted == "auto" else (wanted,)
    nlls: dict[str, float] = {}
    for merge in merges:
        if merge == "embeddings":
            look = predictor.retrieval(average_views(held.keyed))
            merged = predictor.out_of_fold(look, n_classes)
        else:
            merged = merge_answers(each, merge)
        parts = (merged.log_proba, merged.base_log_proba, merged.neighbor_log_proba)
        ridge = _RIDGE / len(held.labels)
        labelled = (held.labels, held.weight, label_model)
        fits = [fit_temperature(part, *labelled, ridge=ridge) for part in parts]
        nlls[merge] = fits[0][1]
        if min(nlls, key=nlls.__getitem__) == merge:
            whole = fits[0][0] if settings.calibrate else 1.0
            best = merge, merged, Calibration(whole, fits[1][0], fits[2][0])
    predictor.choice.update(merge=best[0], merge_nll=nlls)
    return best
