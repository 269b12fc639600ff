"""Fit of a regressor: features, base, memory, and width of the mixtures."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from nearwise.estimators.fit.head_fitting import JUDGED
from nearwise.estimators.fit.networks import fit_features, fit_texts
from nearwise.estimators.fit.number_base import (
    FOREST,
    NumberBase,
    NumberCandidate,
    cross_fit_numbers,
    given_regressor,
    number_candidates,
    number_forest,
    predicted_as_new,
)
from nearwise.estimators.fit.pipeline import FEWEST, measure_spaces
from nearwise.estimators.fit.planned_steps import Phases, n_folds, number_steps
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
from nearwise.estimators.model.mixture import Mixture
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

_ROUNDS = 8  # most rounds of short fits for label noise
_SETTLED = 0.01  # rounds end at a smaller mean change of the probabilities to be wrong
_LEAST_TRUST = 1e-3  # least trust of a target; with weight 0 a row would be no neighbor
_FEWEST_FOLDS = 3  # fewest folds to predict one as new and cross-fit the others
_ENOUGH = 400  # enough rows predicted as new; with fewer, all folds are used
_RIDGE = 0.02  # penalty on the squared log of the factor, as a share of the CRPS


def fit_numbers(
    problem: Problem, settings: FitSettings, progress: Progress, label_noise: Any = None
) -> NumberPredictor:
    """Fit a regressor; with `label_noise` after an expectation-maximisation over short fits.

    Each short fit makes leave-one-out predictions and estimates the probability that each target
    is wrong; the next fit weights the targets by the probability to be right.
    """
    progress.plan(_planned(problem, settings, n_rounds=0 if label_noise is None else _ROUNDS))
    if label_noise is None:
        return _fit(problem, settings, progress)
    rate, short = check_rate(label_noise), settings
    if isinstance(settings.base, str):
        short = settings.model_copy(update={"preset": "instant"})
    every, before = torch.arange(len(problem.labels)), np.full(len(problem.labels), np.inf)
    for number in range(_ROUNDS):
        progress.stage(f"label noise, round {number + 1} of at most {_ROUNDS}")
        rough = replace(problem, choice=dict(problem.choice), history=[])
        predictor = _fit(rough, short, Progress(0), for_new_rows=False)
        found = wrong_targets(predictor, predictor.predict_left_out(every)[0], rate)
        problem.trust = np.maximum(1 - found.posterior, _LEAST_TRUST)
        changed, before = np.abs(found.posterior - before).mean(), found.posterior
        if changed < _SETTLED:
            break
    problem.choice["label_noise"] = {"rate": found.rate, "interval": list(found.interval)}
    return _fit(problem, settings, progress)


def _fit(
    problem: Problem, settings: FitSettings, progress: Progress, *, for_new_rows: bool = True
) -> NumberPredictor:
    """Fit features, base and memory, with the pretrained head.

    The base starts with a forest, whose predictions of its training rows are out of bag. Unless
    the preset is "instant", or rows are few, other regressors are cross-fitted and join if they
    lower the squared error. Neighbors hold the residuals of the left-out base predictions. With a
    hold-out split, models are cross-fitted on the training part and calibrated on the held-out
    rows. Without `for_new_rows` the width is calibrated for remembered rows alone.
    """
    encoder = problem.table[0]
    targets, every = problem.carried, np.arange(len(problem.labels))
    train, apart = _held_out(problem, settings)
    features = fit_features(problem, train, settings, progress)
    folds = _folds(problem, settings, train, has_apart=apart is not None)
    base = _base(problem, settings, train, apart, folds, progress)
    progress.stage("memory")
    center, scale = float(targets.mean()), max(float(targets.std()), 1e-30)
    models = NumberModels(encoder, features, base, center, scale, texts=fit_texts(problem))
    views = _remember(problem, settings, models, apart)
    problem.choice["base"] = None if base is None else base.weights
    if base is not None:
        problem.choice["base_rmse"] = base.rmse
    lower, upper = bounds_of(targets)
    predictor = NumberPredictor(
        encoder=encoder,
        row_models=models,
        views=views,
        head=copy.deepcopy(shared_number_head()),
        choice=problem.choice,
        history=problem.history,
        lower=lower,
        upper=upper,
    )
    if settings.calibrate:
        progress.stage("calibration")
        some = _some(every if apart is None else apart, settings)
        spread = fit_spread(predictor, some)
        if for_new_rows and base is not None and apart is None and len(folds) >= _FEWEST_FOLDS:
            ratio = _new_to_left_out(predictor, problem, settings, folds, progress)
            spread = spread._replace(factor=spread.left_out * ratio)
        predictor = replace(predictor, spread=spread)
    return predictor


def _some(positions: np.ndarray, settings: FitSettings) -> Tensor:
    """Random sample of positions for calibration, at most 2,000."""
    rng = np.random.default_rng(settings.seed)
    return torch.from_numpy(np.sort(rng.permutation(positions)[:JUDGED]))


def _held_out(problem: Problem, settings: FitSettings) -> tuple[np.ndarray, np.ndarray | None]:
    """Positions of the training rows, and of the held-out rows or None."""
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
    folds: list[Fold],
    progress: Progress,
) -> NumberBase | None:
    """Fit the base, with a left-out prediction of every row."""
    if settings.base is None:
        return None
    encoder, rows = problem.table
    targets = problem.carried
    held_out = np.empty(0, dtype=np.int64) if apart is None else apart
    forest = None
    known: dict[str, np.ndarray] = {}
    if isinstance(settings.base, str):
        progress.stage("forest")
        forest, out_of_bag = number_forest(problem, settings, train)
        known[FOREST] = np.zeros(len(targets))
        known[FOREST][train] = out_of_bag
        view = encoder.ordinal_filled(rows.take(held_out))
        known[FOREST][held_out] = forest.locations(view, 0)
    base = cross_fit_numbers(
        _candidates(problem, settings, train),
        problem,
        folds,
        known=known,
        apart=held_out,
        progress=progress.stage,
    )
    if forest is not None and FOREST in base.weights:
        base.candidates.insert(0, forest)
    return base


def _candidates(
    problem: Problem, settings: FitSettings, train: np.ndarray
) -> list[NumberCandidate]:
    """Regressors to cross-fit beside the forest, or the given one."""
    if not isinstance(settings.base, str):
        return [given_regressor(settings.base)]
    if settings.preset == "instant" or len(train) < FEWEST:
        return []
    own, n_jobs = problem.carried[train], settings.n_jobs
    return number_candidates(problem.table[0], own, seed=settings.seed, n_jobs=n_jobs)


def _planned(problem: Problem, settings: FitSettings, *, n_rounds: int) -> Phases:
    """Plan the steps that the fit will probably take."""
    n_rows, n, has_base = len(problem.labels), n_folds(problem, settings), settings.base is not None
    as_new = has_base and not isinstance(settings.cv, float) and n >= _FEWEST_FOLDS
    return number_steps(
        _candidates(problem, settings, np.arange(n_rows)) if has_base else [],
        n,
        has_forest=isinstance(settings.base, str),
        n_rounds=n_rounds,
        n_as_new=min(n, -(-_ENOUGH * n // n_rows)) if as_new else 0,
    )


def _folds(
    problem: Problem, settings: FitSettings, train: np.ndarray, *, has_apart: bool
) -> list[Fold]:
    """Folds of the training rows, as positions among all rows."""
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
    keys = models.label_free_keys(problem.table[1])
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
    """Width of the mixtures with the least leave-one-out CRPS of remembered rows (n,).

    Only the width is fitted, not the location. The base predictions of a row's neighbors were
    trained on the row itself, so that a fit would ignore the neighbors' mean residual, which helps
    for new rows.
    """
    return _fitted_width([_left_out(predictor, positions)], *_truth(predictor, positions))


def _new_to_left_out(
    predictor: NumberPredictor,
    problem: Problem,
    settings: FitSettings,
    folds: list[Fold],
    progress: Progress,
) -> float:
    """Ratio of the best width for new rows to the leave-one-out width of the same rows.

    It is below 1: the residuals of a row's neighbors come from base models trained on that row,
    and new rows are predicted by the mean over the folds' models. To measure it, rows of some
    folds are predicted by a base and a memory without the fold.
    """
    views, models = predictor.views, predictor.row_models
    assert models.base is not None  # guaranteed by the caller
    new: list[Mixture] = []
    positions: list[Tensor] = []
    for number, (_, held_out) in enumerate(folds):
        if sum(len(part) for part in positions) >= _ENOUGH:
            break
        progress.stage(f"calibration: out-of-sample predictions, fold {number + 1}")
        found = predicted_as_new(models.base, problem, settings, folds, number)
        locations, at = torch.from_numpy(found), _some(held_out, settings)
        bank = views.bank.fork()
        bank.columns[LOCATION] = locations
        bank.keys |= models.supervised(bank.keys["features"], locations)
        queries = {name: keys[at] for name, keys in bank.keys.items()}
        bank.remove(bank.ids[torch.from_numpy(held_out)])
        without = NumberViews(problem.encoder.n_columns, bank, [], settings.index)
        measure_spaces(without, settings)
        retrieved = without.retrieve_numbers(queries, locations[at])
        new.append(predictor.plain(predictor.head.predict(retrieved.spaces), retrieved))
        positions.append(at)
    at = torch.cat(positions)
    truth = _truth(predictor, at)
    of_left_out = _fitted_width([_left_out(predictor, at)], *truth)
    return _fitted_width(new, *truth).factor / of_left_out.factor


def _left_out(predictor: NumberPredictor, positions: Tensor) -> Mixture:
    """Leave-one-out mixtures of remembered rows (n,), not widened."""
    retrieved = predictor.retrieve_remembered(positions)
    return predictor.plain(predictor.head.predict(retrieved.spaces), retrieved)


def _truth(predictor: NumberPredictor, positions: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Targets and weights of remembered rows, (n,)."""
    weight = predictor.views.trusted_weight[positions].double().numpy()
    return predictor.views.bank.columns[TARGET][positions].numpy(), weight


def _fitted_width(parts: list[Mixture], targets: np.ndarray, weight: np.ndarray) -> Spread:
    """Choose the common width factor of the mixtures of all parts by the CRPS."""
    apart = np.concatenate([part.apart() for part in parts])
    own = np.split(targets, np.cumsum([len(part) for part in parts])[:-1])

    def crps(log_factor: float) -> float:
        factor = float(np.exp(log_factor))
        each = zip(parts, own, strict=True)
        away = np.concatenate([part.scaled(factor).away(y) for part, y in each])
        return float(np.average(away - factor * apart / 2, weights=weight))

    pull = _RIDGE * abs(crps(0.0)) * min(1.0, 100 / len(targets))
    found = minimize_scalar(lambda x: crps(x) + pull * x**2, bounds=(-0.7, 0.7), method="bounded")
    factor = float(np.exp(found.x))
    return Spread(factor, factor, crps(float(found.x)))
