"""The fit of a table, around the head that other tables have trained."""

import copy
import math
import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.ensemble import ExtraTreesClassifier
from torch import Tensor

from nearwise.classifier.fit.as_arrays import as_arrays
from nearwise.classifier.fit.base import (
    RIDGE,
    Base,
    Candidate,
    auto_candidates,
    cross_fit,
    floored_log,
    forest_settings,
    given_candidate,
)
from nearwise.classifier.fit.embedding import HEAD, Embedding
from nearwise.classifier.fit.head_fitting import CrossFit, accept_heads, cross_fit_heads
from nearwise.classifier.fit.networks import (
    embedder_kind,
    fit_embedding,
    fit_features,
    fit_keys,
    training_settings,
)
from nearwise.classifier.fit.problem import (
    FitSettings,
    Problem,
    Unseen,
    auto_folds,
    cross_fit_folds,
)
from nearwise.classifier.inputs.labels import judging_weight
from nearwise.classifier.inputs.table import LARGE, ready_embeddings
from nearwise.classifier.model.class_prior import capped_rows
from nearwise.classifier.model.gates import tempered_nll
from nearwise.classifier.model.label_model import LabelModel
from nearwise.classifier.model.log_linear_pool import clearly_better, mean_nll
from nearwise.classifier.model.memory_views import (
    BASE,
    FINDABLE,
    FOLD,
    OPINION,
    TRAINED,
    Retrieval,
    SpaceSpec,
    below_each_other,
)
from nearwise.classifier.model.predictor import Predictor, as_float
from nearwise.classifier.model.pretrained_views import PretrainedViews
from nearwise.classifier.model.row_models import FOREST, TableModels, supervised_keys
from nearwise.classifier.progress import Progress
from nearwise.memory import MemoryBank
from nearwise.nn import NeighborSet, PretrainedNeighborHead, shared_head
from nearwise.training import HeadConfig, HeadRows

_JUDGED = 2_000  # remembered rows that temperatures are fitted to, each left out
_FEW = 32  # rows below which learning on the table makes predictions too sure
_TUNED = 3  # folds whose heads are trained further
_TUNED_OF_FEW = 500, 5  # up to so many rows as many folds: fewer rows would judge too little
_TRAINING = {
    "lr": 2e-3,
    "weight_decay": 0.0,
    "epochs": 12,
    "patience": 3,
    "batch_size": 128,
    "neighbor_weight": 0.2,
}
_NEIGHBORS = "neighbors"
_WORTH = 0.05  # share of the NLL by which neighbors, and a trained key space, have to lower it


class _FromPretrained(HeadConfig):
    """Short training that starts from the pretrained head."""

    def make_head(self, n_spaces: int, prior: Tensor, **options: Any) -> Any:
        """Copy the pretrained head; it takes any number of spaces and any class shares."""
        return copy.deepcopy(shared_head()).requires_grad_(True)


