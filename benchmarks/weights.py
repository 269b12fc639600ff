"""Learned attention beside other weightings of the same neighbors, all else equal.

Claim: with the same memory, neighbors, pool and calibration, the weights of the classifier's
attention predict better than distance, tuned distance and uniform weights: on clean labels, with
wrong labels and with long tails, where every weighting is corrected alike.

    python benchmarks/weights.py run clean --datasets cifar10 --seeds 0-2
    python benchmarks/weights.py run noise --datasets letter,adult --seeds 0-2 \\
        --only "30 % symmetric, *"
    python benchmarks/weights.py run tail --datasets quality --seeds 0-4
    python benchmarks/weights.py run clean --datasets large-tables --seeds 101-105 \\
        --only "without base, *"
    python benchmarks/weights.py run clean --datasets small-tables --seeds 101-120 \\
        --only "without base, *"
    python benchmarks/weights.py record

`run` runs an experiment of the lab (`nearwise experiment weights`, `weights-noise`, `weights-tail`)
into runs/weights, one folder per data set; run again, it goes on. Names of data sets are separated
by commas; "quality" stands for those of quality.py, "large-tables" for 24 tables of at least 1,000
rows and "small-tables" for 40 tables of which each seed draws 100 to 400; "cifar10:10000" takes as
many training rows. `record` reads all these folders and writes benchmarks/results/weights.json, weights_tables.json and benchmarks/RESULTS.md.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from keeping import conditions
from nearwise_lab.cli.settings_text import parse_seeds
from nearwise_lab.experiments.places import CLEAN, NOISE, TAIL
from nearwise_lab.experiments.study import run_experiment
from pretrain_tasks import family_split
from quality import BARS as QUALITY

EXPERIMENTS = {"clean": CLEAN, "noise": NOISE, "tail": TAIL}
LARGE, SMALL = "large-tables", "small-tables"
N_TABLES = {LARGE: 24, SMALL: 40}
FEWEST = {LARGE: 1000, SMALL: 190}  # rows of a table of the group
MOST_CLASSES = {LARGE: 100, SMALL: 10}
DRAWN = (100, 200, 300, 400)  # rows of a draw of a small table, by the seed


def tables(folder: Path, group: str) -> list[str]:
    """Names of the tables of a group.

    All that are large enough and of families that the pretrained head has not met, then one of each
    family that it learned from, by name, until there are enough.
    """
    known = pd.read_csv(folder / "INDEX.csv").set_index("name")
    fit = (known["rows"] >= FEWEST[group]) & (known["classes"] <= MOST_CLASSES[group])
    parts = {
        part: [name for name in names if fit[name]] for part, names in family_split(folder).items()
    }
    chosen = [*parts["judge"], *parts["dev"]]
    families = defaultdict(list)
    for name in parts["train"]:
        families[name.split("-")[0]].append(name)
    chosen += [names[0] for _, names in sorted(families.items())]
    return chosen[: N_TABLES[group]]


def requests(arguments: argparse.Namespace) -> Iterator[tuple[str, str, list[int], dict[str, Any]]]:
    """Give name of the folder, data set, seeds and settings of each run."""
    seeds = parse_seeds(arguments.seeds)
    for name in arguments.datasets.split(","):
        if name == "quality":
            yield from ((n, n, seeds, {}) for n, bar in QUALITY.items() if bar.dataset is None)
        elif name == LARGE:
            folder = arguments.data_root / "tables"
            for table in tables(folder, LARGE):
                yield table, f"{folder / table}.parquet:Class", seeds, {}
        elif name == SMALL:
            folder = arguments.data_root / "tables"
            for table in tables(folder, SMALL):
                for at, n_rows in enumerate(DRAWN):
                    some = [seed for seed in seeds if seed % len(DRAWN) == at]
                    place = f"{table}-{n_rows}"
                    if some:
                        yield place, f"{folder / table}.parquet:Class", some, {"max_rows": n_rows}
        else:
            dataset, _, most = name.partition(":")
            place = name.replace(":", "-")
            yield place, dataset, seeds, {"max_rows": int(most)} if most else {}


def run(arguments: argparse.Namespace) -> None:
    """Run what is missing of the experiment."""
    command = conditions()["command"]
    for place, dataset, seeds, settings in requests(arguments):
        records = run_experiment(
            EXPERIMENTS[arguments.experiment],
            dataset,
            "v1",
            seeds,
            arguments.runs / arguments.experiment / place,
            config=settings,
            data_root=arguments.data_root,
            only=arguments.only,
            command=command,
        )
        failed = {r.reason: r for r in records if r.status == "failed"}
        for reason, record in failed.items():
            print(f"{place}, seed {record.seed}, {record.condition}: {reason}", flush=True)
        print(f"{place}: {sum(r.status == 'ok' for r in records)} rows", flush=True)


def main() -> None:
    """Run an experiment on data sets, or record what was run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="run what is missing")
    running.add_argument("experiment", choices=EXPERIMENTS)
    running.add_argument("--datasets", default="cifar10", help="names, comma separated")
    running.add_argument("--seeds", default="0-2", help="0-4, or 0,2,7")
    running.add_argument("--only", help="rows with such names, as reports give them")
    running.add_argument("--runs", type=Path, default=Path("runs/weights"))
    running.add_argument("--data-root", type=Path)
    running.set_defaults(work=run)
    arguments = parser.parse_args()
    arguments.work(arguments)


if __name__ == "__main__":
    main()
