"""Fit of a classifier; every choice is made on out-of-fold predictions.

Tables are cross-fitted or have a hold-out split; images always have a hold-out split.
"""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.ensemble import ExtraTreesClassifier
from torch import Tensor

from nearwise.estimators.fit.as_arrays import as_arrays
from nearwise.estimators.fit.base import (
    BAYES,
    RIDGE,
    Base,
    Candidate,
    auto_candidates,
    bayes_candidate,
    cross_fit,
    floored_log,
    given_candidate,
    text_candidates,
)
from nearwise.estimators.fit.embedding import HEAD, Embedding
from nearwise.estimators.fit.forest import FEW, fit_forest, forest_settings
from nearwise.estimators.fit.gaussian import fit_gaussian
from nearwise.estimators.fit.head_fitting import (
    JUDGED,
    accept_head,
    calibrated_views,
    predictions_of,
    tuned_head,
)
from nearwise.estimators.fit.image_networks import fit_image_networks
from nearwise.estimators.fit.networks import (
    embedder_kind,
    fit_embedding,
    fit_features,
    fit_keys,
    fit_texts,
    training_settings,
)
from nearwise.estimators.fit.parameter_checks import check_held_out
from nearwise.estimators.fit.photographs import fit_photographs
from nearwise.estimators.fit.planned_steps import (
    KEY_SPACE,
    Phases,
    image_steps,
    last_key_space,
    table_steps,
)
from nearwise.estimators.fit.problem import (
    FitSettings,
    Problem,
    Unseen,
    auto_folds,
    cross_fit_folds,
    held_out_fold,
    make_folds,
)
from nearwise.estimators.inputs.table import LARGE, ready_embeddings
from nearwise.estimators.model.array_models import Gaussian
from nearwise.estimators.model.class_predictor import ClassPredictor, JudgedRows
from nearwise.estimators.model.class_prior import capped_rows
from nearwise.estimators.model.gates import pooled, tempered_nll
from nearwise.estimators.model.label_model import LabelModel
from nearwise.estimators.model.log_linear_pool import clearly_better, mean_nll
from nearwise.estimators.model.memory_views import (
    BASE,
    FINDABLE,
    FOLD,
    OPINION,
    TRAINED,
    MemoryViews,
    Retrieval,
    SpaceSpec,
    below_each_other,
)
from nearwise.estimators.model.predictor import as_float
from nearwise.estimators.model.row_models import (
    FOREST,
    GAUSSIAN,
    KeyedRows,
    RowModels,
    TableModels,
    average_views,
    head_of_all,
    supervised_keys,
)
from nearwise.estimators.progress import Progress
from nearwise.memory import MemoryBank
from nearwise.nn import NeighborSet, shared_head
from nearwise.nn.lite0 import NAME as LITE0
from nearwise.training import HeadRows

FEWEST = 32  # with fewer rows, training on the table makes predictions overconfident
_TUNED = 3  # folds with a fine-tuned head
_TUNED_MANY = 2  # the same, beside Gaussian classes of many rows
_HEADS = 5  # folds of a hold-out split for fine-tuning the head
_EPOCHS_OF_VIEWS = 12
_NEIGHBORS = "neighbors"
_LEAST = -1e4  # log-probability of an impossible class
_OF_BAYES = 10  # folds of left-out predictions of naive Bayes
_OF_GROUPS = 5  # folds of groups in left-out predictions of Gaussian classes
_WORTH = 0.05  # least relative fall of the NLL by neighbors, and by a trained key space


def fit_problem(problem: Problem, settings: FitSettings, progress: Progress) -> ClassPredictor:
    """Fit a classifier, cross-fitted or with a hold-out split as in the settings."""
    if settings.embedder == LITE0:
        return fit_photographs(problem, settings, progress, fit_problem)
    if isinstance(share := settings.cv, float):
        check_held_out(len(problem.labels), problem.n_classes, share)
        fold = problem.without_copies(settings.folds) or [
            held_out_fold(problem.labels, share, settings.seed, problem.groups)
        ]
        problem.folds = fold
        held_out = problem.folds[0][1]
        if problem.weight is not None and not problem.weight[held_out].any():
            raise ValueError(
                "Every row that was held out has sample_weight 0, so nothing can be fitted to "
                "them. Drop the rows without weight, or change random_state."
            )
        problem.choice["held_out"] = len(held_out)
        problem.n_networks = problem.encoder.n_networks
    fits = {"images": _fit_images, "table": _fit_table}
    with problem.encoder.threads(settings.n_jobs):
        return fits[problem.encoder.kind](problem, settings, progress)


