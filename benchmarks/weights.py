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

All take `--data-root DATA`. `run` runs an experiment of the lab (`nearwise experiment weights`,
`weights-noise`, `weights-tail`) into runs/weights, a folder per data set; run again, it goes on.
Names of data sets are separated by commas; "quality" stands for those of quality.py, "large-tables"
for 24 tables of at least 1,000 rows and "small-tables" for 40 tables of which each seed draws 100
to 400; "cifar10:10000" takes as many training rows. Of wrong labels 30 % are drawn, and a rare
class has a hundredth of the largest one; `--grid all` takes the other rates and ratios, and
people's labels. `record` reads all these folders and writes benchmarks/results/weights.json,
weights_tables.json and benchmarks/RESULTS.md; `python benchmarks/tables_page.py` then writes the
tables of the pages.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from keeping import RESULTS, conditions, keep, read
from nearwise_lab.cli.settings_text import parse_seeds
from nearwise_lab.comparisons import PairedDifference, holm, paired_difference
from nearwise_lab.experiments import Record
from nearwise_lab.experiments.places import CLEAN, NOISE, TAIL
from nearwise_lab.experiments.study import run_experiment
from nearwise_lab.experiments.study.weights import BASE, CLASSIFIER, WITH_BASE, WITHOUT_BASE
from nearwise_lab.records import read_records
from nearwise_lab.report.summary import Results
from nearwise_lab.results.measures import MEASURES
from pretrain_tasks import family_split
from quality import BARS as QUALITY
from results_page import write_page
from scipy.stats import wilcoxon
from tables_page import differences, is_shown, mean_of

HERE = Path(__file__).parent
ATTENTION = "attention"
WHOLE = (ATTENTION, "attention-normalised", CLASSIFIER)  # what nothing is subtracted from
COMPARED = {m.key: m for m in MEASURES if m.key in ("accuracy", "nll", "ece", "aurc")}
SURE = 0.05  # of Holm's adjusted p-values
HARDEST = {"noise_rates": [0.3], "human_labels": [], "tail_ratios": [0.01]}
FAR = 0.05  # nats by which attention may be behind on one draw
EXPERIMENTS = {"clean": CLEAN, "noise": NOISE, "tail": TAIL}
LARGE, SMALL = "large-tables", "small-tables"
IMAGES = "cifar10-10000"
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
    grid = HARDEST if arguments.grid == "hardest" else {}
    for name in arguments.datasets.split(","):
        if name == "quality":
            yield from ((n, n, seeds, grid) for n, bar in QUALITY.items() if bar.dataset is None)
        elif name == LARGE:
            folder = arguments.data_root / "tables"
            for table in tables(folder, LARGE):
                yield table, f"{folder / table}.parquet:Class", seeds, grid
        elif name == SMALL:
            folder = arguments.data_root / "tables"
            for table in tables(folder, SMALL):
                for at, n_rows in enumerate(DRAWN):
                    some = [seed for seed in seeds if seed % len(DRAWN) == at]
                    place, drawn = f"{table}-{n_rows}", grid | {"max_rows": n_rows}
                    if some:
                        yield place, f"{folder / table}.parquet:Class", some, drawn
        else:
            dataset, _, most = name.partition(":")
            place = name.replace(":", "-")
            yield place, dataset, seeds, grid | ({"max_rows": int(most)} if most else {})


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


# --- what was measured ----------------------------------------------------------------------------


def record(arguments: argparse.Namespace) -> None:
    """Write what all runs show: one part for data sets, one for groups of tables."""
    folder = arguments.data_root / "tables"
    split = {name: part for part, names in family_split(folder).items() for name in names}
    named, of_tables = list[dict[str, Any]](), list[dict[str, Any]]()
    commands: dict[bool, set[str]] = {True: set(), False: set()}
    for path in sorted(arguments.runs.glob("*/*/records.jsonl")):
        name = path.parent.name
        table, _, n_rows = name.rpartition("-")
        group, what = (LARGE, name) if name in split else (SMALL, table)
        is_table = what in split and (group == LARGE or n_rows.isdigit())
        done = [r for r in read_records(path.parent) if r.status == "ok"]
        commands[is_table] |= {r.command for r in done}
        for row in parts(done, path.parent):
            if is_table:
                bare = {key: v for key, v in row.items() if not key.startswith("attention minus")}
                of_tables.append({"group": group, "table": what} | bare)
            else:
                named.append({"data": name} | row)
    named += pooled(read(RESULTS / "weights_former_networks.json"))
    groups = []
    for group in N_TABLES:
        mine = [row for row in of_tables if row["group"] == group]
        unmet = [row for row in mine if split[row["table"]] != "train"]
        groups += questions(group, "all", mine)
        groups += questions(group, "not met by the head", unmet)
    keep({"commands": sorted(commands[False]), "results": named}, RESULTS / "weights.json")
    shown: dict[str, Any] = {"commands": sorted(commands[True]), "bars": bars(groups, named)}
    shown |= {"results": groups, "runs": of_tables}
    keep(shown, RESULTS / "weights_tables.json")
    write_page(RESULTS, HERE / "RESULTS.md")


