"""Rows in groups: what promises are worth on rows of new groups, with and without `groups`.

    python benchmarks/groups.py --data DATA/groups --data-root DATA --write
    python benchmarks/groups.py --tables DATA/tables --shares --write

Repeated subjects: Parkinson's telemonitoring (42 subjects of some 140 recordings, three classes of
severity; a third of the subjects is new) and a synthetic table (40 subjects of 30 rows, and 40 new
ones; a subject's features lie around a center, its class depends on that). Copies: tables of which
every training row is there twice, with the copies taken for one group (the default) or for rows of
their own. Each condition has the NLL that the fit promises (of left-out rows), the NLL of new rows,
and how many of their 90 % sets hold the label. Kept per fit in runs/groups.jsonl, where a run goes
on; `--write` puts the summary into benchmarks/results/groups.json. Seeds 0 to 9 chose nothing;
above 100 was chosen by. `--shares`: a part of the rows of development tables is there twice, where
new rows are copies of none ("made") and where they are copies as often ("natural"), preset
"instant", seeds 101 and 102.
"""

import argparse
import itertools
import json
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from nearwise_lab.data import load_dataset
from nearwise_lab.results.measures import mean_with_interval
from pretrain_tasks import read_table
from sklearn.model_selection import GroupShuffleSplit, train_test_split
from threadpoolctl import threadpool_limits

from nearwise import AttnKNNClassifier
from nearwise.conditions import hardware, versions
from nearwise.metrics import ece, nll

HERE = Path(__file__).parent
KEPT = HERE.parent / "runs" / "groups.jsonl"
CONFIDENCE = 0.9
SUBJECTS, ROWS, FEATURES = 40, 30, 8
COPIED = ("wine", "breast_cancer", "ionosphere", "digits", "magic04", "letter")
MOST = 1_500  # rows of a table that are copied
SHARED = (
    "yeast-4class",
    "cardiotocography-3class",
    "pendigits",
    "abalone-3class",
    "mammographic-mass",
    "page-blocks",
)
SHARES = (0.1, 0.25, 0.5, 1.0)


class Case(NamedTuple):
    """Training rows with their groups, and new rows of other groups."""

    name: str
    X: Any
    y: np.ndarray
    groups: np.ndarray | None
    X_new: Any
    y_new: np.ndarray
    new_groups: np.ndarray


def parkinsons(folder: Path, seed: int) -> Case:
    """A third of the subjects are new."""
    table = pd.read_parquet(folder / "parkinsons-telemonitoring.parquet")
    groups, y = table.pop("subject").to_numpy(), table.pop("severity").to_numpy()
    X = table.drop(columns=["total_UPDRS", "motor_UPDRS"], errors="ignore")
    train, test = next(GroupShuffleSplit(1, test_size=14, random_state=seed).split(X, y, groups))
    new = X.iloc[test], y[test], groups[test]
    return Case("parkinsons", X.iloc[train], y[train], groups[train], *new)