def cross_fit_table(
    problem: Problem, n_members: int | Literal["auto"], settings: FitSettings, progress: Progress
) -> Predictor:
    """Map the features, fit a forest, remember the rows, and take the pretrained head.

    Each row has the forest's out-of-bag prediction, by trees that did not see it. With the preset
    "instant", and for few rows, temperatures are fitted to remembered rows, each left out; without
    a base nothing then depends on a row's own label. Else the head is trained further, and a
    trained key space and other classifiers join, by rows of one fold at a time, which are found in
    a memory and predicted by classifiers of the other folds, as new rows will be. Later the forest,
    the key space and the memory are of all rows, and of the other classifiers the mean over the
    folds predicts.
    """
    every = np.arange(len(problem.labels))
    features = fit_features(problem, every, settings, progress)
    spaces = {"features": features(*problem.table)}
    base: Base | None = None
    data = opinion = embedding = None
    if _learns(problem, n_members, settings):
        if n_members == "auto":
            n_members = auto_folds(len(every), fast=settings.fast)
        problem.folds = cross_fit_folds(problem.labels, n_members, settings.seed)
        settings.label_fitter.fit(problem, settings, lambda: Unseen(spaces["features"]), progress)
        embedding = _networks(problem, settings, progress)
        base, data = _cross_fitted(problem, settings, spaces["features"], embedding, progress)
    if embedding is not None and (base is None or not base.asks(HEAD)):
        embedding = None
    every_label = problem.label_model.of_all(problem.folds)
    if problem.choice.get("embedder") == "table":
        target = every_label.target(0, problem.labels, problem.weight)
        n_folds = len(problem.folds)
        embedding = fit_keys(problem, settings, every, target, n_folds, progress)
        spaces[TRAINED] = embedding.keys(0, *problem.table)
    if _takes_forest(problem, settings):
        progress.stage("forest")
        forest, opinion = _forest(problem, settings, every, every_label)
        if base is None:
            base = Base([], {FOREST: 1.0}, problem.n_classes)
            base.oof_log_proba = opinion.double().numpy()
            weight = judging_weight(problem.labels, problem.weight)
            base.nll = {FOREST: tempered_nll(base.oof_log_proba, problem.labels, weight)}
        base.candidates.insert(0, forest)
    problem.choice["base"] = None if base is None else base.gates
    if base is not None:
        problem.choice["base_nll"] = base.nll
    progress.stage("memory")
    of_base = None if base is None else as_float(base.oof_log_proba)
    predictor = Predictor(
        encoder=problem.table[0],
        row_models=TableModels(problem.table[0], features, embedding, base, opinion is not None),
        views=_remember(problem, settings, spaces, every, opinion, of_base, every_label),
        prior=problem.prior,
        heads=(copy.deepcopy(shared_head()),),
        choice=problem.choice,
        history=problem.history,
    )
    if data is None:
        progress.stage("temperature")
        return _calibrated(predictor, problem, settings)
    fit, rows = _tuned(predictor, problem, settings, data, progress)
    ridge = RIDGE / len(rows)
    return accept_heads(predictor, fit, data.take(rows), problem, settings, ridge=ridge)


def _learns(problem: Problem, n_members: int | Literal["auto"], settings: FitSettings) -> bool:
    """Whether anything but the forest is learned on the table; of few rows only on request."""
    if settings.preset == "instant" or len(problem.labels) >= _FEW:
        return settings.preset != "instant"
    own_base = settings.base is not None and not isinstance(settings.base, str)
    noisy = settings.label_fitter.description is not None
    return own_base or noisy or settings.embedder != "auto" or n_members != "auto"


def _takes_forest(problem: Problem, settings: FitSettings) -> bool:
    """Whether a forest of the fit's own measures which rows are alike; it also joins the base."""
    large = len(problem.labels) > LARGE and ready_embeddings(problem.table[0])
    return settings.base == "auto" and not large


def _networks(problem: Problem, settings: FitSettings, progress: Progress) -> Embedding | None:
    """Train one network per fold whose head may join the base, where one is worth trying."""
    kind = embedder_kind(problem, settings)
    if kind in (None, "table") or settings.base is None:
        problem.choice["embedder"] = "identity"
        return None
    train = training_settings(kind, problem, settings)
    return fit_embedding(kind, train, problem, settings, progress)


def _forest(
    problem: Problem,
    settings: FitSettings,
    rows: np.ndarray,
    label_model: LabelModel,
    *,
    smaller: int = 1,
) -> tuple[Candidate, Tensor]:
    """Fit trees to bootstrap samples of some rows, and predict these out of bag.

    Gives log-probabilities (n_rows, C); the class shares where a row is in all samples. `smaller`
    divides the number of trees.
    """
    encoder, encoded = problem.table
    options = forest_settings(len(rows), seed=settings.seed, n_jobs=settings.n_jobs)
    options["n_estimators"] //= smaller
    model = ExtraTreesClassifier(**options, bootstrap=True, oob_score=True)
    labels, weight = label_model.target(0, problem.labels, problem.weight)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some inputs do not have OOB scores")
        view = encoder.ordinal_filled(encoded.take(rows))
        model.fit(view, labels[rows], sample_weight=None if weight is None else weight[rows])
    shares = problem.prior.double().repeat(len(rows), 1).numpy()
    out_of_bag = np.asarray(model.oob_decision_function_)
    known = np.isfinite(out_of_bag).all(1) & (out_of_bag.sum(1) > 0)
    shares[known] = 0.0
    shares[np.ix_(known, model.classes_)] = out_of_bag[known]
    candidate = Candidate(FOREST, model, "ordinal_filled", [as_arrays(model)])
    return candidate, as_float(log_softmax(floored_log(shares), axis=1))


