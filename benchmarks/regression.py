"""Numbers as targets: distributions beside those of peers on 11 tables.

Claims: of the peers the default has the lowest CRPS rank; 90 % intervals cover 88 to 92 %.

    python benchmarks/regression.py --tables DATA/regression
    python benchmarks/regression.py --tables DATA/regression --seeds 101 --name choose

CRPS is twice the mean pinball loss of 19 quantiles, in standard deviations of the training targets.
Tables with published splits are tested on these, others on random ones: 20 % of the rows, at most
2,000. Every method runs in one thread. `--wrong .3` exchanges that share of the training targets; the
method "label-noise" is the default with label_noise="auto".
`worst_slice` is the coverage of the worst fifth of the test rows by the size of the prediction.
"""

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from keeping import RESULTS, interval, keep, keep_runs, listed, options_of, read, take
from regression_peers import METHODS, pinball, tune_catboost
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits

NAMES = (
    "concrete,energy,kin8nm,power-plant,abalone,mpg,taxis,bikeshare,hitters,kc-house,house-prices"
)
_MOST_TESTED = 2_000
_SLICES = 5
USUAL = [name for name in METHODS if name != "label-noise"]
_TUNED = Path("runs/regression/tuned.json")


def read_table(folder: Path, name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows and targets."""
    frame = pd.read_parquet(folder / f"{name}.parquet")
    return frame, frame.pop("target").to_numpy(float)


def split(folder: Path, name: str, seed: int, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of training and test rows: a published split below 100, where there are any."""
    published = folder / f"{name}_splits.npz"
    if seed < 100 and published.exists():
        test = np.load(published)[f"test_{seed}"]
        return np.setdiff1d(np.arange(n_rows), test), test
    order = np.random.default_rng([seed, len(name)]).permutation(n_rows)
    n_test = min(n_rows // 5, _MOST_TESTED)
    return np.sort(order[n_test:]), np.sort(order[:n_test])


def scores(found: Any, y: np.ndarray, scale: float) -> dict[str, Any]:
    """Measures of predictions of test rows."""
    low, high = found.interval.T
    inside = (low <= y) & (y <= high)
    order = np.array_split(np.argsort(found.mean, kind="stable"), _SLICES)
    crps = pinball(found.quantiles, y).mean()
    made = {
        "crps": None if np.isnan(crps) else float(crps / scale),
        "rmse": float(np.sqrt(np.mean((found.mean - y) ** 2)) / scale),
        "mae": float(np.abs(found.mean - y).mean() / scale),
        "coverage": float(inside.mean()),
        "width": float((high - low).mean() / scale),
        "nll": None if found.log_density is None else float(-found.log_density.mean()),
    }
    rounded = {name: None if value is None else round(value, 5) for name, value in made.items()}
    return rounded | {"slices": [round(float(inside[rows].mean()), 4) for rows in order]}


def measured(
    folder: Path, table: str, method: str, seed: int, wrong: float, rows: int
) -> dict[str, Any]:
    """Fit and predict; `rows` of the training rows, all by 0. Seconds of CPU time."""
    X, y = read_table(folder, table)
    train, test = split(folder, table, seed, len(y))
    rng = np.random.default_rng(seed)
    if rows:
        train = np.sort(rng.permutation(train)[:rows])
    old, fresh = (take(X, at).reset_index(drop=True) for at in (train, test))
    old = old.loc[:, old.notna().any()]
    fresh, targets, truth = fresh[old.columns], y[train].copy(), y[test]
    scale = float(np.std(targets))
    if wrong:
        at = np.flatnonzero(rng.random(len(targets)) < wrong)
        targets[at] = targets[rng.permutation(at)]
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        tuned: dict[str, Any] = {}
        if method == "catboost-tuned":
            key, known = f"{table} {wrong} {rows}", read(_TUNED)
            if key not in known:
                start = time.process_time()
                known[key] = tune_catboost(old, targets, seed)
                keep(known, _TUNED)
                print(table, "tuned in", round(time.process_time() - start), "s", flush=True)
            tuned = known[key]
        start = time.process_time()
        found = METHODS[method](old, targets, fresh, truth, seed, tuned)
        seconds = time.process_time() - start
    return scores(found, truth, scale) | {"seconds": round(seconds, 2), "n": len(train)}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds of each table and method, beside the quantile forest's; and ranks."""
    results: list[dict[str, Any]] = []
    measures = ("crps", "rmse", "mae", "coverage", "width", "nll", "seconds")
    ranks: dict[str, list[float]] = {}
    for table in dict.fromkeys(run["table"] for run in runs):
        of_table = [run for run in runs if run["table"] == table]
        methods = list(dict.fromkeys(run["method"] for run in of_table))
        peer = {r["seed"]: r["crps"] for r in of_table if r["method"] == "quantile-forest"}
        means = {}
        for method in methods:
            mine = [run for run in of_table if run["method"] == method]
            row: dict[str, Any] = {"table": table, "method": method, "seeds": len(mine)}
            for name in measures:
                values = [run[name] for run in mine if run[name] is not None]
                row[name] = interval(values, 5) if values else None
            # a slice of one run has few rows: means over the seeds, then the worst
            row["worst_slice"] = round(float(np.mean([run["slices"] for run in mine], 0).min()), 4)
            ratios = [r["crps"] / peer[r["seed"]] for r in mine if r["crps"] and r["seed"] in peer]
            row["crps_over_quantile_forest"] = interval(ratios, 4) if ratios else None
            results.append(row)
            if row["crps"]:
                means[method] = row["crps"]["mean"]
        for method, rank in zip(means, rankdata([*means.values()]), strict=True):
            ranks.setdefault(method, []).append(float(rank))
    for method, values in ranks.items():
        rows = [row for row in results if row.get("method") == method]
        over = [
            r["crps_over_quantile_forest"]["mean"] for r in rows if r["crps_over_quantile_forest"]
        ]
        results.append(
            {
                "method": method,
                "tables": len(values),
                "crps_rank": interval(values, 3),
                "crps_over_quantile_forest": interval(over, 4) if over else None,
            }
        )
    return results


def main() -> None:
    """Measure what is not there yet."""
    parser = options_of(
        __doc__, tables=Path("data/regression"), names=NAMES, methods=",".join(USUAL), seeds="",
        wrong=0.0, rows=0, name="",
    )  # fmt: skip
    options = parser.parse_args()
    wanted = []
    for table in listed(options.names):
        published = (options.tables / f"{table}_splits.npz").exists()
        usual = range(20) if published else range(5)
        for seed in listed(options.seeds, int) if options.seeds else usual:
            for method in listed(options.methods):
                which = {"table": table, "method": method, "seed": seed}
                wanted.append(which | {"wrong": options.wrong, "rows": options.rows})
    wanted.sort(key=lambda which: which["seed"])  # all tables before the next seed

    def measure(**which: Any) -> dict[str, Any]:
        return measured(options.tables, **which)

    name = f"regression_{options.name}" if options.name else "regression"
    folder = Path("runs/regression") if options.name else RESULTS
    keep_runs(wanted, measure, summary, folder / f"{name}.json")


if __name__ == "__main__":
    main()
