"""Numbers as targets: distributions beside those of peers on 11 tables.

Claims: of the peers the default has the lowest CRPS rank; 90 % intervals cover 88 to 92 %.

    python benchmarks/regression.py --tables DATA/regression
    python benchmarks/regression.py --tables DATA/regression --seeds 101 --name choose

CRPS is twice the mean pinball loss of 19 quantiles, in standard deviations of the training targets.
Tables with published splits are tested on these, others on random ones: 20 % of the rows, at most
2,000. Every method runs in one thread. `worst_slice` is the coverage of the worst fifth of the test
rows by the size of the prediction. Two other questions have records of their own:

    python benchmarks/regression.py --tables DATA/regression --wrong .3 --seeds 0,1,2,3,4
    python benchmarks/regression.py --tables DATA/regression --rows 50 --methods default,ridge

`--wrong` exchanges that share of the training targets, where the method "label-noise" is the
default with label_noise="auto"; `--rows` takes so few training rows, in 20 draws.
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
_MEASURES = ("crps", "rmse", "mae", "coverage", "width", "nll", "seconds")
_ACCURATE = ("catboost-tuned", "forest-crepes")  # whose RMSE is compared with
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
    """Means over the seeds of each table and method; then of each method over the tables.

    Ratios and ranks are of means over the seeds that all methods of a table have.
    """
    results: list[dict[str, Any]] = []
    compared: dict[str, list[dict[str, float]]] = {}
    for table, few in dict.fromkeys((run["table"], run["rows"]) for run in runs):
        of_table: dict[str, dict[int, dict[str, Any]]] = {}
        for run in runs:
            if (run["table"], run["rows"]) == (table, few):
                of_table.setdefault(run["method"], {})[run["seed"]] = run
        shared = sorted(set.intersection(*map(set, of_table.values())))
        for method, mine in of_table.items():
            row: dict[str, Any] = {"table": table, "method": method, "seeds": len(mine)}
            row |= {"rows": few} if few else {}
            for name in _MEASURES:
                values = [run[name] for run in mine.values() if run[name] is not None]
                row[name] = interval(values, 5) if values else None
            # a slice of one run has few rows: means over the seeds, then the worst
            slices = np.mean([run["slices"] for run in mine.values()], axis=0)
            results.append(row | {"worst_slice": round(float(slices.min()), 4)})
        for method, found in _compared(of_table, shared).items():
            compared.setdefault(method, []).append(found)
    for method, tables in compared.items():
        row = {"method": method, "tables": len(tables)}
        for name in tables[0]:
            row[name] = interval([found[name] for found in tables if name in found], 4)
        results.append(row)
    return results


def _compared(
    of_table: dict[str, dict[int, dict[str, Any]]], seeds: list[int]
) -> dict[str, dict[str, float]]:
    """Rank of each method with a CRPS on a table, and its ratios to peers."""
    means = {
        name: {method: float(np.mean([mine[seed][name] for seed in seeds]))
               for method, mine in of_table.items() if mine[seeds[0]][name] is not None}
        for name in ("crps", "rmse")
    } if seeds else {"crps": {}, "rmse": {}}  # fmt: skip
    crps, rmse = means["crps"], means["rmse"]
    best = min((rmse[peer] for peer in _ACCURATE if peer in rmse), default=None)
    found = {}
    for method, rank in zip(crps, rankdata([*crps.values()]), strict=True):
        found[method] = {"crps_rank": float(rank)}
        for peer in ("quantile-forest", "ridge"):
            if peer in crps:
                ratio = crps[method] / crps[peer]
                found[method][f"crps_over_{peer.replace('-', '_')}"] = ratio
        if best is not None:
            found[method]["rmse_over_best"] = rmse[method] / best
    return found


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
        usual = range(20) if published or options.rows else range(5)
        for seed in listed(options.seeds, int) if options.seeds else usual:
            for method in listed(options.methods):
                which = {"table": table, "method": method, "seed": seed}
                wanted.append(which | {"wrong": options.wrong, "rows": options.rows})
    wanted.sort(key=lambda which: which["seed"])  # all tables before the next seed

    def measure(**which: Any) -> dict[str, Any]:
        return measured(options.tables, **which)

    name = "regression" + ("_wrong" if options.wrong else "_few" if options.rows else "")
    name += f"_{options.name}" if options.name else ""
    folder = Path("runs/regression") if options.name else RESULTS
    keep_runs(wanted, measure, summary, folder / f"{name}.json")


if __name__ == "__main__":
    main()