def _fit_images(problem: Problem, settings: FitSettings, progress: Progress) -> ClassPredictor:
    """Fit an image classifier: networks train on rows outside the fold, the memory has all."""
    progress.plan(image_steps(problem, settings, n_heads=_HEADS))
    models = fit_image_networks(problem, settings, progress)
    problem.choice["base"] = "the networks' heads" if models.has_base else None
    progress.stage("memory")
    keyed = [models(rows).cpu() for rows in problem.all_views]
    mean, every = average_views(keyed), np.arange(len(problem.labels))
    base, known = mean.base_log_proba, problem.label_model
    views = _remember(problem, settings, mean.keys, every, None, base, known)
    views.to(torch.device(settings.device))
    held_out = torch.from_numpy(problem.folds[0][1])
    predictor = _predictor(problem, models, views)
    looks = [predictor.retrieval(rows.take(held_out), held_out) for rows in keyed]
    data = _head_rows(problem, *below_each_other(looks))
    deepest = replace(data, spaces=data.spaces[:1])
    return _with_head(predictor, problem, settings, [deepest, data], progress, keyed)


def _fit_table(problem: Problem, settings: FitSettings, progress: Progress) -> ClassPredictor:
    """Fit features, base and memory of a table, with the pretrained head.

    The base starts with a forest, whose out-of-bag predictions the head compares. For ready
    embeddings it starts with Gaussian classes if these are better; they leave each row out
    exactly. With the preset "instant", and with few rows, temperatures are fitted to leave-one-out
    predictions; without a forest these are independent of the row's own label. Otherwise the head
    is fine-tuned, and a trained key space and other classifiers may join. These are fitted fold by
    fold: memory and classifiers of the other rows predict the fold like new rows. At the end,
    forest, key space and memory have all rows, and other classifiers average over the folds.
    """
    every = np.arange(len(problem.labels))
    chosen_on = problem.folds[0][0] if problem.is_held_out else every
    progress.plan(_planned(problem, settings))
    features = fit_features(problem, chosen_on, settings, progress)
    encoder, _ = problem.table
    models = TableModels(encoder, features, None, None, texts=fit_texts(problem))
    keyed = [KeyedRows(models.label_free_keys(rows), None) for rows in problem.all_views]
    spaces = average_views(keyed).keys
    base: Base | None = None
    own: tuple[Candidate, Tensor] | None = None
    begun: ExtraTreesClassifier | None = None
    data = opinion = embedding = None
    learns = _learns(problem, settings)
    if learns:
        if not problem.is_held_out:
            auto = auto_folds(len(every))
            n_folds = auto if settings.cv == "auto" else int(settings.cv)
            problem.folds = (
                problem.without_copies(settings.folds)
                or (problem.shared and problem.shared.folds(n_folds, settings.seed))
                or cross_fit_folds(problem.labels, n_folds, settings.seed, problem.groups)
            )
        settings.label_fitter.fit(problem, settings, lambda: Unseen(spaces["features"]), progress)
    every_label = problem.label_model.of_all(problem.folds)
    if _may_be_gaussian(problem, settings):
        progress.stage(GAUSSIAN)
        own, begun = _better_gaussian(problem, settings)
        problem.is_gaussian = own is not None
    if learns:
        embedding = _networks(problem, settings, progress)
        of_own = None if own is None else own[1]
        base, data = _cross_fitted(problem, settings, spaces, keyed, of_own, embedding, progress)
    if embedding is not None and (base is None or not base.asks(HEAD)):
        embedding = None
    if problem.choice.get("embedder") == "table":
        embedding = fit_keys(problem, settings, every, len(problem.folds), progress)
        spaces[TRAINED] = embedding.keys(0, *problem.table)
    if _takes_forest(problem, settings):
        progress.stage("forest")
        own = _forest(problem, settings, every, begun=begun)
        opinion = own[1]
    if own is not None:
        if base is None:
            base = (_with_bayes if problem.is_gaussian and encoder.texts else _alone)(problem, *own)
        base.candidates.insert(0, own[0])
    problem.choice["base"] = None if base is None else base.gates
    if base is not None:
        problem.choice["base_nll"] = base.nll
    progress.stage("memory")
    of_base = None if base is None else as_float(base.oof_log_proba)
    predictor = _predictor(
        problem,
        replace(models, base=base, embedding=embedding, shows_opinion=opinion is not None),
        _remember(problem, settings, spaces, every, opinion, of_base, every_label),
    )
    if data is None:
        progress.stage("temperature")
        return _calibrated(predictor, problem, settings)
    return _with_head(predictor, problem, settings, [data], progress, [])


