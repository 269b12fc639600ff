"""What judging a changed model again is worth: NLL and ECE on new rows after changes of its memory.

    python benchmarks/judged_changes.py --tables DATA/tables --data-root DATA

Development tables (600 training rows, preset "instant" with its forest, seeds 101 to 103), features
of CIFAR-10 of which a part is held out once, and digits whose classes arrive one by one, without a
base (`stream.py`; seeds 0 to 2, that chose nothing). "before" is the fit before the change, "not
judged" the changed memory with share and temperatures of the fit, "judged" what the library does,
"refit" a fit to the changed rows. Test labels are right ones throughout; where classes go or are
renamed, test rows follow. Writes results/judged_changes.json; lower is better.
"""

import argparse
import copy
import json
import math
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import joblib
import numpy as np
import pandas as pd
import torch
from nearwise_lab.corrupt import label_noise
from nearwise_lab.data import load_dataset
from nearwise_lab.results.measures import mean_with_interval
from stream import Stream

from nearwise import AttnKNNClassifier
from nearwise.classifier.online import judging
from nearwise.conditions import hardware, versions
from nearwise.metrics import ece, nll
from nearwise.safe_files import write_aside

HERE = Path(__file__).parent
TABLES = ("yeast-4class", "cardiotocography-3class", "pendigits")
SEEDS = (101, 102, 103)
FEATURES = "cifar10-features, held out once"
DIGITS = "digits, classes one by one"
INSTANT: dict[str, Any] = {"preset": "instant"}
NO_BASE: dict[str, Any] = {"estimator": None}
HELD: dict[str, Any] = {"cv": 0.15}


class Rows(NamedTuple):
    """Rows with right labels."""

    X: np.ndarray
    y: np.ndarray

    def where(self, kept: np.ndarray | slice) -> "Rows":
        """Return some of the rows."""
        return Rows(self.X[kept], self.y[kept])


class Case(NamedTuple):
    """What is fitted first, how it changes, and what the result is compared with."""

    name: str
    fitted: Rows
    change: Any
    remembered: Rows | None
    test: Rows