def bars(groups: list[dict[str, Any]], named: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bars of the comparisons on tables and on images, and how far each was reached.

    Of several weightings, the one that attention is least ahead of counts.
    """
    wanted = [
        ("judged by equally wrong labels", "everywhere; as-given; {}; given-labels", "nll", ""),
        ("judged by equally wrong labels", "everywhere; as-given; {}; given-labels", "ece", ""),
        ("wrong labels in all rows, corrected", "everywhere; corrected; {}", "nll", ""),
        ("wrong labels in all rows, corrected", "everywhere; corrected; {}", "ece", ""),
        ("long tail, corrected", "ratio=0.01; corrected; {}", "accuracy", "uniform"),
        ("long tail, corrected", "ratio=0.01; corrected; {}", "nll", "uniform"),
        ("labels as they are", "{}", "nll", "distance-learned"),
    ]
    found = []
    for data, rows, base in (
        ("tables", differences(groups, LARGE), WITHOUT_BASE),
        ("images", differences(named, IMAGES), WITH_BASE),
    ):
        for title, condition, key, other in wanted:
            sign = 1 if COMPARED[key].higher_is_better else -1
            mine = [row[key] for row in rows if row["condition"] == condition.format(base)
                    and other in ("", row["method"])]  # fmt: skip
            if mine:
                worst = min(mine, key=lambda gap: sign * gap["mean"])
                beside = other or "each other weighting"
                name = f"{data}, {title}: {key}, attention minus {beside}"
                side = "above" if sign > 0 else "below"
                found.append({"bar": name, "wanted": f"{side} 0", "reached": worst,
                              "met": sign * worst["mean"] > 0})  # fmt: skip
    after = {row["method"]: row for row in filter(is_shown, named) if row["data"] == IMAGES
             and row["condition"] == "memory; as-given; with=base"}  # fmt: skip
    for key, most in (("nll", 0.0), ("ece", 0.005)) if after else ():
        gap = mean_of(after[CLASSIFIER][key]) - mean_of(after[BASE][key])
        found.append({"bar": f"images, wrong labels in the memory: {key}, classifier minus network",
                      "wanted": f"at most {most:g}", "reached": round(gap, 5),
                      "met": gap <= most})  # fmt: skip
    for row in differences(groups, SMALL):
        if row["method"] == "distance-learned":
            share = row["share_of_draws_worse_by_over_.05"]
            name = "small tables: share of draws worse than distance learned per space by over .05"
            found.append({"bar": name, "wanted": "at most 0.05", "reached": share,
                          "met": share <= 0.05})  # fmt: skip
    return found


def parts(done: list[Record], folder: Path) -> list[dict[str, Any]]:
    """One row per condition and method of a folder, with the values of each seed."""
    found: dict[Any, list[Record]] = defaultdict(list)
    for one in done:
        found[one.experiment, one.condition, one.noise, one.noise_kind].append(one)
    rows = []
    for (experiment, condition, noise, kind), records in found.items():
        results = Results(records, folder)
        if ATTENTION not in results.methods:
            continue  # still running
        described = {"experiment": experiment, "condition": condition}
        described |= {"noise": f"{100 * noise:g} % {kind}"} if noise else {}
        new = [described | _row(results, method) for method in results.methods]
        _correct([row for row in new if row["method"] not in WHOLE], "attention minus it, ")
        rows += new
    return rows


def pooled(networks: dict[str, Any]) -> list[dict[str, Any]]:
    """Attention minus each weighting over two sets of three networks of CIFAR-10.

    Both were measured on the same test images, so the half width of the mean is taken as the mean
    of the half widths: it is that if the two share all that they vary by, and smaller else.
    """
    sets = [
        {(row["condition"], row["method"]): row for row in networks[name]["results"]}
        for name in ("cifar10, three later networks", "cifar10, three networks")
        if name in networks
    ]
    rows = []
    for place in sets[0] if len(sets) == 2 else ():
        both = [found[place] for found in sets if place in found]
        keys = [key for key in both[0] if key.startswith("attention minus it")]
        if len(both) < 2 or not keys:
            continue
        row = {"data": "cifar10, six networks", "condition": place[0], "method": place[1]}
        for key in keys:
            ends = {n: round(sum(r[key][n] for r in both) / 2, 5) for n in ("mean", "low", "high")}
            sure = not ends["low"] <= 0 <= ends["high"]
            row[key] = ends | {"verdict": _word(key.split(", ")[1], ends["mean"], sure)}
        rows.append(row)
    return rows


def _row(results: Results, method: str) -> dict[str, Any]:
    mine = [r for r in results.records if r.method == method]
    dataset = mine[0].dataset
    row: dict[str, Any] = {"method": method, "n_train": mine[0].n_train, "n_test": mine[0].n_test}
    for key in COMPARED:
        row[key] = {str(s): round(v, 5) for s, v in results.values(dataset, method, key).items()}
    row["commit"] = ", ".join(sorted({r.versions.get("commit", "unknown") for r in mine}))
    for key in COMPARED if method not in WHOLE else ():
        gap = results.paired_over_rows(dataset, ATTENTION, method, key)
        row[f"attention minus it, {key}"] = _ends(gap)
    return row


def questions(group: str, families: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Attention minus each other weighting, a table being one observation.

    Intervals of means are Student's; a verdict is that of Wilcoxon's signed ranks, as few tables
    with large differences decide a mean. Demsar, "Statistical comparisons of classifiers over
    multiple data sets", 2006.
    """
    by: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        place = row["experiment"], row["condition"], row.get("noise", ""), row["method"]
        merged = by[place].setdefault(row["table"], {key: {} for key in COMPARED})
        for key in COMPARED:
            merged[key] |= row[key]
    answers = defaultdict(list)
    for (experiment, condition, noise, method), theirs in by.items():
        if method in WHOLE:
            continue
        mine = by[experiment, condition, noise, ATTENTION]
        gaps = {
            key: {t: _gaps(mine[t][key], theirs[t][key]) for t in theirs if t in mine}
            for key in COMPARED
        }
        means = {key: {t: sum(d) / len(d) for t, d in g.items() if d} for key, g in gaps.items()}
        if len(means["nll"]) < 2:
            continue
        draws = [gap for found in gaps["nll"].values() for gap in found]
        answer: dict[str, Any] = {"group": group, "families": families, "condition": condition}
        answer |= {"noise": noise} if noise else {}
        answer |= {"attention minus": method, "n_tables": len(means["nll"]), "n_draws": len(draws)}
        for key, found in means.items():
            values = np.array(list(found.values()))
            answer[key] = _ends(paired_difference(values, np.zeros(len(values))))
            answer[key]["p"] = wilcoxon(values).pvalue if values.any() else float("nan")
        answer["share_of_tables_with_lower_nll"] = _share(g < 0 for g in means["nll"].values())
        answer["share_of_draws_worse_by_over_.05"] = _share(gap > FAR for gap in draws)
        answers[experiment, condition, noise].append(answer)
    for same in answers.values():
        _correct(same)
    return [answer for same in answers.values() for answer in same]


def _gaps(mine: dict[str, float], theirs: dict[str, float]) -> list[float]:
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def _share(found: Iterable[bool]) -> float:
    values = list(found)
    return round(sum(values) / len(values), 3)


def _ends(gap: PairedDifference | None) -> dict[str, Any]:
    if gap is None:
        raise ValueError("A weighting has no seed in common with attention: run what is missing.")
    ends = {name: getattr(gap, name) for name in ("mean", "low", "high")}
    return {n: round(v, 5) if isfinite(v) else None for n, v in ends.items()} | {"p": gap.p_value}


def _correct(rows: Sequence[dict[str, Any]], before: str = "") -> None:
    """Give each difference of some rows its verdict, all of them together by Holm."""
    every = [(key, row[before + key]) for row in rows for key in COMPARED]
    for (key, cell), p in zip(every, holm([cell.pop("p") for _, cell in every]), strict=True):
        cell["verdict"] = _word(key, cell["mean"], bool(p < SURE))


def _word(key: str, mean: float, sure: bool) -> str:
    if not sure:
        return "none"
    return "better" if (mean > 0) == COMPARED[key].higher_is_better else "worse"


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
    running.add_argument("--grid", choices=("hardest", "all"), default="hardest")
    running.add_argument("--only", help="rows with such names, as reports give them")
    running.set_defaults(work=run)
    recording = commands.add_parser("record", help="write what all runs show")
    recording.set_defaults(work=record)
    for command in (running, recording):
        command.add_argument("--runs", type=Path, default=Path("runs/weights"))
        command.add_argument("--data-root", type=Path, required=True, help="where data sets lie")
    arguments = parser.parse_args()
    arguments.work(arguments)


if __name__ == "__main__":
    main()