def _predictor(problem: Problem, models: RowModels, views: MemoryViews) -> ClassPredictor:
    """Predictor of the fitted parts, with the head not fine-tuned."""
    return ClassPredictor(
        encoder=problem.encoder,
        row_models=models,
        views=views,
        prior=problem.prior,
        head=copy.deepcopy(shared_head()),
        choice=problem.choice,
        history=problem.history,
        tta=problem.tta,
        n_views=len(problem.all_views),
    )


def _with_head(
    predictor: ClassPredictor,
    problem: Problem,
    settings: FitSettings,
    tries: list[HeadRows],
    progress: Progress,
    keyed: list[KeyedRows],
) -> ClassPredictor:
    """Fine-tune the head, and fit its share and the temperatures.

    `tries` are the rows (all, or the held-out ones, view after view) with neighbors in more and
    more spaces of the memory; more spaces are used only if the predictions are clearly better.
    `keyed` are all rows in each view, if known.
    """
    folds, n_rows = problem.folds, len(tries[0])
    n_heads = _TUNED_MANY if problem.is_gaussian and n_rows > LARGE else _TUNED
    held_out = problem.folds[0][1]
    if problem.is_held_out:
        n_rows, n_heads = len(held_out), _HEADS
        held_groups = problem.groups_at(held_out)
        split = make_folds(problem.labels[held_out], n_heads, settings.seed, held_groups)
        starts = n_rows * np.arange(predictor.n_views)[:, None]  # first row of each view
        folds = [((starts + train).ravel(), (starts + held).ravel()) for train, held in split]
    model = problem.label_model
    data, *others = tries
    tune = (folds, n_heads, settings, model, progress)
    fit, rows, problem.choice["head"] = tuned_head(predictor, data, *tune)
    judged = data.labels[rows], data.weight[rows], model
    for other in others:
        found, _, nlls = tuned_head(predictor, other, *tune)
        if clearly_better(found.log_proba, fit.log_proba, *judged):
            data, fit, problem.choice["head"] = other, found, nlls
    if len(tries) > 1:
        problem.choice["spaces"] = [spec.name for spec in predictor.views.specs[: len(data.spaces)]]
        predictor.views.keep(problem.choice["spaces"])
    first = rows < n_rows
    ridge = RIDGE / int(first.sum())
    some = data.take(rows[first])
    tuned = accept_head(predictor, fit.take(first), some, problem, settings, ridge=ridge)
    if predictor.n_views == 1:
        return tuned
    progress.stage("views")
    of_held = torch.from_numpy(held_out)
    if keyed:
        keyed = [one.take(of_held) for one in keyed]
    else:
        keyed = [predictor.row_models(rows.take(held_out)).cpu() for rows in problem.all_views]
    ids = of_held if problem.ids is None else problem.ids[of_held]
    order = torch.argsort(rows)  # the folds cover all held-out rows
    merged = calibrated_views(tuned, fit.take(order), data, problem, settings, ridge=ridge)
    return replace(merged, judged_views=JudgedRows(ids, keyed))


def _head_rows(problem: Problem, spaces: list[NeighborSet], base_log_proba: Tensor) -> HeadRows:
    """Rows for the head: all rows, or the held-out rows in all views."""
    labels, weight = problem.truth, problem.judging_weight
    if problem.is_held_out:
        at = torch.from_numpy(problem.folds[0][1]).repeat(len(problem.all_views))
        labels, weight = labels[at], problem.row_weight[at]
    given = problem.label_model.given_log_proba
    return HeadRows(spaces, base_log_proba, labels, weight, given)


