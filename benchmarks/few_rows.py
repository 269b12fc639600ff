"""Few rows: whether learning on a table of under 500 rows costs where "instant" does not learn.

Claims: the default's mean NLL is below that of preset="instant" on the same draws, and worse by
over .05 on at most 5 % of them.

    python benchmarks/few_rows.py --tables DATA/tables --part choose --seeds 101,102,103,104,105
    python benchmarks/few_rows.py --tables DATA/tables --part report --seeds 111,112,113,114,115

Choices are made on the part "choose": families (the name before the first hyphen) whose tables the
pretrained head has seen or was developed on. "report" holds the families kept from both and every
third of the others. A draw is a stratified split of 75 to 25; a class of one row is left out. Kept
per draw in runs/few-rows/NAME-PART, where a run goes on; `--write` puts the summary into
benchmarks/results/few_rows.json.
"""

import json
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from keeping import HERE, RESULTS, conditions, keep, listed, options_of, read
from nearwise_lab.records import append_lines, read_lines
from pretrain_tasks import family_split, read_table
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from nearwise import AttnKNNClassifier

RUNS = HERE.parent / "runs" / "few-rows"
PRESETS = "instant,default"
_MOST = 500  # rows of a table
_WORSE = 0.05  # nats by which a draw counts as lost


def tables_of(folder: Path, part: str) -> list[str]:
    """Names of the tables of under 500 rows of a part."""
    index = pd.read_csv(folder / "INDEX.csv").set_index("name")["rows"]
    split = family_split(folder)
    few = {side: [n for n in names if index[n] < _MOST] for side, names in split.items()}
    seen = sorted(few["train"] + few["dev"])
    families = list(dict.fromkeys(name.split("-")[0] for name in seen))
    kept = {*families[2::3]}
    if part == "choose":
        return [name for name in seen if name.split("-")[0] not in kept]
    return [name for name in seen if name.split("-")[0] in kept] + few["judge"]


def draw(folder: Path, name: str, seed: int) -> tuple[Any, ...]:
    """Training and test part of a table: rows and labels of each."""
    table = read_table(folder, name)
    rows = np.flatnonzero(np.bincount(table.labels)[table.labels] >= 2)
    labels = table.labels[rows]
    stratified = labels if len(np.unique(labels)) <= len(rows) // 4 else None
    train, test = train_test_split(rows, test_size=0.25, stratify=stratified, random_state=seed)
    test = test[np.isin(table.labels[test], table.labels[train])]
    X = table.frame.iloc[train].reset_index(drop=True)
    X = X.loc[:, X.notna().any()]
    new = table.frame.iloc[test][X.columns].reset_index(drop=True)
    return X, table.labels[train], new, table.labels[test]


def measured(rows: tuple[Any, ...], preset: Any, seed: int) -> dict[str, Any]:
    """Fit and predict; seconds of CPU time."""
    X, y, new, truth = rows
    model = AttnKNNClassifier(preset=preset, n_jobs=1, random_state=seed)
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    proba = model.predict_proba(new)
    at = np.searchsorted(model.classes_, truth)
    losses = -np.log(proba[np.arange(len(at)), at])
    chosen = {name: model.report_.choice.get(name) for name in ("base", "head", "head_share")}
    return {
        "nll": round(float(losses.mean()), 4),
        "accuracy": round(float((proba.argmax(1) == at).mean()), 4),
        "fit_seconds": round(seconds, 2),
        "chosen": chosen | {"temperature": model.report_.temperature},
    }


def summary(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over draws, and of "default" minus "instant" also over tables."""
    found: dict[str, Any] = {"draws": len(draws), "tables": len({one["table"] for one in draws})}
    presets = [preset for preset in PRESETS.split(",") if preset in draws[0]]
    for preset in presets:
        values = [one[preset] for one in draws]
        keys = ("nll", "accuracy", "fit_seconds")
        found[preset] = {k: round(float(np.mean([v[k] for v in values])), 4) for k in keys}
    for preset in presets[1:]:
        of_table = defaultdict(list)
        for one in draws:
            of_table[one["table"]].append(one[preset]["nll"] - one["instant"]["nll"])
        every = np.concatenate([*of_table.values()])
        means = np.array([np.mean(values) for values in of_table.values()])
        half = 1.96 * means.std(ddof=1) / len(means) ** 0.5 if len(means) > 1 else float("nan")
        found[f"{preset} minus instant, NLL"] = {
            "mean": round(float(every.mean()), 4),
            "over tables": [round(float(means.mean() + way * half), 4) for way in (-1, 0, 1)],
            "worst draw": round(float(every.max()), 4),
            "draws worse by over .05": round(float((every > _WORSE).mean()), 4),
            "draws better by over .05": round(float((every < -_WORSE).mean()), 4),
        }
    return found


def main() -> None:
    """Measure the draws that are not there yet, and sum up."""
    parser = options_of(
        __doc__, tables=Path("data/tables"), part="choose", names="", seeds="101,102,103,104,105",
        presets=PRESETS, name="now", only_sum=False, write="",
    )  # fmt: skip
    options = parser.parse_args()
    presets = listed(options.presets)
    folder = RUNS / f"{options.name}-{options.part}"
    done = {(one["table"], one["seed"]): one for one in read_lines(folder)}
    names = tables_of(options.tables, options.part)
    names = listed(options.names) if options.names else names
    wanted = [(name, seed) for seed in listed(options.seeds, int) for name in names]
    for name, seed in wanted if not options.only_sum else ():
        if (name, seed) in done:
            continue
        rows = draw(options.tables, name, seed)
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            found = {preset: measured(rows, preset, seed) for preset in presets}
        one = {"table": name, "seed": seed, "rows": len(rows[1]), "tested": len(rows[3])} | found
        done[name, seed] = one
        append_lines(folder, [one])
        print(name, seed, len(rows[1]), *(found[preset]["nll"] for preset in presets), flush=True)
    draws = [done[key] for key in wanted if key in done]
    about = {"part": options.part, "seeds": options.seeds, "summary": summary(draws)}
    print(json.dumps(about, indent=1))
    if options.write:
        target = RESULTS / "few_rows.json"
        about |= conditions() | {"draws": draws}
        keep(read(target) | {options.write: about}, target)


if __name__ == "__main__":
    main()
