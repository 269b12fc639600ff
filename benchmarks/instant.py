"""Judge preset "instant" beside tuned peers and the other presets, with what each costs.

Claims: on families of tables that nothing was trained, tuned or chosen on, the lowest mean rank of
NLL among tuned nearest neighbors, logistic regression, forest, boosting and an MLP, each with a
temperature; with at most 48 rows no worse than the
class shares or a ridge logistic regression by more than .05.

    python benchmarks/instant.py --data-root DATA
    python benchmarks/instant.py --data-root DATA --part dev --methods instant,fast

Resumable: what is measured is kept in runs/instant-PART.json. Of the part "judge" it writes
benchmarks/results/instant.json.
"""

import json
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from judge_head import MOST_QUERIES, SIZES, compared, sklearn_tables, splits
from keeping import RESULTS, conditions, keep, listed, options_of, read
from nearwise_lab.experiments.boosting import StoppedBoosting
from nearwise_lab.experiments.linear import TunedLogistic
from nearwise_lab.experiments.neighbors import TunedKNN
from nearwise_lab.experiments.network import StoppedMLP, fit_temperature, tempered
from nearwise_lab.experiments.peers.bag import TemperedBag
from nearwise_lab.experiments.preprocess import FeatureEncoder
from pretrain_tasks import Table, family_split, read_table
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.pipeline import make_pipeline

from nearwise import AttnKNNClassifier
from nearwise.data import hold_out

RIDGE = 2.0  # pull of every temperature towards 1, in rows
Fitted = Callable[[pd.DataFrame], np.ndarray]


class ClassShares:
    """Predicts the shares of the classes, each counted half a row more."""

    def fit(self, X: pd.DataFrame, y: np.ndarray) -> "ClassShares":
        self.classes_, counts = np.unique(y, return_counts=True)
        self.shares = (counts + 0.5) / (counts + 0.5).sum()
        return self

    def predict_proba(self, X: pd.DataFrame) -> np.ndarray:
        return np.tile(self.shares, (len(X), 1))


def forest_with_temperature(kind: Any, seed: int) -> Callable[[pd.DataFrame, np.ndarray], Fitted]:
    """200 trees, with a temperature fitted to their out-of-bag predictions."""

    def fit(X: pd.DataFrame, y: np.ndarray) -> Fitted:
        encoder = FeatureEncoder("none")
        model = kind(200, bootstrap=True, oob_score=True, random_state=seed)
        model.fit(encoder.fit_transform(X), y)
        unseen = model.oob_decision_function_
        known = np.isfinite(unseen).all(1) & (unseen.sum(1) > 0)
        at = np.searchsorted(model.classes_, y)
        ridge = RIDGE / max(known.sum(), 1)
        t = fit_temperature(floored(unseen[known]), at[known], ridge=ridge)
        return lambda new: tempered(floored(model.predict_proba(encoder.transform(new))), t)

    return fit


def boosting_with_temperature(seed: int) -> Callable[[pd.DataFrame, np.ndarray], Fitted]:
    """CatBoost, rounds by early stopping; its temperature is fitted to a fifth of the rows."""

    def make() -> StoppedBoosting:
        return StoppedBoosting("catboost", 0.1, max_rounds=500, patience=30, random_state=seed)

    def fit(X: pd.DataFrame, y: np.ndarray) -> Fitted:
        model = make().fit(X, y)
        train, held = hold_out(np.searchsorted(model.classes_, y), 0.2, seed)
        part, unseen = make().fit(X.iloc[train], y[train]), np.zeros((len(held), len(np.unique(y))))
        unseen[:, np.searchsorted(model.classes_, part.classes_)] = part.predict_proba(X.iloc[held])
        truth = np.searchsorted(model.classes_, y[held])
        t = fit_temperature(floored(unseen), truth, ridge=RIDGE / len(held))
        return lambda new: tempered(floored(model.predict_proba(new)), t)

    return fit


def as_it_is(make: Callable[[], Any]) -> Callable[[pd.DataFrame, np.ndarray], Fitted]:
    """Fit to all rows; the method calibrates itself."""

    def fit(X: pd.DataFrame, y: np.ndarray) -> Fitted:
        predict: Fitted = make().fit(X, y).predict_proba
        return predict

    return fit


def floored(proba: np.ndarray) -> np.ndarray:
    """Probabilities with a little of the uniform distribution mixed in."""
    return (1 - 1e-4) * proba + 1e-4 / proba.shape[1]


def methods(seed: int) -> dict[str, Callable[[pd.DataFrame, np.ndarray], Fitted]]:
    """What is compared, by name."""

    def columns(model: Any) -> Callable[[], Any]:
        return lambda: make_pipeline(FeatureEncoder("columns"), model())

    def ours(**options: Any) -> Callable[[], Any]:
        return lambda: AttnKNNClassifier(random_state=seed, n_jobs=1, **options)

    return {
        "class shares": as_it_is(ClassShares),
        "tuned k-NN": as_it_is(columns(lambda: TunedKNN((1.0,), seed))),
        "tuned logistic": as_it_is(columns(lambda: TunedLogistic(random_state=seed))),
        "random forest + T": forest_with_temperature(RandomForestClassifier, seed),
        "extra-trees + T": forest_with_temperature(ExtraTreesClassifier, seed),
        "CatBoost + T": boosting_with_temperature(seed),
        "MLP": as_it_is(columns(lambda: TemperedBag(StoppedMLP(), random_state=seed))),
        "instant without base": as_it_is(ours(preset="instant", estimator=None)),
        "instant": as_it_is(ours(preset="instant")),
        "default": as_it_is(ours()),
    }