def _remember(
    problem: Problem,
    settings: FitSettings,
    keys: dict[str, Tensor],
    rows: np.ndarray,
    opinion: Tensor | None,
    base_log_proba: Tensor | None,
    label_model: LabelModel,
) -> PretrainedViews:
    """Fill a memory with some rows, their predictions out of bag and those of the whole base.

    `keys` (n, width) are those of all rows, by the names of the spaces.
    """
    at = torch.from_numpy(rows)
    columns = {FOLD: torch.zeros(len(rows), dtype=torch.int64)} | label_model.columns(at)
    spaces = {name: of_all[at] for name, of_all in keys.items()}
    weight, n_found = problem.row_weight[at], len(rows)
    if settings.max_per_class is not None:
        labels = problem.labels[rows]
        votes, stands_for = capped_rows(labels, settings.max_per_class, settings.seed)
        columns[FINDABLE] = torch.from_numpy(np.isin(np.arange(len(rows)), votes))
        weight[torch.from_numpy(votes)] *= as_float(stands_for)
        n_found = len(votes)
    if base_log_proba is not None:
        columns[BASE] = base_log_proba
    if opinion is not None:
        columns[OPINION] = opinion
        spaces["supervised"] = supervised_keys(spaces["features"], opinion)
    bank = MemoryBank(
        spaces,
        problem.truth[at],
        ids=None if problem.ids is None else problem.ids[at],
        sample_weight=weight,
        n_classes=problem.n_classes,
        columns=columns,
    )
    k = min(settings.n_neighbors, n_found - 1)
    metrics = {"features": settings.metric}
    specs = [SpaceSpec(name, metrics.get(name, "euclidean"), 1.0, k) for name in spaces]
    width = problem.table[0].width
    options = (settings.index, settings.memory_budget, None, label_model.remembered())
    return PretrainedViews(width, bank, [], *options).measure(specs)


class _LeftOut:
    """One fold, which is found in and predicted by the others.

    Attributes
    ----------
    opinion : Tensor of shape (n, C) or None
        Log-probabilities of its rows by a forest of the others, where one takes part.
    """

    def __init__(self, problem: Problem, settings: FitSettings, number: int) -> None:
        self.problem, self.settings, self.number = problem, settings, number
        self.train, held_out = problem.folds[number]
        self.at = torch.from_numpy(held_out)
        self.label_model = problem.label_model.of_fold(number)
        self.opinion = self.out_of_bag = None
        if _takes_forest(problem, settings):
            encoder, rows = problem.table
            fitted = _forest(problem, settings, self.train, self.label_model, smaller=2)
            forest, self.out_of_bag = fitted
            log_proba = forest.log_proba(
                encoder.ordinal_filled(rows.take(held_out)), 0, problem.n_classes
            )
            self.opinion = as_float(log_softmax(log_proba, axis=1))

    def retrieve(self, keys: dict[str, Tensor]) -> Retrieval:
        """Find its rows' neighbors among the others; keys (n, width) are those of all rows."""
        problem, settings = self.problem, self.settings
        views = _remember(
            problem, settings, keys, self.train, self.out_of_bag, None, self.label_model
        )
        queries = {name: of_all[self.at] for name, of_all in keys.items()}
        if self.opinion is not None:
            queries[OPINION] = self.opinion
            queries["supervised"] = supervised_keys(queries["features"], self.opinion)
        prior = problem.prior.log().expand(len(self.at), -1)
        return views.retrieve(queries, prior, problem.n_classes)

    def trained_keys(self, progress: Progress) -> Tensor:
        """Keys (n, width) of all rows by a network of the others."""
        problem, number = self.problem, self.number
        target = problem.target(number)
        network = fit_keys(problem, self.settings, self.train, target, number, progress)
        return network.keys(0, *problem.table)

    def nll(self, found: Retrieval) -> float:
        """Mean NLL of its rows by the head as it comes."""
        problem, at = self.problem, self.at
        log_proba = shared_head().predict(found.spaces, self.opinion).log_proba
        return mean_nll(log_proba, problem.truth[at], problem.row_weight[at], problem.label_model)

    def nll_of_forest(self) -> float:
        """Mean NLL of its rows by the forest, at the best temperature; infinite without one."""
        problem, at = self.problem, self.at.numpy()
        if self.opinion is None:
            return math.inf
        weight = None if problem.weight is None else problem.weight[at]
        opinion = self.opinion.double().numpy()
        return tempered_nll(opinion, problem.labels[at], weight, problem.label_model)


