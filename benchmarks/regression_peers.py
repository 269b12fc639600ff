"""Regressors that predict distributions, as benchmarks/regression.py compares them.

All get the columns as the library encodes them, and predict the same 19 quantiles.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors

from nearwise import AttnKNNRegressor
from nearwise.estimators.inputs.table import TableEncoder

LEVELS = np.arange(1, 20) / 20
TREES = 300
TRIALS = 30  # of CatBoost's tuning
_MOST_TUNED = 2_000  # rows of it


@dataclass
class Predicted:
    """Predictions of new rows: quantiles (n, 19), the mean (n,), a 90 % interval (n, 2).

    `log_density` of the targets (n,) where the method has one.
    """

    quantiles: np.ndarray
    mean: np.ndarray
    interval: np.ndarray
    log_density: np.ndarray | None = None

    @classmethod
    def of_quantiles(cls, quantiles: np.ndarray, mean: np.ndarray | None = None) -> "Predicted":
        """Take the 5 % and 95 % quantiles for the interval, and their mean where none is given."""
        quantiles = np.sort(quantiles, axis=1)
        own = quantiles.mean(1) if mean is None else mean
        return cls(quantiles, own, quantiles[:, [0, -1]])


Method = Callable[[Any, np.ndarray, Any, np.ndarray, int, dict[str, Any]], Predicted]


def pinball(quantiles: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Twice the mean pinball loss over the levels, (n,): the CRPS from 19 quantiles."""
    away = y[:, None] - quantiles
    found: np.ndarray = 2 * np.maximum(LEVELS * away, (LEVELS - 1) * away).mean(1)
    return found


def encoded(view: str, X: Any, new: Any) -> tuple[np.ndarray, np.ndarray]:
    """Training and new rows as numbers."""
    encoder = TableEncoder()
    rows = encoder.learn(X, None)
    return getattr(encoder, view)(rows), getattr(encoder, view)(encoder.transform(new))


def nearwise(preset: Any, label_noise: Any = None) -> Method:
    """Make the method of this project with a preset; `label_noise` of targets that may be wrong."""

    def run(
        X: Any, y: np.ndarray, new: Any, truth: np.ndarray, seed: int, tuned: dict[str, Any]
    ) -> Predicted:
        model = AttnKNNRegressor(
            preset=preset, label_noise=label_noise, n_jobs=1, random_state=seed
        ).fit(X, y)
        query = model.query(new)
        own = query.mixture
        density = own.log_density(truth)
        return Predicted(query.quantiles(LEVELS), query.predict(), query.interval(0.9), density)

    return run


def quantile_forest(
    X: Any, y: np.ndarray, new: Any, truth: np.ndarray, seed: int, tuned: dict[str, Any]
) -> Predicted:
    """Quantile regression forest; the leaf size by a quarter of the training rows."""
    from quantile_forest import RandomForestQuantileRegressor

    old, fresh = encoded("ordinal_filled", X, new)

    def fit(rows: np.ndarray, leaf: int) -> Any:
        model = RandomForestQuantileRegressor(TREES, min_samples_leaf=leaf, random_state=seed)
        return model.fit(old[rows], y[rows])

    learn, check = train_test_split(np.arange(len(y)), test_size=0.25, random_state=seed)
    losses = {}
    for leaf in (1, 2, 5, 10):
        found = fit(learn, leaf).predict(old[check], quantiles=list(LEVELS))
        losses[leaf] = pinball(found, y[check]).mean()
    model = fit(np.arange(len(y)), min(losses, key=lambda leaf: losses[leaf]))
    mean = model.predict(fresh, quantiles="mean")
    return Predicted.of_quantiles(model.predict(fresh, quantiles=list(LEVELS)), mean)


def forest(
    X: Any, y: np.ndarray, new: Any, truth: np.ndarray, seed: int, tuned: dict[str, Any]
) -> Predicted:
    """A forest, and the predictive system of crepes on its out-of-bag residuals."""
    from crepes import ConformalPredictiveSystem

    old, fresh = encoded("ordinal_filled", X, new)
    model = RandomForestRegressor(TREES, oob_score=True, random_state=seed).fit(old, y)
    spread = np.std([tree.predict(old.astype(np.float32)) for tree in model.estimators_], axis=0)
    wide = np.std([tree.predict(fresh.astype(np.float32)) for tree in model.estimators_], axis=0)
    floor = 0.01 * max(float(np.std(y)), 1e-12)
    system = ConformalPredictiveSystem()
    system.fit(residuals=y - model.oob_prediction_, sigmas=spread + floor)
    mean = model.predict(fresh)
    found = system.predict_percentiles(
        y_hat=mean, sigmas=wide + floor, lower_percentiles=list(100 * LEVELS)
    )
    return Predicted.of_quantiles(found, mean)