def _learns(problem: Problem, settings: FitSettings) -> bool:
    """Whether models beyond the first base are trained; with few rows only on request."""
    if problem.is_held_out:
        return True
    if settings.preset == "instant" or len(problem.labels) >= FEWEST:
        return settings.preset != "instant"
    own_base = settings.base is not None and not isinstance(settings.base, str)
    noisy = settings.label_fitter.description is not None
    return own_base or noisy or settings.embedder != "auto" or settings.cv != "auto"


def _planned(problem: Problem, settings: FitSettings) -> Phases:
    """Plan the steps that the fit of a table will probably take."""
    learns = _learns(problem, settings)
    has_base = learns and settings.base is not None
    return table_steps(
        problem,
        settings,
        _candidates(problem, settings, None) if has_base else [],
        n_heads=0 if not learns else _HEADS if problem.is_held_out else _TUNED,
        tries_gaussian=_may_be_gaussian(problem, settings),
        has_forest=_takes_forest(problem, settings),
    )


def _takes_forest(problem: Problem, settings: FitSettings) -> bool:
    """Whether a forest joins the base; the head also compares its predictions."""
    large = len(problem.labels) > LARGE and ready_embeddings(problem.table[0])
    return settings.base == "auto" and not large and not problem.views and not problem.is_gaussian


def _may_be_gaussian(problem: Problem, settings: FitSettings) -> bool:
    """Whether to try Gaussian classes; not with a hold-out split, as they train on all rows.

    Beside columns other than text only with the preset "instant": more models join the default.
    """
    encoder = problem.table[0]
    of_texts = encoder.has_only_texts or bool(encoder.texts and settings.preset == "instant")
    fits = of_texts or ready_embeddings(encoder)
    return settings.base == "auto" and fits and not problem.is_held_out


def _alone(problem: Problem, candidate: Candidate, left_out: Tensor) -> Base:
    """Make a base of one classifier with left-out log-probabilities `left_out` (n, C)."""
    base = Base([], {candidate.name: 1.0}, problem.n_classes)
    base.oof_log_proba = left_out.double().numpy()
    base.nll = {candidate.name: tempered_nll(base.oof_log_proba, *problem.judged)}
    return base


def _with_bayes(problem: Problem, candidate: Candidate, left_out: Tensor) -> Base:
    """Make a base of one classifier, as `_alone`, with naive Bayes of texts if that helps."""
    terms, parts = problem.table[0].text_terms(problem.table[1]), np.zeros(left_out.shape)
    folds = make_folds(problem.labels, _OF_BAYES, 0, problem.groups)
    if problem.weight is not None and not all(problem.weight[train].any() for train, _ in folds):
        return _alone(problem, candidate, left_out)  # no weight is left for a fit
    bayes = bayes_candidate()
    for number in bayes.fit_folds(terms, problem.labels, problem.weight, folds):
        held_out = folds[number][1]
        parts[held_out] = bayes.log_proba(terms[held_out], number, problem.n_classes)
    alone = _alone(problem, candidate, left_out)
    pool = pooled({candidate.name: alone.oof_log_proba, bayes.name: parts}, *problem.judged)
    if pool.nll > alone.nll[candidate.name] - 0.5 / len(parts):  # the gain of a power by chance
        return alone
    every = np.arange(len(problem.labels))
    bayes.folds.clear()
    list(bayes.fit_folds(terms, problem.labels, problem.weight, [(every, every[:0])]))
    base = Base([bayes], pool.powers, problem.n_classes)
    base.oof_log_proba = log_softmax(pool.log_proba, axis=1)
    base.nll = alone.nll | {bayes.name: tempered_nll(parts, *problem.judged), "pool": pool.nll}
    return base