def _as_new(
    problem: Problem, settings: FitSettings, keys: Tensor, progress: Progress
) -> tuple[list[NeighborSet], Tensor | None]:
    """Neighbors of each row, and a forest's prediction (n, C), where its fold is left out.

    Where neighbors of the first fold add to the forest, the trained key space is tried there, and
    kept where it adds to these.
    """
    looks, opinions = [], []
    trains_keys = embedder_kind(problem, settings) == "table"
    for number in range(len(problem.folds)):
        progress.stage(f"neighbors of fold {number + 1} of {len(problem.folds)}")
        fold = _LeftOut(problem, settings, number)
        tries = trains_keys and not number and settings.embedder == "auto"
        if tries or not trains_keys:
            found = fold.retrieve({"features": keys})
        if tries:
            nll = fold.nll(found)
            trains_keys = nll < (1 - _WORTH) * fold.nll_of_forest()
        if trains_keys:
            trained = fold.retrieve({"features": keys, TRAINED: fold.trained_keys(progress)})
            if tries:
                trains_keys = nll - fold.nll(trained) > max(_WORTH * nll, 1 / len(fold.at))
            if trains_keys:
                found = trained
        looks.append(found)
        opinions.append(fold.opinion)
    if trains_keys:
        problem.choice["embedder"] = "table"
    held_out = np.concatenate([rows for _, rows in problem.folds])
    place = torch.zeros(len(problem.labels), dtype=torch.int64)  # rows never held out weigh nothing
    place[held_out] = torch.arange(len(held_out))
    spaces = [space.take(place) for space in below_each_other(looks)[0]]
    known = [one for one in opinions if one is not None]
    if not known:
        return spaces, None
    opinion = problem.prior.log().repeat(len(place), 1)
    opinion[held_out] = torch.cat(known)
    return spaces, opinion


def _cross_fitted(
    problem: Problem,
    settings: FitSettings,
    keys: Tensor,
    embedding: Embedding | None,
    progress: Progress,
) -> tuple[Base | None, HeadRows]:
    """Cross-fit classifiers, and keep those that add to forest and neighbors.

    Also gives every row as the head would see it, were it new. A classifier of the user's own is
    taken in any case.
    """
    spaces, opinion = _as_new(problem, settings, keys, progress)
    base, n = None, len(problem.labels)
    if settings.base is not None:
        encoder, rows = problem.table
        of_neighbors = shared_head().predict(spaces, opinion).log_proba.double().numpy()
        extra = {} if opinion is None else {FOREST: opinion.double().numpy()}
        if embedding is not None:
            extra[HEAD] = _of_networks(embedding, problem)
        base = cross_fit(
            _candidates(problem, settings, embedding),
            encoder,
            rows,
            problem.labels,
            problem.weight,
            problem.folds,
            problem.n_classes,
            extra=extra,
            beside={_NEIGHBORS: of_neighbors} if settings.base == "auto" else None,
            label_model=problem.label_model,
            progress=progress.stage,
        )
        base = base if base.gates else None
    of_base = problem.prior.log().expand(n, -1)
    if base is not None:
        of_base = as_float(base.oof_log_proba)
    return base, HeadRows(
        spaces,  # type: ignore[arg-type]
        of_base,
        problem.truth,
        problem.judging_weight,
        problem.label_model.given_log_proba,
    )