def cases(train: Rows, test: Rows, seed: int, *, held: bool) -> Iterator[Case]:
    """Changes of the memory; ids are positions among the rows that were fitted."""
    classes = np.unique(train.y)
    kinds: list[Literal["symmetric", "asymmetric"]] = ["symmetric", "asymmetric"]
    for kind in kinds:
        y = label_noise(train.y, 0.3, kind, seed=seed)
        noisy = None if held else Rows(train.X, y)
        yield Case(f"30 % wrong, {kind}", train, relabelling(train.y, y), noisy, test)
    if len(classes) > 2:
        first = np.isin(train.y, classes[: (len(classes) + 1) // 2])
        later = train.where(~first)

        def add(model: Any) -> None:
            model.add(later.X, later.y)

        yield Case("half of the classes new", train.where(first), add, train, test)
    if held:
        return
    y = label_noise(train.y, 0.3, seed=seed)
    yield Case("wrong ones corrected", Rows(train.X, y), relabelling(y, train.y), train, test)
    half = np.where(np.random.default_rng(seed).random(len(y)) < 0.5, train.y, y)
    yield Case(
        "half of them corrected",
        Rows(train.X, y),
        relabelling(y, half),
        Rows(train.X, half),
        test,
    )
    third = np.arange(len(train.y)) < len(train.y) // 3
    rest = train.where(~third)
    yield Case("like rows", train.where(third), lambda m: m.add(rest.X, rest.y), train, test)
    one, other = classes[:2]
    if len(classes) > 2:
        merged = np.where(train.y == one, other, train.y)
        new = Rows(test.X, np.where(test.y == one, other, test.y))
        change = relabelling(train.y, merged)
        yield Case("a class renamed", train, change, Rows(train.X, merged), new)
        there = train.y != one
        gone = np.flatnonzero(~there)
        yield Case(
            "a class removed",
            train,
            lambda m: m.remove(gone, forget_classes=True),
            train.where(there),
            test.where(test.y != one),
        )
    few = np.flatnonzero(train.y == one)
    few = few[: int(0.8 * len(few))]
    rare = np.flatnonzero(test.y == one)
    kept = np.setdiff1d(np.arange(len(test.y)), rare[: int(0.8 * len(rare))])
    left = np.setdiff1d(np.arange(len(train.y)), few)
    yield Case(
        "a class made rare", train, lambda m: m.remove(few), train.where(left), test.where(kept)
    )


def relabelling(before: np.ndarray, after: np.ndarray) -> Any:
    """Give remembered rows other labels."""

    def change(model: Any) -> None:
        ids = model.memory_.ids.numpy()
        ids = ids[before[ids] != after[ids]]
        model.relabel(ids, after[ids], forget_classes=True)

    return change


_FITS: dict[str, Any] = {}


def fit_once(rows: Rows, options: dict[str, Any], seed: int) -> Any:
    """Fit to some rows; several cases begin or end with the same."""
    key = joblib.hash((rows.X, rows.y, options, seed))
    if key not in _FITS:
        made = AttnKNNClassifier(**options, random_state=seed, n_jobs=1)
        _FITS[key] = made.fit(rows.X, rows.y)
    return _FITS[key]


def measured(case: Case, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """NLL and ECE before, after, judged and of a refit, and what judging costs."""
    model = fit_once(case.fitted, options, seed)
    found: dict[str, Any] = {}
    known = case.test.where(np.isin(case.test.y, model.classes_))
    found["before"] = scores(model, known)
    usual, seconds = judging._CHANGED, {}
    for way, changed in (("not judged", math.inf), ("judged", usual)):
        judging._CHANGED = changed
        after = copy.deepcopy(model)
        start = time.process_time()
        case.change(after)
        seconds[way] = time.process_time() - start
        found[way] = scores(after, case.test)
    judging._CHANGED = usual
    found["judging_cpu_seconds"] = round(seconds["judged"] - seconds["not judged"], 3)
    if case.remembered is not None:
        found["refit"] = scores(fit_once(case.remembered, options, seed), case.test)
    return found


def scores(model: Any, test: Rows) -> dict[str, float]:
    """NLL and ECE on labelled rows."""
    proba = model.predict_proba(test.X)
    y = (test.y[:, None] == model.classes_).argmax(1)  # classes that came later stand last
    return {"nll": round(nll(y, proba), 5), "ece": round(ece(y, proba), 5)}


def tables(folder: Path, root: str | None) -> Iterator[tuple[str, int, Rows, Rows, dict[str, Any]]]:
    """Each source with a seed: training and test rows, and parameters."""
    nothing = Rows(np.empty((0, 0)), np.empty(0, int))
    for seed in SEEDS:
        yield DIGITS, seed - SEEDS[0], nothing, nothing, NO_BASE
        rng = np.random.default_rng(seed)
        data = load_dataset("cifar10-features", data_root=root)
        order = rng.permutation(50_000)
        rows = Rows(np.asarray(data.X)[order[:4500]], np.asarray(data.y)[order[:4500]])
        yield FEATURES, seed, rows.where(np.s_[:2500]), rows.where(np.s_[2500:]), HELD
        for name in TABLES:
            frame = pd.read_parquet(folder / f"{name}.parquet")
            y = np.unique(frame.pop("Class").astype(str), return_inverse=True)[1]
            order = rng.permutation(len(y))
            rows = Rows(frame.to_numpy(np.float64)[order], y[order])
            yield name, seed, rows.where(np.s_[:600]), rows.where(np.s_[600:1300]), INSTANT


def one_by_one(seed: int) -> Case:
    """Digits, 20 rows at a time."""
    stream = Stream("classes", seed)

    def add(model: Any) -> None:
        for begin, end in stream.cuts:
            model.add(stream.X[begin:end], stream.y[begin:end])

    rows = Rows(stream.X, stream.y)
    first = rows.where(np.s_[: stream.first])
    return Case("classes one by one", first, add, rows, Rows(*stream.test_at(len(rows.y))))


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per kind of fit and case: means over tables and seeds."""
    rows = []
    kinds = {FEATURES: "held out once", DIGITS: "without a base"}
    for fit in ("instant", *kinds.values()):
        some = [run for run in runs if kinds.get(run["source"], "instant") == fit]
        for case in dict.fromkeys(run["case"] for run in some):
            of_case = [run for run in some if run["case"] == case]
            row: dict[str, Any] = {"fit": fit, "case": case}
            row["runs"] = len(of_case)
            for way in ("before", "not judged", "judged", "refit"):
                for metric in ("nll", "ece"):
                    values = [run[way][metric] for run in of_case if way in run]
                    row[f"{way} {metric}"] = round(float(np.mean(values)), 4) if values else None
            gain = [run["judged"]["nll"] - run["not judged"]["nll"] for run in of_case]
            mean = mean_with_interval(gain)
            row["nll_difference"] = [
                round(v, 4) for v in (mean.mean, mean.low, mean.high) if v is not None
            ]
            row["cpu_seconds"] = max(run["judging_cpu_seconds"] for run in of_case)
            rows.append(row)
    return rows


def main(arguments: list[str]) -> None:
    """Measure what is missing, and keep it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--tables", type=Path, required=True, help="folder of the development tables"
    )
    parser.add_argument("--data-root", help="default: NEARWISE_DATA")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "judged_changes.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # processor time then is the work done
    warnings.simplefilter("ignore")
    runs = json.loads(options.out.read_text())["runs"] if options.out.exists() else []
    done = {(run["source"], run["seed"], run["case"]) for run in runs}
    for source, seed, train, test, how in tables(options.tables, options.data_root):
        own = cases(train, test, seed, held=how is HELD)
        for case in [one_by_one(seed)] if source == DIGITS else own:
            if (source, seed, case.name) in done:
                continue
            runs.append(
                {"source": source, "seed": seed, "case": case.name} | measured(case, how, seed)
            )
            print(json.dumps(runs[-1]), flush=True)
            content = {
                "command": shlex.join(
                    ["python", "benchmarks/judged_changes.py", "--tables", "DATA/tables"]
                ),
                "hardware": hardware(),
                "versions": versions(),
                "results": summary(runs),
                "runs": runs,
            }
            write_aside(options.out, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