def _better_gaussian(
    problem: Problem, settings: FitSettings
) -> tuple[tuple[Candidate, Tensor] | None, ExtraTreesClassifier | None]:
    """Gaussian classes if they predict left-out rows better than votes, else None.

    With few rows, or text beside other columns, they must also beat half a forest, which is
    returned too: a table with many numeric columns need not be an embedding.
    """

    def nll(left_out: Tensor) -> float:
        return tempered_nll(left_out.double().numpy(), *problem.judged)

    gaussian, begun = _gaussian(problem), None
    least = min(problem.choice["feature_nll"].values())
    encoder = problem.table[0]
    if len(problem.labels) <= FEW or (encoder.texts and not encoder.has_only_texts):
        every = np.arange(len(problem.labels))
        forest, out_of_bag = _forest(problem, settings, every, smaller=2)
        least, begun = min(least, nll(out_of_bag)), forest.model
    return (gaussian if nll(gaussian[1]) < least else None), begun


def _gaussian(problem: Problem) -> tuple[Candidate, Tensor]:
    """Fit Gaussian classes, with a temperature fitted to leave-one-out predictions.

    Also returns the left-out log-probabilities (n, C).
    """
    labels, weight = problem.labels, problem.weight
    arrays, scores = fit_gaussian(*problem.table, labels, weight)
    parts = np.full((len(labels), problem.n_classes), _LEAST)
    parts[:, arrays["classes"]] = np.maximum(log_softmax(scores, axis=1), _LEAST)
    if problem.groups is not None:
        parts = _without_groups(problem, labels, weight)
    pool = pooled({GAUSSIAN: parts}, *problem.judged, ridge=RIDGE / len(labels))
    power = pool.powers[GAUSSIAN]
    arrays |= {name: arrays[name] * power**0.5 for name in ("factor", "offset")}
    arrays["bias"] = arrays["bias"] * power
    left_out = floored_log(np.exp(pool.log_proba))
    candidate = Candidate(GAUSSIAN, None, "dense", [Gaussian(arrays)])
    return candidate, as_float(log_softmax(left_out, axis=1))


