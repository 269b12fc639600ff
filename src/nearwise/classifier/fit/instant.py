"""A fit in which nothing is trained but one forest: the head comes from other tables."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.ensemble import ExtraTreesClassifier

from nearwise.classifier.fit.as_arrays import as_arrays
from nearwise.classifier.fit.base import Base, Candidate, floored_log, forest_settings
from nearwise.classifier.fit.cross_fitting import fit_features
from nearwise.classifier.fit.head_fitting import CrossFit, accept_heads
from nearwise.classifier.fit.problem import FitSettings, Problem
from nearwise.classifier.fit.progress import Progress
from nearwise.classifier.inputs.table import LARGE, ready_embeddings
from nearwise.classifier.model.gates import tempered_nll
from nearwise.classifier.model.memory_views import BASE, FOLD, SpaceSpec
from nearwise.classifier.model.predictor import Predictor, as_float
from nearwise.classifier.model.pretrained_views import PretrainedViews
from nearwise.classifier.model.row_models import FoldModels, supervised_keys
from nearwise.memory import MemoryBank
from nearwise.nn import shared_head
from nearwise.training import HeadRows

_JUDGED = 2_000  # remembered rows that temperatures are fitted to, each left out
_RIDGE = 4.0  # pull of the temperatures towards 1, in rows


def fit_instant(problem: Problem, settings: FitSettings, progress: Progress) -> Predictor:
    """Map the features, fit a forest, remember the rows, and take the pretrained head.

    Each row has the forest's out-of-bag prediction, by trees that did not see it. Temperatures
    are fitted to remembered rows, each left out; without a base nothing then depends on a row's
    own label.
    """
    encoder, rows = problem.table
    n, choice = len(problem.labels), problem.choice
    features = fit_features(problem, np.arange(n), settings, progress)
    keys = {"features": features(encoder, rows)}
    columns = {FOLD: torch.zeros(n, dtype=torch.int64)}
    base = None
    if settings.base is not None and not (n > LARGE and ready_embeddings(encoder)):
        progress.stage("forest")
        base = _fit_forest(problem, settings)
        columns[BASE] = as_float(base.oof_log_proba)
        keys["supervised"] = supervised_keys(keys["features"], columns[BASE])
    choice["base"] = None if base is None else base.gates
    if base is not None:
        choice["base_nll"] = base.nll
    progress.stage("memory")
    bank = MemoryBank(
        keys,
        problem.truth,
        ids=problem.ids,
        sample_weight=None if problem.weight is None else as_float(problem.weight),
        n_classes=problem.n_classes,
        columns=columns,
    )
    k = min(settings.n_neighbors, n - 1)
    metrics = {"features": settings.metric, "supervised": "euclidean"}
    specs = [SpaceSpec(name, "all", False, metrics[name], 1.0, k) for name in keys]
    views = PretrainedViews(
        encoder.width, bank, [], settings.index, settings.memory_budget, settings.search_device
    )
    predictor = Predictor(
        encoder=encoder,
        row_models=FoldModels(encoder, features, None, base, 1),
        views=views.measure(specs, 1),
        prior=problem.prior,
        heads=(copy.deepcopy(shared_head()),),
        choice=choice,
        history=problem.history,
    )
    progress.stage("temperature")
    return _calibrated(predictor, problem, settings)


def _fit_forest(problem: Problem, settings: FitSettings) -> Base:
    """Fit extremely randomized trees to bootstrap samples, with out-of-bag predictions."""
    encoder, rows = problem.table
    n = len(problem.labels)
    options = forest_settings(n, seed=settings.seed, n_jobs=settings.n_jobs)
    model = ExtraTreesClassifier(**options, bootstrap=True, oob_score=True)
    name, view = "extra-trees", encoder.ordinal_filled(rows)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some inputs do not have OOB scores")
        model.fit(view, problem.labels, sample_weight=problem.weight)
    shares = problem.prior.double().repeat(n, 1).numpy()
    out_of_bag = np.asarray(model.oob_decision_function_)
    known = np.isfinite(out_of_bag).all(1) & (out_of_bag.sum(1) > 0)
    shares[known] = 0.0
    shares[np.ix_(known, model.classes_)] = out_of_bag[known]
    base = Base(
        [Candidate(name, model, "ordinal_filled", [as_arrays(model)])],
        {name: 1.0},
        problem.n_classes,
    )
    base.oof_log_proba = log_softmax(floored_log(shares), axis=1)
    base.nll = {name: tempered_nll(base.oof_log_proba, problem.labels, problem.weight)}
    return base


def _calibrated(predictor: Predictor, problem: Problem, settings: FitSettings) -> Predictor:
    """Fit the temperatures, and what brings predictions to the wanted class shares."""
    n = len(problem.labels)
    some = np.sort(np.random.default_rng(settings.seed).permutation(n)[:_JUDGED])
    rows = torch.from_numpy(some)
    answer = predictor.predict_left_out(problem.n_classes, rows)
    labelled = (problem.truth[rows], problem.row_weight[rows])
    data = HeadRows([], answer.base_log_proba, *labelled)
    fit = CrossFit(list(predictor.heads), answer.log_proba, answer.neighbor_log_proba)
    predictor = accept_heads(predictor, fit, data, problem, settings, ridge=_RIDGE / len(rows))
    source = predictor.acceptance.source.replace("out-of-fold", "leave-one-out")
    return replace(predictor, acceptance=replace(predictor.acceptance, source=source))
