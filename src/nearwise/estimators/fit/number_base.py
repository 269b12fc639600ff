"""Base of a regressor: cross-fitted regressors and their weighted sum."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.stats import skew
from sklearn.base import is_regressor
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline

from nearwise.estimators.fit.as_arrays import as_arrays
from nearwise.estimators.fit.base import Candidate, Fold, silent_candidates
from nearwise.estimators.fit.forest import fit_number_forest, forest_settings
from nearwise.estimators.fit.problem import FitSettings, Problem
from nearwise.estimators.inputs.table import (
    LARGE,
    Encoded,
    TableEncoder,
    category_places,
    ready_embeddings,
)
from nearwise.warn import warn_user

FOREST = "extra-trees"  # first candidate of every automatic base
_TRIED = 2  # folds after which useless candidates are dropped
_LEAST_SHARE = 0.02  # candidates with a smaller share of the weights are dropped
_SKEWED = 1.0  # above this skewness of positive targets, logarithms are fitted too
_BEYOND = 0.1  # predictions may exceed the range of the targets by this share of it


@dataclass
class NumberCandidate(Candidate):
    """One regressor of the base, fitted to targets in units of `scale` around `center`.

    With `logs` it is fitted to their logarithms. Predictions are clipped to [`least`, `most`] in
    these units, as a linear model or a network can be far off for an unusual row.
    """

    center: float = 0.0
    scale: float = 1.0
    least: float = 0.0
    most: float = 0.0
    logs: bool = False

    def standardised(self, targets: np.ndarray) -> np.ndarray:
        """Set the unit and the bounds, and return the standardised targets, float64 (n,)."""
        values = np.log(targets) if self.logs else targets
        self.center, self.scale = float(values.mean()), max(float(values.std()), 1e-30)
        found: np.ndarray = (values - self.center) / self.scale
        beyond = _BEYOND * float(np.ptp(found))
        self.least, self.most = float(found.min()) - beyond, float(found.max()) + beyond
        return found

    def locations(self, view: Any, fold: int) -> np.ndarray:
        """Targets predicted by one fold's model, float64 (n,)."""
        if not view.shape[0]:
            return np.zeros(0)
        found = np.asarray(self.folds[fold].predict(view), dtype=np.float64).ravel()
        values: np.ndarray = self.center + self.scale * np.clip(found, self.least, self.most)
        return np.exp(values) if self.logs else values

    def mean_location(self, view: Any) -> np.ndarray:
        """Mean prediction of all models, (n,)."""
        every = [self.locations(view, fold) for fold in range(len(self.folds))]
        found: np.ndarray = np.mean(every, axis=0)
        return found


class NumberBase:
    """Weighted sum of regressors around the mean of the targets.

    `candidates` are the regressors of the sum; `weights` are positive; `left_out` (n,) are
    predictions of the training rows by models not trained on them; `rmse` is the root mean squared
    error of each regressor and of the sum.
    """

    def __init__(
        self, candidates: list[NumberCandidate], weights: dict[str, float], center: float
    ) -> None:
        self.candidates, self.weights, self.center = candidates, weights, center
        self.left_out = np.zeros(0)
        self.rmse: dict[str, float] = {}

    def predict(self, encoder: TableEncoder, rows: Encoded) -> np.ndarray:
        """Predicted targets of new rows, float64 (n,)."""
        views = {name: getattr(encoder, name)(rows) for name in {c.view for c in self.candidates}}
        total = np.full(len(rows), self.center)
        for one in self.candidates:
            total += self.weights[one.name] * (one.mean_location(views[one.view]) - self.center)
        return total


def given_regressor(model: Any) -> NumberCandidate:
    """Candidate of a user's regressor, on standardised numbers and one-hot categories."""
    if isinstance(model, type) or not is_regressor(model):
        raise ValueError(
            f'estimator={model!r} is not usable. Give None, "auto", or a scikit-learn regressor.'
        )
    return NumberCandidate(type(model).__name__, model, "dense", [], is_given=True)