def ngboost(
    X: Any, y: np.ndarray, new: Any, truth: np.ndarray, seed: int, tuned: dict[str, Any]
) -> Predicted:
    """NGBoost with normal distributions, stopped on 15 % of the rows."""
    from ngboost import NGBRegressor

    old, fresh = encoded("ordinal_filled", X, new)
    learn, check = train_test_split(np.arange(len(y)), test_size=0.15, random_state=seed)
    center, scale = y.mean(), max(y.std(), 1e-12)
    model = NGBRegressor(n_estimators=1000, learning_rate=0.02, verbose=False, random_state=seed)
    unit = (y - center) / scale
    model.fit(old[learn], unit[learn], old[check], unit[check], early_stopping_rounds=30)
    found = model.pred_dist(fresh).params
    mean, width = center + scale * found["loc"], scale * found["scale"]
    made = Predicted.of_quantiles(norm.ppf(LEVELS, mean[:, None], width[:, None]), mean)
    made.log_density = norm.logpdf(truth, mean, width)
    return made


def catboost(
    X: Any, y: np.ndarray, new: Any, truth: np.ndarray, seed: int, tuned: dict[str, Any]
) -> Predicted:
    """CatBoost with 19 quantiles, by the parameters that 30 trials chose for the table."""
    from catboost import CatBoostRegressor

    old, fresh = encoded("ordinal", X, new)
    rest = {name: value for name, value in tuned.items() if name != "iterations"}
    levels = ",".join(map(str, LEVELS))
    common: dict[str, Any] = {"random_seed": seed, "thread_count": 1, "verbose": False}
    common |= {"allow_writing_files": False, "iterations": tuned["iterations"]}
    model = CatBoostRegressor(loss_function=f"MultiQuantile:alpha={levels}", **common, **rest)
    center = CatBoostRegressor(loss_function="RMSE", **common, **rest).fit(old, y).predict(fresh)
    return Predicted.of_quantiles(model.fit(old, y).predict(fresh), center)


def tune_catboost(X: Any, y: np.ndarray, seed: int) -> dict[str, Any]:
    """Draw 30 parameters at random, and take those with the least loss on a fifth of the rows.

    Of 2,000 rows at most: 30 fits of 19 quantiles to 7,000 rows take half an hour.
    """
    from catboost import CatBoostRegressor

    some = np.sort(np.random.default_rng(seed).permutation(len(y))[:_MOST_TUNED])
    X, y = X.iloc[some], y[some]
    old, _ = encoded("ordinal", X, X.iloc[:2])
    learn, check = train_test_split(np.arange(len(y)), test_size=0.2, random_state=seed)
    rng, best = np.random.default_rng(seed), (np.inf, dict[str, Any]())
    levels = ",".join(map(str, LEVELS))
    for _ in range(TRIALS):
        drawn = {
            "learning_rate": float(np.exp(rng.uniform(np.log(0.02), np.log(0.2)))),
            "depth": int(rng.integers(3, 9)),
            "l2_leaf_reg": float(np.exp(rng.uniform(0, np.log(20)))),
            "random_strength": float(rng.uniform(0, 2)),
        }
        model = CatBoostRegressor(
            loss_function=f"MultiQuantile:alpha={levels}", iterations=1000, random_seed=seed,
            thread_count=1, verbose=False, allow_writing_files=False, **drawn,
        )  # fmt: skip
        model.fit(old[learn], y[learn], eval_set=(old[check], y[check]), early_stopping_rounds=40)
        loss = float(pinball(model.predict(old[check]), y[check]).mean())
        if loss < best[0]:
            best = loss, drawn | {"iterations": max(20, model.tree_count_)}
    return best[1]


def lightgbm(
    X: Any, y: np.ndarray, new: Any, truth: np.ndarray, seed: int, tuned: dict[str, Any]
) -> Predicted:
    """One LightGBM model per quantile, stopped on 15 % of the rows."""
    from lightgbm import LGBMRegressor, early_stopping

    old, fresh = encoded("ordinal", X, new)
    learn, check = train_test_split(np.arange(len(y)), test_size=0.15, random_state=seed)
    columns = []
    for level in LEVELS:
        model = LGBMRegressor(
            objective="quantile", alpha=level, n_estimators=500, learning_rate=0.05,
            num_leaves=15, random_state=seed, n_jobs=1, verbose=-1,
        )  # fmt: skip
        stop: list[Any] = [early_stopping(20, verbose=False)]
        model.fit(old[learn], y[learn], eval_set=[(old[check], y[check])], callbacks=stop)
        columns.append(model.predict(fresh))
    return Predicted.of_quantiles(np.stack(columns, axis=1))