def synthetic(seed: int) -> Case:
    """Subjects around centers of their own; classes overlap."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(2 * SUBJECTS, FEATURES))
    scores = centers[:, 0] + centers[:, 1] * centers[:, 2] + 0.5 * rng.normal(size=2 * SUBJECTS)
    groups = np.repeat(np.arange(2 * SUBJECTS), ROWS)
    X = centers[groups] + 0.3 * rng.normal(size=(len(groups), FEATURES))
    y = np.digitize(scores, np.quantile(scores, [1 / 3, 2 / 3]))[groups]
    old = groups < SUBJECTS
    return Case("synthetic", X[old], y[old], groups[old], X[~old], y[~old], groups[~old])


def copied(name: str, root: str, seed: int) -> Case:
    """Every training row twice; the new rows are copies of none."""
    data = load_dataset(name, data_root=root)
    X = pd.DataFrame(data.X).reset_index(drop=True)
    first = np.flatnonzero(~X.duplicated().to_numpy())
    rows = np.random.default_rng(seed).permutation(first)[:MOST]
    y = np.asarray(data.y)[rows]
    train, test = train_test_split(rows, test_size=0.3, stratify=y, random_state=seed)
    twice, labels = np.concatenate([train, train]), np.asarray(data.y)
    new = X.iloc[test], labels[test], np.arange(len(test))
    return Case(f"copies of {name}", X.iloc[twice], labels[twice], None, *new)


def cases(options: argparse.Namespace, seeds: list[int]) -> Iterator[tuple[Case, int]]:
    """All conditions, seed by seed."""
    for seed in seeds:
        yield synthetic(seed), seed
        for name in COPIED:
            yield copied(name, options.data_root, seed), seed
        yield parkinsons(options.data, seed), seed


def measured(case: Case, preset: Any, *, grouped: bool, seed: int) -> dict[str, Any]:
    """Fit with groups (of copies: by default) or with every row a group of its own."""
    groups = case.groups if grouped else range(len(case.y))
    start = time.process_time()
    model = AttnKNNClassifier(preset=preset, n_jobs=1, random_state=seed)
    model.fit(case.X, case.y, groups=groups)
    seconds = time.process_time() - start
    query = model.query(case.X_new)
    proba, sets = query.parts.proba, np.asarray(query.sets(CONFIDENCE))
    truth = np.searchsorted(model.classes_, case.y_new)
    held = pd.Series(sets[np.arange(len(truth)), truth]).groupby(case.new_groups).mean()
    shares = np.bincount(np.searchsorted(model.classes_, case.y)) / len(case.y)
    return {
        "promised_nll": float(model.report_.oof_nll),
        "nll": float(nll(truth, proba)),
        "nll_of_class_shares": float(-np.log(shares[truth]).mean()),
        "accuracy": float((proba.argmax(1) == truth).mean()),
        "ece": float(ece(truth, proba)),
        "coverage": float(held.mean()),
        "set_size": float(sets.sum(1).mean()),
        "fit_seconds": seconds,
    }


def shares(folder: Path) -> list[dict[str, Any]]:
    """Measure what groups of copies change, by the share of rows with a copy; means over fits."""
    found = []
    for name in SHARED:
        table = read_table(folder, name)
        first = np.flatnonzero(~table.frame.duplicated().to_numpy())
        for seed, share, world in itertools.product((101, 102), SHARES, ("made", "natural")):
            rng = np.random.default_rng(seed)
            rows, rest = np.split(rng.permutation(first), [min(MOST // 2, 2 * len(first) // 3)])
            train, test = np.concatenate([rows, rows[: int(share * len(rows))]]), rest[:MOST]
            if world == "natural":
                test, train = np.split(rng.permutation(train), [len(train) // 4])
            often = np.bincount(table.labels[train], minlength=table.labels.max() + 1) > 2
            train, test = (part[often[table.labels[part]]] for part in (train, test))
            X, new = (table.frame.iloc[part].reset_index(drop=True) for part in (train, test))
            of_copies = pd.util.hash_pandas_object(X, index=False).astype(str)
            y, truth = table.labels[train], table.labels[test]
            case = Case(name, X, y, of_copies.to_numpy(), new, truth, np.arange(len(new)))
            with warnings.catch_warnings(), threadpool_limits(1):
                warnings.simplefilter("ignore")
                grouped, apart = (
                    measured(case, "instant", grouped=one, seed=seed) for one in (True, False)
                )
            found.append(
                {
                    "rows with a copy": round(2 * share / (1 + share), 2),
                    "new rows": "copies of none" if world == "made" else "copies as often",
                    "nll": grouped["nll"] - apart["nll"],
                    "promised": grouped["promised_nll"] - grouped["nll"],
                    "promised apart": apart["promised_nll"] - apart["nll"],
                }
            )
            print(name, seed, found[-1], flush=True)
    keys = ["rows with a copy", "new rows"]
    means = pd.DataFrame(found).groupby(keys).agg(["mean", "sem"]).round(4)
    means.columns = pd.Index([" ".join(column) for column in means.columns])
    return [{str(k): v for k, v in row.items()} for row in means.reset_index().to_dict("records")]


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds with 95 % t-intervals, one row per condition."""
    table, rows = pd.DataFrame(found), []
    for (name, preset, grouped), part in table.groupby(["case", "preset", "grouped"], sort=False):
        row = {"case": name, "preset": preset, "groups": bool(grouped), "seeds": len(part)}
        part = part.assign(promised_minus_nll=part["promised_nll"] - part["nll"])
        for measure in ("promised_minus_nll", *list(found[0])[4:]):
            found_mean = mean_with_interval(part[measure].tolist())
            row[measure] = round(found_mean.mean, 4)
            if measure in ("promised_minus_nll", "nll", "coverage") and found_mean.half:
                row[f"{measure}_half"] = round(found_mean.half, 4)
        rows.append(row)
    return rows


def main() -> None:
    """Fit what is not there yet, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/groups"))
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument("--presets", default="instant,default")
    parser.add_argument("--only", help="conditions whose names begin so")
    parser.add_argument("--write", action="store_true", help="keep the summary")
    parser.add_argument("--shares", action="store_true", help="how many rows have a copy")
    parser.add_argument("--tables", type=Path, default=Path("data/tables"))
    options = parser.parse_args()
    target = HERE / "results" / "groups.json"
    kept = json.loads(target.read_text()) if target.exists() else {}
    record: dict[str, Any] = {"command": f"python {shlex.join(sys.argv)}"}
    record |= {"versions": versions(), "hardware": hardware()}
    if options.shares:
        rows = shares(options.tables)
        print(pd.DataFrame(rows).to_string(index=False))
        if options.write:
            kept["shares"] = record | {"rows": rows}
            target.write_text(json.dumps(kept, indent=1) + "\n")
        return
    seeds = [int(seed) for seed in options.seeds.split(",")]
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    keys = ("case", "preset", "grouped", "seed")
    done = {tuple(one[key] for key in keys): one for one in map(json.loads, lines)}
    for preset in options.presets.split(","):
        for case, seed in cases(options, seeds):
            for grouped in (True, False):
                key = (case.name, preset, grouped, seed)
                if key in done or not case.name.startswith(options.only or ""):
                    continue
                with warnings.catch_warnings(), threadpool_limits(1):
                    warnings.simplefilter("ignore")
                    found = measured(case, preset, grouped=grouped, seed=seed)
                done[key] = dict(zip(keys, key, strict=True)) | found
                with KEPT.open("a") as file:
                    file.write(json.dumps(done[key]) + "\n")
                print(*key, {name: round(value, 3) for name, value in found.items()}, flush=True)
    rows = summary([one for one in done.values() if one["seed"] in seeds])
    print(pd.DataFrame(rows).to_string(index=False))
    if options.write:
        kept["conditions"] = record | {"rows": rows, "fits": [*done.values()]}
        target.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