def _without_groups(problem: Problem, labels: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Log-probabilities (n, C) of each row from Gaussian classes fitted without its group."""
    encoder, rows = problem.table
    parts = np.full((len(labels), problem.n_classes), _LEAST)
    for train, held_out in make_folds(problem.labels, _OF_GROUPS, 0, problem.groups):
        some = None if weight is None else weight[train]
        if some is not None and not some.any():
            continue  # no weight is left for a fit
        model = Gaussian(fit_gaussian(encoder, rows.take(train), labels[train], some)[0])
        proba = model.predict_proba(encoder.dense(rows.take(held_out)))
        log_proba = np.maximum(np.log(np.maximum(proba, np.finfo(float).tiny)), _LEAST)
        parts[np.ix_(held_out, model.classes_)] = log_proba
    return parts


def _networks(problem: Problem, settings: FitSettings, progress: Progress) -> Embedding | None:
    """Train one network per fold, with heads for the base; None if not useful."""
    kind = embedder_kind(problem, settings)
    if kind in (None, "table") or settings.base is None:
        problem.choice["embedder"] = "identity"
        return None
    train = training_settings(kind, problem, settings)
    second = problem.views[0] if problem.views else None
    if problem.views and "epochs" not in settings.train:
        train["epochs"] = max(train["epochs"], _EPOCHS_OF_VIEWS)
    return fit_embedding(kind, train, problem, settings, progress, second)


def _forest(
    problem: Problem,
    settings: FitSettings,
    rows: np.ndarray,
    *,
    smaller: int = 1,
    begun: ExtraTreesClassifier | None = None,
) -> tuple[Candidate, Tensor]:
    """Fit a forest to some rows, and its out-of-bag predictions of them.

    Returns log-probabilities (n_rows, C); the class shares if a row is in all samples. `smaller`
    divides the number of trees; `begun` is a forest with the first trees.
    """
    encoder, encoded = problem.table
    options = forest_settings(len(rows), seed=settings.seed, n_jobs=settings.n_jobs)
    options["n_estimators"] //= smaller
    view, labels = encoder.ordinal_filled(encoded.take(rows)), problem.labels[rows]
    weight = None if problem.weight is None else problem.weight[rows]
    common = problem.shared and problem.shared.forest(rows, view, weight, options)
    if common:
        model, arrays, out_of_bag = common
    else:
        groups = problem.groups_at(rows)
        model, out_of_bag = fit_forest(view, labels, weight, options, groups=groups, begun=begun)
        arrays = as_arrays(model)
    shares = problem.prior.double().repeat(len(rows), 1).numpy()
    known = np.isfinite(out_of_bag).all(1) & (out_of_bag.sum(1) > 0)
    shares[known] = 0.0
    shares[np.ix_(known, arrays.classes_)] = out_of_bag[known]
    candidate = Candidate(FOREST, model, "ordinal_filled", [arrays])
    return candidate, as_float(log_softmax(floored_log(shares), axis=1))


def _remember(
    problem: Problem,
    settings: FitSettings,
    keys: dict[str, Tensor],
    rows: np.ndarray,
    opinion: Tensor | None,
    base_log_proba: Tensor | None,
    label_model: LabelModel,
) -> MemoryViews:
    """Fill a memory with some rows, their out-of-bag and base predictions.

    `keys` (n, width) are the keys of all rows, by space.
    """
    at = torch.from_numpy(rows)
    columns = {FOLD: torch.zeros(len(rows), dtype=torch.int64)} | label_model.columns(at)
    columns |= {name: column[at] for name, column in problem.group_column.items()}
    if problem.is_held_out and base_log_proba is not None:
        columns[FOLD] -= torch.from_numpy(np.isin(rows, problem.folds[0][0])).long()
    every = np.array_equal(rows, np.arange(len(problem.labels)))  # avoids a copy of the keys
    spaces = {name: of_all if every else of_all[at] for name, of_all in keys.items()}
    weight = problem.row_weight[at]
    if settings.max_per_class is not None:
        labels = problem.labels[rows]
        votes, stands_for = capped_rows(labels, settings.max_per_class, settings.seed)
        columns[FINDABLE] = torch.from_numpy(np.isin(np.arange(len(rows)), votes))
        weight[torch.from_numpy(votes)] *= as_float(stands_for)
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
    width = problem.encoder.n_columns
    views = MemoryViews(width, bank, [], settings.index, label_model=label_model.remembered())
    measure_spaces(views, settings)
    return views


def measure_spaces(views: MemoryViews, settings: FitSettings) -> None:
    """Set up the search of all spaces of a filled memory, each with its unit."""
    k = min(settings.n_neighbors, views.n_others)
    metrics = {"features": settings.metric}
    names = views.bank.keys
    views.measure([SpaceSpec(name, metrics.get(name, "euclidean"), 1.0, k) for name in names])


class _LeftOut:
    """One fold, predicted by memory and models of the other rows.

    Attributes
    ----------
    opinion : Tensor of shape (n, C) or None
        Log-probabilities of the fold's rows by a forest of the others; None without a forest.
    """

    def __init__(self, problem: Problem, settings: FitSettings, number: int) -> None:
        self.problem, self.settings, self.number = problem, settings, number
        self.train, held_out = problem.folds[number]
        self.at = torch.from_numpy(held_out)
        self.label_model = problem.label_model.of_fold(number)
        self.opinion = self.out_of_bag = None
        if _takes_forest(problem, settings):
            encoder, rows = problem.table
            fitted = _forest(problem, settings, self.train, smaller=2)
            forest, self.out_of_bag = fitted
            log_proba = forest.log_proba(
                encoder.ordinal_filled(rows.take(held_out)), 0, problem.n_classes
            )
            self.opinion = as_float(log_softmax(log_proba, axis=1))

    def retrieve(self, keys: dict[str, Tensor], view: dict[str, Tensor] | None = None) -> Retrieval:
        """Neighbors of the fold's rows among the other rows.

        `keys` (n, width) of all rows fill the memory; `view`, by default the same, has the queries.
        """
        problem, settings = self.problem, self.settings
        views = _remember(
            problem, settings, keys, self.train, self.out_of_bag, None, self.label_model
        )
        queries = {name: of_all[self.at] for name, of_all in (view or keys).items()}
        if self.opinion is not None:
            queries[OPINION] = self.opinion
            queries["supervised"] = supervised_keys(queries["features"], self.opinion)
        prior = problem.prior.log().expand(len(self.at), -1)
        return views.retrieve(queries, prior, problem.n_classes)

    def trained_keys(self, progress: Progress) -> Tensor:
        """Keys (n, width) of all rows by a network trained without the fold."""
        problem, number = self.problem, self.number
        network = fit_keys(problem, self.settings, self.train, number, progress)
        return network.keys(0, *problem.table)

    def nll(self, found: Retrieval) -> float:
        """Mean NLL of the fold's rows by the head, not fine-tuned."""
        problem, at = self.problem, self.at
        log_proba = shared_head().predict(found.spaces, self.opinion).log_proba
        return mean_nll(log_proba, problem.truth[at], problem.row_weight[at], problem.label_model)

    def nll_of_forest(self) -> float:
        """Mean NLL of the fold's rows by the forest at its best temperature; inf without one."""
        problem, at = self.problem, self.at.numpy()
        if self.opinion is None:
            return math.inf
        weight = None if problem.weight is None else problem.weight[at]
        opinion = self.opinion.double().numpy()
        return tempered_nll(opinion, problem.labels[at], weight, problem.label_model)


def _as_new(
    problem: Problem,
    settings: FitSettings,
    keys: dict[str, Tensor],
    keyed: list[KeyedRows],
    progress: Progress,
) -> tuple[list[NeighborSet], Tensor | None]:
    """Neighbors and forest predictions (n, C) of each row, with its fold left out.

    If neighbors of the first fold improve on the forest, a trained key space is tried there, and
    used if it improves further. With a hold-out split only the held-out rows, in all views.
    """
    if len(keyed) > 1:
        fold = _LeftOut(problem, settings, 0)
        return below_each_other([fold.retrieve(keys, one.keys) for one in keyed])[0], None
    looks, opinions = [], []
    trains_keys = embedder_kind(problem, settings) == "table"
    for number in range(len(problem.folds)):
        progress.stage(f"neighbors of fold {number + 1} of {len(problem.folds)}")
        fold = _LeftOut(problem, settings, number)
        tries = trains_keys and not number and settings.embedder == "auto"
        if tries or not trains_keys:
            found = fold.retrieve(keys)
        if tries:
            nll = fold.nll(found)
            trains_keys = nll < (1 - _WORTH) * fold.nll_of_forest()
        if trains_keys:
            trained = fold.retrieve(keys | {TRAINED: fold.trained_keys(progress)})
            if tries:
                trains_keys = nll - fold.nll(trained) > max(_WORTH * nll, 1 / len(fold.at))
                n_more = len(problem.folds) * trains_keys
                progress.expect(KEY_SPACE, max(n_more, 1))
                progress.expect(last_key_space(len(problem.folds)), int(trains_keys))
            if trains_keys:
                found = trained
        looks.append(found)
        opinions.append(fold.opinion)
    if trains_keys:
        problem.choice["embedder"] = "table"
    spaces, known = below_each_other(looks)[0], [one for one in opinions if one is not None]
    if problem.is_held_out:
        return spaces, known[0] if known else None
    held_out = np.concatenate([rows for _, rows in problem.folds])
    # Rows that are never held out have weight 0.
    position = torch.zeros(len(problem.labels), dtype=torch.int64)
    position[held_out] = torch.arange(len(held_out))
    spaces = [space.take(position) for space in spaces]
    if not known:
        return spaces, None
    opinion = problem.prior.log().repeat(len(position), 1)
    opinion[held_out] = torch.cat(known)
    return spaces, opinion


def _cross_fitted(
    problem: Problem,
    settings: FitSettings,
    keys: dict[str, Tensor],
    keyed: list[KeyedRows],
    gaussian: Tensor | None,
    embedding: Embedding | None,
    progress: Progress,
) -> tuple[Base | None, HeadRows]:
    """Cross-fit classifiers, and keep only improvements on the neighbors and the first base.

    Also returns the head's inputs of every row as if new; with a hold-out split only of the
    held-out rows, in all views. A user's classifier is always kept.
    """
    spaces, opinion = _as_new(problem, settings, keys, keyed, progress)
    base, n = None, len(problem.labels)
    if settings.base is not None:
        encoder, rows = problem.table
        of_head = shared_head().predict(spaces, opinion).log_proba
        of_neighbors = _of_every(problem, of_head).double().numpy()
        extra = {}
        for name, part in ((FOREST, opinion), (GAUSSIAN, gaussian)):
            if part is not None:
                extra[name] = _of_every(problem, part).double().numpy()
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
            groups=problem.groups,
            progress=progress.stage,
        )
        base = base if base.gates else None
    of_base = problem.prior.log().expand(n, -1)
    if base is not None:
        if problem.is_held_out:
            of_held = as_float(base.oof_log_proba[problem.folds[0][1]])
            base.oof_log_proba = _of_every(problem, of_held).double().numpy()
        of_base = as_float(base.oof_log_proba)
    if problem.is_held_out:
        _, held_out = problem.folds[0]
        views = [of_base[held_out]]
        for view in problem.views:
            views.append(_of_view(base, embedding, problem, view.take(held_out)))
        of_base = torch.cat(views)
    return base, _head_rows(problem, spaces, of_base)