OF_FEW_ROWS = ("class shares", "tuned k-NN", "tuned logistic", "instant without base", "instant")
OWN = ("instant without base", "default")  # ranks are of "instant" and peers
USUAL = [*methods(0)]


def measure(
    fit: Callable[[pd.DataFrame, np.ndarray], Fitted],
    table: Table,
    train: np.ndarray,
    test: np.ndarray,
) -> dict[str, float]:
    """NLL on the test rows, and CPU time; nothing where fewer than two classes can be fitted."""
    classes, counts = np.unique(table.labels[train], return_counts=True)
    known = classes[counts > 1]  # a class of one row cannot be fitted
    train = train[np.isin(table.labels[train], known)]
    test = test[np.isin(table.labels[test], known)][:MOST_QUERIES]
    if len(known) < 2 or not len(test):
        return {}
    X, y = table.frame.iloc[train].reset_index(drop=True), table.labels[train]
    X = X.loc[:, X.notna().any()]
    new, truth = table.frame.iloc[test][X.columns], np.searchsorted(known, table.labels[test])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        predict = fit(X, y)
        fitted = time.process_time()
        proba = predict(new)
        end = time.process_time()
        some = [time.process_time()]
        for row in range(min(5, len(new))):
            predict(new.iloc[row : row + 1])
            some.append(time.process_time())
    report = getattr(getattr(predict, "__self__", None), "report_", None)
    left_out = getattr(report, "oof_nll", float("nan"))
    right = np.clip(proba[np.arange(len(truth)), truth], 1e-6, 1.0)
    return {
        "nll": float(-np.log(right).mean()),
        "left_out_nll": float(left_out),
        "accuracy": float((proba.argmax(1) == truth).mean()),
        "fit_s": fitted - start,
        "batch_us_per_row": 1e6 * (end - fitted) / len(new),
        "one_row_ms": 1e3 * float(np.diff(some).min()),
    }


def summary(results: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Mean NLL, ranks, differences and costs over the tables that every method has."""
    found = {}
    for setting, tables in results.items():
        measured = [name for name in names if any(name in one for one in tables.values())]
        whole = {t: one for t, one in tables.items() if all(name in one for name in measured)}
        if not whole:
            continue
        nll = {t: {name: one[name]["nll"] for name in measured} for t, one in whole.items()}
        frame = pd.DataFrame(nll).T
        others = [name for name in measured if name not in OWN]
        costs = {
            cost: {n: float(np.mean([one[n][cost] for one in whole.values()])) for n in measured}
            for cost in ("accuracy", "left_out_nll", "fit_s", "batch_us_per_row", "one_row_ms")
        }
        pairs = [
            (a, b)
            for a in ("instant", "instant without base", "default")
            for b in measured
            if a in measured
        ]
        found[setting] = {
            "tables": len(whole),
            "mean_nll": frame.mean().to_dict(),
            "median_nll": frame.median().to_dict(),
            "mean_rank": frame[others].rank(axis=1).mean().to_dict(),
            "costs": costs,
            "differences": {f"{a} - {b}": compared(nll, a, b) for a, b in pairs if a != b},
        }
        simple = [name for name in ("class shares", "tuned logistic") if name in frame]
        if setting != "folds" and simple:
            better = frame[simple].min(axis=1)
            for name in frame.columns.intersection(["instant", "instant without base"]):
                behind = frame[name] - better
                found[setting][f"{name}: most behind"] = float(behind.max())
                found[setting][f"{name}: share behind by .05"] = float((behind > 0.05).mean())
    return found


def main() -> None:
    parser = options_of(
        __doc__, data_root=Path(os.environ.get("NEARWISE_DATA", "data")), part="judge",
        methods=",".join(USUAL), settings="folds,few", repeats=2, seed=0,
    )  # fmt: skip
    args = parser.parse_args()
    args.methods = listed(args.methods)
    torch.set_num_threads(1)
    kept = Path(f"runs/instant-{args.part}.json")
    results: dict[str, Any] = read(kept)
    folder = args.data_root / "tables"
    tables = [read_table(folder, name) for name in family_split(folder)[args.part]]
    if args.part == "judge":
        tables += sklearn_tables()
    sizes = [None] * ("folds" in args.settings) + list(SIZES) * ("few" in args.settings)
    for size in sizes:
        setting = "folds" if size is None else f"{size} rows"
        for table in tables:
            done = results.setdefault(setting, {}).setdefault(table.source, {})
            cut = splits(table, size, args.seed, args.repeats)
            shown = {}
            for name in args.methods:
                if name in done or not cut or (size is not None and name not in OF_FEW_ROWS):
                    continue
                rows = defaultdict(list)
                for at, split in enumerate(cut):
                    fit = methods(args.seed + at)[name]
                    for what, value in measure(fit, table, *split).items():
                        rows[what].append(value)
                if not rows:
                    continue
                done[name] = {what: float(np.mean(values)) for what, values in rows.items()}
                done[name]["splits"] = len(rows["nll"])
                shown[name] = round(done[name]["nll"], 4)
            if shown:
                keep(results, kept)
                print(setting, table.source, json.dumps(shown), flush=True)
    results = {setting: {t: one for t, one in of.items() if one} for setting, of in results.items()}
    found = summary(results, args.methods)
    record = conditions() | {"part": args.part, "seed": args.seed}
    if args.part == "judge":
        keep(record | {"summary": found, "tables": results}, RESULTS / "instant.json")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
