"""Rows in groups: what promises are worth on rows of new groups, with and without `groups`.

    python benchmarks/groups.py --data DATA/groups --data-root DATA --write

Repeated subjects: Parkinson's telemonitoring (42 subjects of some 140 recordings, three classes of
severity; a third of the subjects is new) and a synthetic table (40 subjects of 30 rows, and 40 new
ones; a subject's features lie around a center, its class depends on that). Copies: tables of which
every training row is there twice, with the copies taken for one group (the default) or for rows of
their own. Each condition has the NLL that the fit promises (of left-out rows), the NLL of new rows,
and how many of their 90 % sets hold the label. Kept per fit in runs/groups, where a run goes
on; `--write` puts the summary into benchmarks/results/groups.json. Seeds 0 to 9 chose nothing;
above 100 was chosen by.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from keeping import HERE, RESULTS, conditions, keep, listed, options_of, read
from nearwise_lab.data import load_dataset
from nearwise_lab.records import append_lines, read_lines
from nearwise_lab.results.measures import mean_with_interval
from sklearn.model_selection import GroupShuffleSplit, train_test_split
from threadpoolctl import threadpool_limits

from nearwise import AttnKNNClassifier
from nearwise.metrics import ece, nll

KEPT = HERE.parent / "runs" / "groups"
CONFIDENCE = 0.9
SUBJECTS, ROWS, FEATURES = 40, 30, 8
COPIED = ("wine", "breast_cancer", "ionosphere", "digits", "magic04", "letter")
MOST = 1_500  # rows of a table that are copied


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
    parser = options_of(
        __doc__, data=Path("data/groups"), data_root="data", seeds="0,1,2,3,4,5,6,7,8,9",
        presets="instant,default", only="", write=False,
    )  # fmt: skip
    options = parser.parse_args()
    target = RESULTS / "groups.json"
    kept, record = read(target), conditions()
    seeds = listed(options.seeds, int)
    keys = ("case", "preset", "grouped", "seed")
    done = {tuple(one[key] for key in keys): one for one in read_lines(KEPT)}
    for preset in listed(options.presets):
        for case, seed in cases(options, seeds):
            for grouped in (True, False):
                key = (case.name, preset, grouped, seed)
                if key in done or not case.name.startswith(options.only):
                    continue
                with warnings.catch_warnings(), threadpool_limits(1):
                    warnings.simplefilter("ignore")
                    found = measured(case, preset, grouped=grouped, seed=seed)
                done[key] = dict(zip(keys, key, strict=True)) | found
                append_lines(KEPT, [done[key]])
                print(*key, {name: round(value, 3) for name, value in found.items()}, flush=True)
    rows = summary([one for one in done.values() if one["seed"] in seeds])
    print(pd.DataFrame(rows).to_string(index=False))
    if options.write:
        kept["conditions"] = record | {"rows": rows, "fits": [*done.values()]}
        keep(kept, target)


if __name__ == "__main__":
    main()