def _of_every(problem: Problem, log_proba: Tensor) -> Tensor:
    """Predictions (n, C) of all rows; with a hold-out split class shares for the other rows."""
    if not problem.is_held_out:
        return log_proba
    every, (_, held_out) = problem.prior.log().repeat(len(problem.labels), 1), problem.folds[0]
    every[held_out] = log_proba[: len(held_out)]
    return every


def _of_view(base: Base | None, embedding: Embedding | None, problem: Problem, rows: Any) -> Tensor:
    """Log-probabilities (n, C) of rows by a base without a forest, or of the class shares."""
    if base is None:
        return problem.prior.log().expand(len(rows), -1)
    parts = base.parts(problem.table[0], rows)
    if embedding is not None and base.asks(HEAD):
        parts[HEAD] = head_of_all(embedding, problem.table[0], rows)
    return as_float(base.pooled(parts))


def _of_networks(embedding: Embedding, problem: Problem) -> np.ndarray:
    """Out-of-fold log-probabilities (n, C) of every row by the network heads."""
    out = np.zeros((len(problem.labels), problem.n_classes))
    if problem.is_held_out:
        _, held_out = problem.folds[0]
        out[held_out] = head_of_all(embedding, problem.encoder, problem.rows.take(held_out))
        return out
    for member, (_, held_out) in enumerate(problem.folds):
        rows = problem.rows.take(held_out)
        out[held_out] = embedding.head_log_proba(member, problem.encoder, rows).numpy()
    return out