def _of_networks(embedding: Embedding, problem: Problem) -> np.ndarray:
    """Log-probabilities (n, C) of every row by the head of the network that left it out."""
    out = np.zeros((len(problem.labels), problem.n_classes))
    for member, (_, held_out) in enumerate(problem.folds):
        rows = problem.rows.take(held_out)
        out[held_out] = embedding.head_log_proba(member, problem.encoder, rows).numpy()
    return out


def _candidates(
    problem: Problem, settings: FitSettings, embedding: Embedding | None
) -> list[Candidate]:
    """Classifiers to cross-fit beside the forest."""
    if not isinstance(settings.base, str):
        return [given_candidate(settings.base)]
    encoder, n_rows = problem.table[0], len(problem.labels)
    if embedding is not None and n_rows > LARGE and ready_embeddings(encoder):
        return []  # the network is ahead of a linear model, which would cost more time
    found = auto_candidates(
        encoder,
        n_rows,
        problem.n_classes,
        fast=settings.fast,
        seed=settings.seed,
        n_jobs=settings.n_jobs,
    )
    return [one for one in found if one.name != FOREST]


def _tuned(
    predictor: Predictor,
    problem: Problem,
    settings: FitSettings,
    data: HeadRows,
    progress: Progress,
) -> tuple[CrossFit, Tensor]:
    """Train the head further, and keep that where other rows are predicted better.

    Also gives the rows on which that was measured, predicted by heads that they neither trained nor
    stopped.
    """
    few, folds_of_few = _TUNED_OF_FEW
    n_tuned = min(folds_of_few if len(data) <= few else _TUNED, len(problem.folds))
    rows = torch.from_numpy(np.concatenate([held for _, held in problem.folds[:n_tuned]]))
    some = data.take(rows)
    plain = shared_head().predict(some.spaces, some.base_log_proba)  # type: ignore[arg-type]
    chosen = settings.head.model_dump(exclude_unset=True)
    training = _FromPretrained.model_validate(_TRAINING | chosen)
    settings = settings.model_copy(update={"head": training})
    fit = cross_fit_heads(predictor, problem, settings, data, "log-linear", n_tuned, progress).take(
        rows
    )
    labelled = (some.labels, some.weight, problem.label_model)
    before, after = (mean_nll(one, *labelled) for one in (plain.log_proba, fit.log_proba))
    problem.choice["head"] = {"nll_before": before, "nll_after": after}
    if not clearly_better(fit.log_proba, plain.log_proba, *labelled):
        head = copy.deepcopy(shared_head())
        return CrossFit([head], plain.log_proba, plain.neighbor_log_proba), rows
    return fit._replace(heads=[_mean_of(fit.heads)]), rows


def _mean_of(heads: list[PretrainedNeighborHead]) -> PretrainedNeighborHead:
    """Mean of the weights; heads that start alike can be averaged."""
    mean = copy.deepcopy(heads[0])
    states = [head.state_dict() for head in heads]
    mean.load_state_dict(
        {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}
    )
    return mean.eval().requires_grad_(False)


def _calibrated(predictor: Predictor, problem: Problem, settings: FitSettings) -> Predictor:
    """Fit the temperatures, and the correction for the class prior."""
    n = len(problem.labels)
    some = np.sort(np.random.default_rng(settings.seed).permutation(n)[:_JUDGED])
    rows = torch.from_numpy(some)
    answer = predictor.predict_left_out(problem.n_classes, rows)
    labelled = (problem.truth[rows], problem.judging_weight[rows])
    data = HeadRows([], answer.base_log_proba, *labelled)
    fit = CrossFit(list(predictor.heads), answer.log_proba, answer.neighbor_log_proba)
    predictor = accept_heads(predictor, fit, data, problem, settings, ridge=RIDGE / len(rows))
    source = predictor.acceptance.source.replace("out-of-fold", "leave-one-out")
    return replace(predictor, acceptance=replace(predictor.acceptance, source=source))