def number_candidates(
    encoder: TableEncoder, targets: np.ndarray, *, seed: int, n_jobs: int | None
) -> list[NumberCandidate]:
    """Candidate regressors for a table of this size, beside the forest."""
    n_rows, width = len(targets), encoder.n_columns
    large = n_rows > LARGE
    ridge = NumberCandidate("ridge", RidgeCV(np.logspace(-3, 3, 13)), "dense", [])
    mlp = _mlp(large=large, seed=seed)
    if ready_embeddings(encoder) and large:
        return [ridge, NumberCandidate("mlp", mlp, "dense", [])]
    kernel = make_pipeline(
        Nystroem(gamma=0.5 / width, n_components=min(400, int(0.6 * n_rows)), random_state=seed),
        RidgeCV(np.logspace(-5, 1, 13)),
    )
    forest = RandomForestRegressor(
        **forest_settings(n_rows, seed=seed, n_jobs=n_jobs), max_features=0.5
    )
    boosting = HistGradientBoostingRegressor(
        learning_rate=0.05,
        max_iter=600 if large else 300,
        max_leaf_nodes=31 if large else 8,
        min_samples_leaf=10,
        max_features=0.5,
        l2_regularization=1.0,
        early_stopping=False,
        categorical_features=list(category_places(encoder)) or None,
        random_state=seed,
    )
    chosen = [
        ridge,
        NumberCandidate("kernel-ridge", kernel, "dense", []),
        NumberCandidate("random-forest", forest, "ordinal_filled", []),
        NumberCandidate("boosting", boosting, "ordinal", []),
        NumberCandidate("mlp", mlp, "dense", []),
    ]
    if encoder.texts:
        linear = Ridge(alpha=1.0, solver="sparse_cg")
        chosen.insert(0, NumberCandidate("text-ridge", linear, "sparse_terms", []))
    if targets.min() > 0 and skew(targets) > _SKEWED:
        chosen.append(NumberCandidate("log-boosting", boosting, "ordinal", [], logs=True))
        chosen.append(NumberCandidate("log-mlp", mlp, "dense", [], logs=True))
    return chosen


def _mlp(*, large: bool, seed: int) -> MLPRegressor:
    """MLP with two hidden layers; only this candidate learns products of columns."""
    settings: dict[str, Any] = {"alpha": 0.3, "batch_size": 32, "max_iter": 200}
    if large:
        settings = {"alpha": 0.03, "batch_size": 256, "max_iter": 60}
    width = 256 if large else 64
    return MLPRegressor(
        hidden_layer_sizes=(width, width), learning_rate_init=3e-3, random_state=seed, **settings
    )


def number_forest(
    problem: Problem, settings: FitSettings, learned: np.ndarray
) -> tuple[NumberCandidate, np.ndarray]:
    """Fit a forest to some rows, and its out-of-bag predictions of them, (n,)."""
    encoder, rows = problem.table
    candidate = NumberCandidate(FOREST, ExtraTreesRegressor(), "ordinal_filled", [])
    values, weight = candidate.standardised(problem.carried[learned]), problem.trusted_weight
    model, out_of_bag = fit_number_forest(
        encoder.ordinal_filled(rows.take(learned)),
        values,
        None if weight is None else weight[learned],
        forest_settings(len(learned), seed=settings.seed, n_jobs=settings.n_jobs),
        problem.groups_at(learned),
    )
    candidate.folds.append(as_arrays(model))
    return candidate, candidate.center + candidate.scale * out_of_bag


