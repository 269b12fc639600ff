"""What the default preset costs, and what a change of it costs or gains, table by table.

Choices about the default are made on tables of the families "train" and "dev" of
`pretrain_tasks.family_split`, never on the sets that quality.py reports. Fit the same tables with
the code before and after a change, then compare; seconds are CPU time of one thread, so that a
busy machine disturbs them little, and both sides are paired by table and seed:

    python benchmarks/lighter_default.py fit --name before --tables TABLES
    python benchmarks/lighter_default.py fit --name after --tables TABLES
    python benchmarks/lighter_default.py compare before after

`--data-root DATA --datasets digits,wine-red` fits data sets of the lab instead, to check what was
chosen. `fit` keeps one line per table in runs/lighter-default and resumes where it was stopped;
`compare` writes benchmarks/results/lighter_default.json.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pandas as pd
import torch
from pretrain_tasks import family_split, read_table
from threadpoolctl import threadpool_limits

from nearwise import AttnKNNClassifier
from nearwise.conditions import hardware, versions

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs" / "lighter-default"
TABLES = (
    "connectionist-vowel,balance-scale,page-blocks,heart-disease-processed-cleveland,texture,"
    "abalone-3class,eeg-eye-state,bupa,yeast,blood-transfusion-service,"
    "robot-nav-sensor-readings-24,mammographic-mass,kr-vs-k,waveform-v2,"
    "banknote-authentication,cardiotocography-3class"
)
_TESTED = 1500  # most new rows
_SINGLE = 12  # queries of one row


def lab_rows(name: str, seed: int, root: str | None, most: int) -> tuple[Any, ...]:
    """Training and test part of a data set of the lab."""
    from nearwise_lab.data import load_dataset

    from nearwise.data import split_dataset

    dataset = load_dataset(name, data_root=root)
    train, test = split_dataset(dataset, seed)
    train, test = train[:most], test[:_TESTED]
    frame = pd.DataFrame(dataset.X)
    return frame.iloc[train], dataset.y[train], frame.iloc[test], dataset.y[test]


def table_rows(folder: Path, name: str, seed: int, most: int) -> tuple[Any, ...]:
    """Draw three quarters of a table, at most `most` rows, and new rows of the classes in them."""
    table = read_table(folder, name)
    order = np.random.default_rng(seed).permutation(len(table.labels))
    n_train = min(most, int(0.75 * len(order)))
    train, test = order[:n_train], order[n_train : n_train + _TESTED]
    enough = np.flatnonzero(np.bincount(table.labels[train]) >= 2)
    train, test = (rows[np.isin(table.labels[rows], enough)] for rows in (train, test))
    frame, labels = table.frame, table.labels
    return frame.iloc[train], labels[train], frame.iloc[test], labels[test]


def measured(rows: tuple[Any, ...], preset: Any, seed: int) -> dict[str, Any]:
    """Fit, and predict one row and many; seconds of CPU time."""
    X, y, new, truth = rows
    model = AttnKNNClassifier(preset=preset, n_jobs=1, random_state=seed)
    start = time.process_time()
    model.fit(X, y)
    fit_seconds = time.process_time() - start
    codes = np.searchsorted(model.classes_, truth)
    parts = model.query(new).parts
    single = []
    for row in range(_SINGLE):
        start = time.process_time()
        model.predict_proba(new[row : row + 1])
        single.append(time.process_time() - start)
    start = time.process_time()
    model.predict_proba(new)
    batch = time.process_time() - start
    nll, base_nll = (
        float(-np.log(proba[np.arange(len(codes)), codes].clip(1e-6)).mean())
        for proba in (parts.proba, parts.base_proba)
    )
    return {
        "n": len(y),
        "classes": len(model.classes_),
        "nll": nll,
        "base_nll": base_nll,
        "fit_seconds": fit_seconds,
        "one_row_ms": 1e3 * float(np.median(single)),
        "batch_us": 1e6 * batch / len(codes),
        "chosen": {name: model.report_.choice.get(name) for name in ("base", "head", "embedder")},
    }


def fit_all(options: argparse.Namespace) -> None:
    """Fit what is not there yet, one line each."""
    path = RUNS / f"{options.name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    done = {(one["table"], one["seed"], one["preset"]) for one in map(json.loads, lines)}
    if options.datasets is None:
        split = family_split(options.tables)
        free = {*split["train"], *split["dev"]}
        names = [name for name in options.names.split(",") if name in free]
    else:
        names = options.datasets.split(",")
    warm = np.random.default_rng(0).normal(size=(200, 4))
    for _ in range(2):  # what is compiled on first use is compiled here
        model = AttnKNNClassifier(preset=options.preset, n_jobs=1, random_state=0)
        model.fit(warm, warm[:, 0] > 0).query(warm).parts.proba.sum()
    for seed in map(int, options.seeds.split(",")):
        for name in names:
            if (name, seed, options.preset) in done:
                continue
            if options.datasets is None:
                rows = table_rows(options.tables, name, seed, options.most)
            else:
                rows = lab_rows(name, seed, options.data_root, options.most)
            found = measured(rows, options.preset, seed)
            line = {"table": name, "seed": seed, "preset": options.preset} | found
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(name, seed, *(f"{key} {found[key]:.4g}" for key in KEYS), flush=True)


KEYS = ("nll", "base_nll", "fit_seconds", "one_row_ms", "batch_us")


def interval(values: np.ndarray) -> dict[str, float]:
    """Mean, and half the width of its 95 % interval."""
    half = 1.96 * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return {"mean": round(float(values.mean()), 5), "half": round(float(half), 5)}


def compare(options: argparse.Namespace) -> None:
    """Pair two runs by table and seed, and write what differs."""
    sides = []
    for name in (options.before, options.after):
        lines = (RUNS / f"{name}.jsonl").read_text().splitlines()
        sides.append({(r["table"], r["seed"], r["preset"]): r for r in map(json.loads, lines)})
    paired = [key for key in sides[0] if key in sides[1]]
    before, after = (
        {key: np.array([side[one][key] for one in paired]) for key in KEYS} for side in sides
    )
    result: dict[str, Any] = {
        "pairs": len(paired),
        "nll_after_minus_before": interval(after["nll"] - before["nll"]),
        "nll_ratio": interval(np.log(after["nll"] / before["nll"])),
        "nll_minus_base_before": interval(before["nll"] - before["base_nll"]),
        "nll_minus_base_after": interval(after["nll"] - after["base_nll"]),
    }
    for key in KEYS[2:]:
        ratio = np.log(after[key] / before[key])
        result[key] = {
            "before": round(float(before[key].mean()), 3),
            "after": round(float(after[key].mean()), 3),
            "log_ratio": interval(ratio),
        }
    print(json.dumps(result, indent=1))
    kept = {
        f"{table}, seed {seed}, {preset}": {
            name: {key: round(side[table, seed, preset][key], 4) for key in KEYS}
            for name, side in zip(("before", "after"), sides, strict=True)
        }
        for table, seed, preset in paired
    }
    about = {"versions": versions(), "hardware": hardware(), "summary": result, "tables": kept}
    target = HERE / "results" / "lighter_default.json"
    everything = json.loads(target.read_text()) if target.exists() else {}
    everything[options.title] = about
    target.write_text(json.dumps(everything, indent=1) + "\n")


def main() -> None:
    """Fit or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    fit = commands.add_parser("fit")
    fit.set_defaults(run=fit_all)
    fit.add_argument("--name", required=True)
    fit.add_argument("--tables", type=Path, default=Path("data/tables"))
    fit.add_argument("--names", default=TABLES)
    fit.add_argument("--datasets")
    fit.add_argument("--data-root")
    fit.add_argument("--seeds", default="101")
    fit.add_argument("--most", type=int, default=1000, help="most training rows")
    fit.add_argument("--preset", default="default")
    pair = commands.add_parser("compare")
    pair.set_defaults(run=compare)
    pair.add_argument("before")
    pair.add_argument("after")
    pair.add_argument("--title", default="development tables")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    with threadpool_limits(1):
        options.run(options)


if __name__ == "__main__":
    main()