def _candidates(
    problem: Problem, settings: FitSettings, embedding: Embedding | None
) -> list[Candidate]:
    """Classifiers to cross-fit beside the first base."""
    if not isinstance(settings.base, str):
        return [given_candidate(settings.base)]
    encoder, n_rows = problem.table[0], len(problem.labels)
    if embedding is not None and n_rows > LARGE and ready_embeddings(encoder):
        return []  # a linear model would cost more time and be worse than the network
    found = auto_candidates(
        encoder,
        n_rows,
        problem.n_classes,
        seed=settings.seed,
        n_jobs=settings.n_jobs,
    )
    if encoder.texts:
        found = [*text_candidates(), *found]
    if encoder.has_only_texts:  # of SMS messages, all others did not lower the NLL (.0211, .0207)
        useful = ("text-logistic", BAYES, "kernel-logistic")
        return [one for one in found if one.name in useful]
    if problem.is_gaussian:  # trees would be slow and weak on embeddings
        return [one for one in found if one.name == "logistic"]
    return [one for one in found if one.name != FOREST]


def _calibrated(
    predictor: ClassPredictor, problem: Problem, settings: FitSettings
) -> ClassPredictor:
    """Fit temperatures and class-prior correction to leave-one-out predictions."""
    n = len(problem.labels)
    some = np.sort(np.random.default_rng(settings.seed).permutation(n)[:JUDGED])
    rows = torch.from_numpy(some)
    answer = predictor.predict_left_out(problem.n_classes, rows)
    labelled = (problem.truth[rows], problem.judging_weight[rows])
    parts = predictions_of(predictor, [answer], *labelled)
    predictor = accept_head(predictor, *parts, problem, settings, ridge=RIDGE / len(rows))
    source = predictor.acceptance.source.replace("out-of-fold", "leave-one-out")
    return replace(predictor, acceptance=replace(predictor.acceptance, source=source))