def cross_fit_numbers(
    candidates: list[NumberCandidate],
    problem: Problem,
    folds: list[Fold],
    *,
    known: dict[str, np.ndarray],
    apart: np.ndarray,
    progress: Callable[[str], None],
) -> NumberBase:
    """Cross-fit the candidates, and weight them for the least squared error.

    After the first two folds, candidates without use in the sum are dropped. Ctrl-C keeps the
    candidates completed before it, unless there are none and no other models. `known` are left-out
    predictions (n,) of other models in the sum. `apart` are positions of rows outside all folds;
    they are predicted by all models.
    """
    (encoder, rows), targets, weight = problem.table, problem.carried, problem.trusted_weight
    out = {one.name: np.zeros(len(targets)) for one in candidates}
    views = {name: getattr(encoder, name)(rows) for name in {one.view for one in candidates}}

    def fit(ones: list[NumberCandidate], numbers: range) -> list[NumberCandidate]:
        """Fit the models of some folds; returns the candidates completed before an interrupt."""
        for at, one in enumerate(ones):
            view, values = views[one.view], one.standardised(targets)
            some = [folds[fold] for fold in numbers]
            try:
                progress(f"base: {one.name}, fold {numbers.start + 1} of {len(folds)}")
                for fold in one.fit_folds(view, values, weight, some):
                    if fold + 1 in numbers:
                        progress(f"base: {one.name}, fold {fold + 2} of {len(folds)}")
                    held_out = folds[fold][1]
                    out[one.name][held_out] = one.locations(view[held_out], fold)
            except KeyboardInterrupt:
                if not known and not at:
                    raise
                completed = [*known, *(one.name for one in ones[:at])]
                warn_user(
                    f"Interrupted while the base's {one.name} was fitted: the fit goes on with "
                    f"{', '.join(completed)}."
                )
                return ones[:at]
        return ones

    def weights_of(ones: list[NumberCandidate], at: np.ndarray) -> dict[str, float]:
        parts = {name: part[at] for name, part in known.items()}
        parts |= {one.name: out[one.name][at] for one in ones}
        return lean_weights(parts, targets[at], None if weight is None else weight[at])

    every = np.concatenate([held for _, held in folds])
    done = candidates
    with silent_candidates(candidates):  # type: ignore[arg-type]
        done = fit(done, range(min(_TRIED, len(folds))))
        if len(folds) > _TRIED:
            some = weights_of(done, np.concatenate([held for _, held in folds[:_TRIED]]))
            done = [one for one in done if one.name in some or one.is_given]
            done = fit(done, range(_TRIED, len(folds)))
    for one in done:
        if len(apart):
            out[one.name][apart] = one.mean_location(views[one.view][apart])
    weights = weights_of(done, every)
    parts = known | {one.name: out[one.name] for one in done}
    center = _mean(targets[every], None if weight is None else weight[every])
    base = NumberBase([one for one in done if one.name in weights], weights, center)
    total = np.full(len(targets), center)
    for name, power in weights.items():
        total += power * (parts[name] - center)
    base.left_out = total
    for name, part in (parts | {"sum": total}).items():
        base.rmse[name] = float(np.sqrt(np.mean((part[every] - targets[every]) ** 2)))
    return base


def predicted_as_new(
    base: NumberBase,
    problem: Problem,
    settings: FitSettings,
    folds: list[Fold],
    number: int,
) -> np.ndarray:
    """Predictions (n,) of all rows by a base refitted without one fold.

    Rows of the fold are predicted like new rows; other rows get left-out predictions, as in a fit
    without the fold.
    """
    encoder, rows = problem.table
    targets, weight, held_out = problem.carried, problem.trusted_weight, folds[number][1]
    others = [fold for at, fold in enumerate(folds) if at != number]
    rest = [(np.setdiff1d(train, held_out), held) for train, held in others]
    known = np.concatenate([held for _, held in rest])
    total = np.full(len(targets), base.center)
    for one in base.candidates:
        view, out = getattr(encoder, one.view)(rows), np.zeros(len(targets))
        if one.name == FOREST:
            again, out[known] = number_forest(problem, settings, known)
        else:
            again = replace(one, folds=[])
            values = again.standardised(targets)
            with silent_candidates([again]):
                for fold in again.fit_folds(view, values, weight, rest):
                    held = rest[fold][1]
                    out[held] = again.locations(view[held], fold)
        out[held_out] = again.mean_location(view[held_out])
        total += base.weights[one.name] * (out - base.center)
    return total


def lean_weights(
    parts: dict[str, np.ndarray], targets: np.ndarray, weight: np.ndarray | None
) -> dict[str, float]:
    """Positive weights of the sum with the least squared error, without negligible ones."""
    center = _mean(targets, weight)
    root = np.ones(len(targets)) if weight is None else np.sqrt(weight)
    names = list(parts)
    while True:
        columns = np.stack([(parts[name] - center) * root for name in names], axis=1)
        scale = max(float(np.abs(columns).max()), 1e-300)
        found, _ = nnls(columns / scale, (targets - center) * root / scale)
        if not found.any():
            return {names[0]: 1.0}
        kept = [n for n, w in zip(names, found, strict=True) if w > _LEAST_SHARE * found.sum()]
        if len(kept) == len(names):
            return dict(zip(names, map(float, found), strict=True))
        names = kept


def _mean(targets: np.ndarray, weight: np.ndarray | None) -> float:
    return float(np.average(targets, weights=weight))
