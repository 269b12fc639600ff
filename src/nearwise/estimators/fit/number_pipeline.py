"""The fit of a regressor: features, a base, the memory, and the width of the mixtures."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from nearwise.estimators.fit.head_fitting import JUDGED
from nearwise.estimators.fit.networks import fit_features
from nearwise.estimators.fit.number_base import (
    FOREST,
    NumberBase,
    cross_fit_numbers,
    given_regressor,
    number_candidates,
    number_forest,
)
from nearwise.estimators.fit.pipeline import FEWEST, measure_spaces
from nearwise.estimators.fit.problem import (
    FitSettings,
    Fold,
    Problem,
    auto_folds,
    cross_fit_folds,
    held_out_fold,
)
from nearwise.estimators.inputs.targets import bounds_of
from nearwise.estimators.model.memory_views import FOLD
from nearwise.estimators.model.number_memory import LOCATION, TARGET, TRUST, NumberViews
from nearwise.estimators.model.number_predictor import (
    NumberModels,
    NumberPredictor,
    Spread,
    wrong_targets,
)
from nearwise.estimators.model.wrong_targets import check_rate
from nearwise.estimators.progress import Progress
from nearwise.memory import MemoryBank
from nearwise.nn import shared_number_head

_ROUNDS = 8  # of short fits at the most, where some targets may be wrong
_SETTLED = 0.01  # mean change of the probabilities to be wrong that ends them
_LEAST_TRUST = 1e-3  # of a target that looks wrong; a row of weight 0 would be no neighbor
_RIDGE = 0.02  # pull of the logarithm of the factor towards 0, in shares of the CRPS of few rows


def fit_numbers(
    problem: Problem, settings: FitSettings, progress: Progress, label_noise: Any = None
) -> NumberPredictor:
    """Fit; where some targets may be wrong, by an expectation-maximisation over short fits first.

    Each of these predicts all rows, left out, and says how probable it is that their targets are
    wrong; the next one has them count for as much less.
    """
    if label_noise is None:
        return _fit(problem, settings, progress)
    rate, short = check_rate(label_noise), settings
    if isinstance(settings.base, str):
        short = settings.model_copy(update={"preset": "instant"})
    every, before = torch.arange(len(problem.labels)), np.full(len(problem.labels), np.inf)
    for number in range(_ROUNDS):
        progress.stage(f"wrong targets, round {number + 1} of at most {_ROUNDS}")
        rough = replace(problem, choice=dict(problem.choice), history=[])
        predictor = _fit(rough, short, Progress(0))
        found = wrong_targets(predictor, predictor.predict_left_out(every)[0], rate)
        problem.trust = np.maximum(1 - found.posterior, _LEAST_TRUST)
        changed, before = np.abs(found.posterior - before).mean(), found.posterior
        if changed < _SETTLED:
            break
    problem.choice["label_noise"] = {"rate": found.rate, "interval": list(found.interval)}
    return _fit(problem, settings, progress)


def _fit(problem: Problem, settings: FitSettings, progress: Progress) -> NumberPredictor:
    """Map the features, fit a base, remember the rows, and take the pretrained head.

    The base begins with a forest, whose predictions of its own rows are out of bag. Unless the
    preset is "instant", or rows are few, other regressors are cross-fitted and those that lower the
    squared error join. Neighbors carry what the base, left out, was wrong by. Where rows are held
    out once, all is cross-fitted on the others, and calibrated on them.
    """
    encoder = problem.table[0]
    targets, every = problem.carried, np.arange(len(problem.labels))
    train, apart = _held_out(problem, settings)
    features = fit_features(problem, train, settings, progress)
    base = _base(problem, settings, train, apart, progress)
    progress.stage("memory")
    center, scale = float(targets.mean()), max(float(targets.std()), 1e-30)
    models = NumberModels(encoder, features, base, center, scale)
    views = _remember(problem, settings, models, apart)
    problem.choice["base"] = None if base is None else base.weights
    if base is not None:
        problem.choice["base_rmse"] = base.rmse
    lower, upper = bounds_of(targets)
    predictor = NumberPredictor(
        encoder=encoder,
        row_models=models,  # type: ignore[arg-type]
        views=views,
        head=copy.deepcopy(shared_number_head()),
        choice=problem.choice,
        history=problem.history,
        lower=lower,
        upper=upper,
    )
    if settings.calibrate:
        progress.stage("calibration")
        judged = every if apart is None else apart
        some = np.sort(np.random.default_rng(settings.seed).permutation(judged)[:JUDGED])
        predictor = replace(predictor, spread=fit_spread(predictor, torch.from_numpy(some)))
    return predictor


def _held_out(problem: Problem, settings: FitSettings) -> tuple[np.ndarray, np.ndarray | None]:
    """Positions of the rows to learn from, and of those held out once, if any."""
    every = np.arange(len(problem.labels))
    if not isinstance(share := settings.cv, float):
        return every, None
    folds = problem.without_copies(settings.folds) or [
        held_out_fold(problem.labels, share, settings.seed, problem.groups)
    ]
    train, held_out = folds[0]
    problem.choice["held_out"] = len(held_out)
    return train, held_out


def _base(
    problem: Problem,
    settings: FitSettings,
    train: np.ndarray,
    apart: np.ndarray | None,
    progress: Progress,
) -> NumberBase | None:
    """Fit what predicts the location, with a left-out prediction of every row."""
    if settings.base is None:
        return None
    encoder, rows = problem.table
    targets, weight, seed = problem.carried, problem.trusted_weight, settings.seed
    held_out = np.empty(0, dtype=np.int64) if apart is None else apart
    own = not isinstance(settings.base, str)
    known: dict[str, np.ndarray] = {}
    forest = None
    if not own:
        progress.stage("forest")
        of_train = None if weight is None else weight[train]
        forest, out_of_bag = number_forest(
            encoder,
            rows.take(train),
            targets[train],
            of_train,
            seed=seed,
            n_jobs=settings.n_jobs,
            groups=problem.groups_at(train),
        )
        known[FOREST] = np.zeros(len(targets))
        known[FOREST][train] = out_of_bag
        view = encoder.ordinal_filled(rows.take(held_out))
        known[FOREST][held_out] = forest.locations(view, 0)
    candidates = []
    if own:
        candidates = [given_regressor(settings.base)]
    elif settings.preset != "instant" and len(train) >= FEWEST:
        candidates = number_candidates(encoder, targets[train], seed=seed, n_jobs=settings.n_jobs)
    base = cross_fit_numbers(
        candidates,
        encoder,
        rows,
        targets,
        weight,
        _folds(problem, settings, train, has_apart=apart is not None),
        known=known,
        apart=held_out,
        progress=progress.stage,
    )
    if forest is not None and FOREST in base.weights:
        base.candidates.insert(0, forest)
    return base


def _folds(
    problem: Problem, settings: FitSettings, train: np.ndarray, *, has_apart: bool
) -> list[Fold]:
    """Folds of the rows to learn from, as positions among all rows."""
    if not has_apart and settings.folds:
        return problem.without_copies(settings.folds)
    n_folds = int(settings.cv) if isinstance(settings.cv, int) else auto_folds(len(train))
    groups = problem.groups_at(train)
    folds = cross_fit_folds(problem.labels[train], n_folds, settings.seed, groups)
    return [(train[learned], train[held]) for learned, held in folds]


def _remember(
    problem: Problem,
    settings: FitSettings,
    models: NumberModels,
    apart: np.ndarray | None,
) -> NumberViews:
    """Fill a memory with all rows, their targets and left-out predictions."""
    n_rows = len(problem.labels)
    keys = {"features": models.feature_keys(problem.table[1])}
    fold = torch.zeros(n_rows, dtype=torch.int64)
    if apart is not None:
        fold -= 1
        fold[torch.from_numpy(apart)] = 0
    columns = {TARGET: torch.from_numpy(problem.carried), FOLD: fold} | problem.group_column
    if problem.trust is not None:
        columns[TRUST] = torch.from_numpy(problem.trust)
    if models.base is not None:
        columns[LOCATION] = torch.from_numpy(models.base.left_out)
        keys |= models.supervised(keys["features"], columns[LOCATION])
    bank = MemoryBank(
        keys,
        torch.zeros(n_rows, dtype=torch.int64),
        ids=problem.ids,
        sample_weight=problem.row_weight,
        n_classes=1,
        columns=columns,
    )
    views = NumberViews(problem.encoder.n_columns, bank, [], settings.index)
    measure_spaces(views, settings)
    return views


def fit_spread(predictor: NumberPredictor, positions: Tensor) -> Spread:
    """Choose the width of the mixtures with the least CRPS of remembered rows (n,), each left out.

    Not their place: what the base, left out, predicts for a row's neighbors has learned the row
    itself, so that these rows would have the neighbors' mean residual ignored, which new rows gain
    from.
    """
    bank = predictor.views.bank
    retrieved = predictor.retrieve_remembered(positions)
    mixture = predictor.plain(predictor.head.predict(retrieved.spaces), retrieved)
    targets = bank.columns[TARGET][positions].numpy()
    weight = predictor.memory.trusted_weight[positions].double().numpy()
    apart = float(np.average(mixture.apart(), weights=weight))

    def crps(log_factor: float) -> float:
        factor = float(np.exp(log_factor))
        away = mixture.scaled(factor).away(targets)
        return float(np.average(away, weights=weight)) - factor * apart / 2

    before = crps(0.0)
    pull = _RIDGE * abs(before) * min(1.0, 100 / len(positions))
    found = minimize_scalar(lambda x: crps(x) + pull * x**2, bounds=(-0.7, 0.7), method="bounded")
    return Spread(float(np.exp(found.x)), crps(float(found.x)), before)