def conformal_quantiles(
    X: Any, y: np.ndarray, new: Any, truth: np.ndarray, seed: int, tuned: dict[str, Any]
) -> Predicted:
    """Conformalized quantile regression of MAPIE on gradient boosting; an interval alone."""
    from mapie.regression import ConformalizedQuantileRegressor
    from sklearn.ensemble import HistGradientBoostingRegressor

    old, fresh = encoded("ordinal", X, new)
    learn, check = train_test_split(np.arange(len(y)), test_size=0.25, random_state=seed)
    base = HistGradientBoostingRegressor(loss="quantile", quantile=0.5, random_state=seed)
    model = ConformalizedQuantileRegressor(base, confidence_level=0.9)
    model.fit(old[learn], y[learn]).conformalize(old[check], y[check])
    mean, found = model.predict_interval(fresh)
    interval = found[:, :, 0]
    nothing = np.full((len(fresh), len(LEVELS)), np.nan)
    return Predicted(nothing, mean, interval)


def neighbors(
    X: Any, y: np.ndarray, new: Any, truth: np.ndarray, seed: int, tuned: dict[str, Any]
) -> Predicted:
    """k nearest neighbors: k and the weights by the left-out pinball loss of training rows."""
    old, fresh = encoded("dense", X, new)
    width = min(64, len(y) - 1)
    index = NearestNeighbors(n_neighbors=width).fit(old)
    some = np.random.default_rng(seed).permutation(len(y))[:1000]
    away, found = index.kneighbors(old[some], n_neighbors=width + 1)
    own = found == some[:, None]
    own[~own.any(1), -1] = True  # a copy came before the row itself
    away, found = away[~own].reshape(-1, width), found[~own].reshape(-1, width)

    def quantiles(distances: np.ndarray, at: np.ndarray, k: int, sharp: float) -> np.ndarray:
        distances, values = distances[:, :k], y[at[:, :k]]
        relative = distances / np.maximum(distances.mean(1, keepdims=True), 1e-12)
        weight = np.exp(-sharp * relative)
        order = np.argsort(values, axis=1)
        values, weight = (np.take_along_axis(part, order, 1) for part in (values, weight))
        share = (np.cumsum(weight, 1) - weight / 2) / weight.sum(1, keepdims=True)
        rows = zip(share, values, strict=True)
        return np.stack([np.interp(LEVELS, own_share, own) for own_share, own in rows])

    tries = [(k, sharp) for k in (4, 8, 16, 32, 64) if k <= width for sharp in (0.0, 2.0, 6.0)]
    losses = [pinball(quantiles(away, found, *one), y[some]).mean() for one in tries]
    best = tries[int(np.argmin(losses))] if tries else (width, 0.0)
    apart, near = index.kneighbors(fresh)
    return Predicted.of_quantiles(quantiles(apart, near, best[0], best[1]))


def ridge(
    X: Any, y: np.ndarray, new: Any, truth: np.ndarray, seed: int, tuned: dict[str, Any]
) -> Predicted:
    """Ridge regression with normal errors: their deviation from left-out residuals."""
    old, fresh = encoded("dense", X, new)
    model = RidgeCV(np.logspace(-3, 3, 13), store_cv_results=True).fit(old, y)
    chosen = int(np.argmin(model.cv_results_.mean(0)))
    width = max(float(np.sqrt(model.cv_results_[:, chosen].mean())), 1e-12)
    mean = model.predict(fresh)
    made = Predicted.of_quantiles(norm.ppf(LEVELS, mean[:, None], width), mean)
    made.log_density = norm.logpdf(truth, mean, width)
    return made


METHODS: dict[str, Method] = {
    "default": nearwise("default"),
    "instant": nearwise("instant"),
    "label-noise": nearwise("default", "auto"),
    "quantile-forest": quantile_forest,
    "forest-crepes": forest,
    "ngboost": ngboost,
    "catboost-tuned": catboost,
    "lightgbm": lightgbm,
    "mapie-cqr": conformal_quantiles,
    "knn-tuned": neighbors,
    "ridge": ridge,
}
