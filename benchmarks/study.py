"""The study on CIFAR-10 and MNIST: every bar of the classifier on images, from the default network.

Claims: on CIFAR-10 the classifier is accurate and calibrated, and better than its own network with
a temperature; with 30 % wrong labels, with labels that people gave (CIFAR-10N) and with a long tail
it stays so; MNIST to 99.6 %. What the weights of the neighbors are worth by themselves is the
subject of weights.py.

    python benchmarks/study.py --experiments main --seeds 0-2
    python benchmarks/study.py --experiments label-noise,long-tail --seeds 0
    python benchmarks/study.py --experiments label-noise --only "*human-worse*noise-model" --seeds 0
    python benchmarks/study.py --dataset mnist --experiments main --seeds 0
    python benchmarks/study.py --label 95 --set embedder=fast-cnn-wide --seeds 0

Runs experiments of `nearwise experiment` with the preset "v1" into runs/study; run again, it goes
on. Writes benchmarks/RESULTS.md and benchmarks/results/study_DATASET.json, from all that the folder
holds, finished seeds of unfinished experiments included; where it holds none, rows measured before
stay. Other settings have a label, which the names of their folder and file end with.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from nearwise_lab.cli.settings_text import parse_seeds, parse_settings
from nearwise_lab.experiments import Record, read_records
from nearwise_lab.experiments.study import run_experiment
from nearwise_lab.report.study import Study
from nearwise_lab.report.study_report import theory_table
from nearwise_lab.report.summary import Results
from nearwise_lab.results.measures import MEASURES, better
from results_page import write_page

from nearwise.safe_files import write_aside

HERE = Path(__file__).parent
KEYS = ("accuracy", "nll", "ece", "aurc", "null_mass")
ATTENTION, NOISE_MODEL, NETWORK = "attention", "attention+noise-model", "cnn+temperature"
WEIGHTS = "weights"  # weights.py judges these


class Bar(NamedTuple):
    """What a method must reach at a place: at least in accuracy, at most else.

    `study` is a data set and the label of its settings, `place` a pattern of the labels of places.
    """

    study: str
    experiment: str
    place: str
    method: str
    limits: dict[str, float]


BARS = (
    Bar(
        "cifar10", "main", "", "attention+tta",
        {"accuracy": 0.940, "nll": 0.193, "ece": 0.006, "aurc": 0.0067},
    ),
    Bar(
        "cifar10_95", "main", "", "attention+tta",
        {"accuracy": 0.950, "nll": 0.165, "ece": 0.005, "aurc": 0.0055},
    ),
    Bar(
        "cifar10", "label-noise", "30 % symmetric, everywhere", NOISE_MODEL,
        {"accuracy": 0.925, "ece": 0.015},
    ),
    Bar(
        "cifar10", "label-noise", "* human-worse, everywhere", NOISE_MODEL,
        {"accuracy": 0.88, "ece": 0.03},
    ),
    Bar(
        "cifar10", "label-noise", "* human-aggregate, everywhere", NOISE_MODEL,
        {"accuracy": 0.92, "ece": 0.015},
    ),
    Bar(
        "cifar10", "long-tail", "ratio = 0.01", "attention+uniform-prior",
        {"accuracy": 0.78, "ece": 0.03},
    ),
    Bar("mnist", "main", "", ATTENTION, {"accuracy": 0.996, "ece": 0.002}),
)  # fmt: skip
NOISE_GAIN = 0.03  # accuracy over the network with a temperature
GAINS_AT = "30 % symmetric, everywhere"


def summary(study: Study, dataset: str) -> list[dict[str, Any]]:
    """One row per place and method: means over seeds, and attention minus the method.

    Of theory one row per quantity.
    """
    rows = theory_rows(study, dataset)
    for experiment in study.experiments_of(dataset, "v1"):
        for place in study.places(dataset, experiment, "v1"):
            part = study.part(dataset, place)
            # Of long tails the halves too: the base alone is the network under the class prior.
            for method in part.every_method if experiment == "long-tail" else part.methods:
                means = {key: part.mean(dataset, method, key) for key in KEYS}
                if means["accuracy"] is None:
                    continue
                row: dict[str, Any] = {"experiment": experiment, "place": place.label}
                row |= {"method": method, "seeds": part.seeds}
                row["commit"] = _commits(r for r in part.records if r.method == method)
                row |= {key: _round(mean.mean) for key, mean in means.items() if mean is not None}
                row["by_seed"] = {
                    str(one.seed): {key: _round(getattr(one, key)) for key in KEYS}
                    for one in part.records
                    if one.method == method and one.status == "ok"
                }
                if experiment == "main" and method != ATTENTION:
                    row |= differences(part, dataset, method)
                rows.append(row)
    return rows


def differences(results: Results, dataset: str, method: str) -> dict[str, Any]:
    """Attention minus a method, with intervals over seeds and test rows together."""
    found = {}
    for measure in MEASURES:
        if measure.key in KEYS[:4]:
            gap = results.paired_over_rows(dataset, ATTENTION, method, measure.key)
            if gap is not None:
                ends = {name: round(getattr(gap, name), 5) for name in ("mean", "low", "high")}
                verdict = better(gap, measure)
                found[f"attention minus it, {measure.key}"] = ends | {"verdict": verdict}
    return found


def theory_rows(study: Study, dataset: str) -> list[dict[str, Any]]:
    """What the theory experiment found, as reports show it."""
    table = theory_table(study, dataset, "v1")
    if table is None:
        return []
    places = study.places(dataset, "theory", "v1")
    found = [record for place in places for record in study.part(dataset, place).records]
    common = {
        "method": ATTENTION,
        "seeds": sorted({record.seed for record in found}),
        "commit": _commits(found),
    }
    return [
        {"experiment": "theory", "place": quantity, **common, "value": cells[0].text}
        for quantity, cells in table.rows
    ]


def _commits(records: Iterable[Record]) -> str:
    """Commits that measured some rows, earliest first."""
    by_time = sorted(records, key=attrgetter("time"))
    return ", ".join(dict.fromkeys(r.versions.get("commit", "unknown") for r in by_time))


def checks(rows: list[dict[str, Any]], study: str) -> list[dict[str, Any]]:
    """Reached and wanted of every bar whose rows are there."""
    found = []
    for bar in BARS:
        for row in rows if bar.study == study else ():
            here = bar.experiment, bar.method
            if (row["experiment"], row["method"]) != here or not fnmatch(row["place"], bar.place):
                continue
            name = f"{row['place'] or bar.experiment}: {bar.method}"
            for key, limit in bar.limits.items():
                found.append(_check(f"{name}, {key}", row[key], limit, at_least=key == "accuracy"))
            if bar.place == GAINS_AT:
                for network in rows:
                    it = network["place"], network["method"], network["seeds"]
                    if it == (GAINS_AT, NETWORK, row["seeds"]):
                        gain = round(row["accuracy"] - network["accuracy"], 5)
                        name = f"{name} minus {NETWORK}, accuracy"
                        found.append(_check(name, gain, NOISE_GAIN, at_least=True))
    return found


def with_former(rows: list[dict[str, Any]], former: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep former rows of what was not measured now, so that a long study can grow by parts.

    A row joins the former one where that has seeds which it lacks: means over all of them. Their
    differences go, as their intervals want the predictions of all seeds.
    """
    key = itemgetter("experiment", "place", "method")
    before = {key(row): row for row in former}
    measured = {key(row) for row in rows}
    kept = [row for row in former if key(row) not in measured]
    return kept + [_joined(before.get(key(row)), row) for row in rows]


def _joined(former: dict[str, Any] | None, row: dict[str, Any]) -> dict[str, Any]:
    if former is None or "value" in row or set(former["seeds"]) <= set(row["seeds"]):
        return row
    there, now = _by_seed(former), _by_seed(row)
    if there is None or now is None:
        raise SystemExit(
            f"{row['place']}, {row['method']}: of seeds {former['seeds']} the mean alone is known, "
            f"so those of {row['seeds']} cannot join it. Summarise all of them together."
        )
    joined = {name: row[name] for name in ("experiment", "place", "method")}
    by_seed = there | now
    joined |= {"seeds": sorted(map(int, by_seed)), "by_seed": by_seed}
    commits = ", ".join(one.get("commit", "unknown") for one in (former, row))
    joined["commit"] = ", ".join(dict.fromkeys(commits.split(", ")))
    for measure in KEYS:
        values = [one[measure] for one in by_seed.values() if one.get(measure) is not None]
        if len(values) == len(by_seed):
            joined[measure] = _round(sum(values) / len(values))
    return joined


def _by_seed(row: dict[str, Any]) -> dict[str, Any] | None:
    """Measures of each seed; None where their mean alone is known."""
    if "by_seed" in row:
        return dict(row["by_seed"])
    if len(row["seeds"]) > 1:
        return None
    return {str(row["seeds"][0]): {measure: row.get(measure) for measure in KEYS}}


def _check(bar: str, reached: float, wanted: float, *, at_least: bool) -> dict[str, Any]:
    met = reached >= wanted if at_least else reached <= wanted
    return {"bar": bar, "wanted": wanted, "reached": reached, "met": met}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def write(folder: Path, dataset: str, label: str, results: Path, command: str) -> str:
    """Summarise all finished rows of a data set, beside former ones that it does not replace."""
    name = "_".join(filter(None, (dataset, label)))
    records = [
        r
        for r in read_records(folder)
        if r.dataset == dataset and r.status == "ok" and r.experiment != WEIGHTS
    ]
    if not records:
        raise SystemExit(f"{folder} holds no finished row of {dataset}: nothing to summarise.")
    study, path = Study(records, folder), results / f"study_{name}.json"
    newest = records[-1]
    former = json.loads(path.read_text())["results"] if path.exists() else []
    rows = with_former(summary(study, dataset), former)
    content = {
        "command": command,
        "hardware": newest.hardware,
        "versions": newest.versions,
        "checks": checks(rows, name),
        "results": rows,
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_aside(path, text.encode())
    write_page(results, results.parent / "RESULTS.md")
    return text


def failures(records: Sequence[Record]) -> list[str]:
    """Say which rows failed, and why."""
    return [
        f"{r.experiment} {r.condition} {r.method}: {r.reason}" for r in records if r.status != "ok"
    ]


def main(arguments: list[str]) -> None:
    """Run what is missing, summarise, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="cifar10", help="default: cifar10")
    parser.add_argument("--experiments", default="main", help="comma-separated; default: main")
    parser.add_argument("--only", metavar="PATTERN", help="rows to make, as `nearwise experiment`")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", help="as there")
    parser.add_argument("--label", default="", help="what those settings are called")
    parser.add_argument("--seeds", default="0-2", help="0-4, or 0,2,7")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", help="default: NEARWISE_DATA")
    parser.add_argument("--out", type=Path, help="folder for rows; default: runs/study")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder for JSON")
    parser.add_argument("--summary-only", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    if bool(options.set) != bool(options.label):
        parser.error("--set needs --label NAME for its folder and file, and --label needs --set.")
    folder = options.out or Path("runs", "-".join(filter(None, ("study", options.label))))
    command = shlex.join(
        ["python", "benchmarks/study.py", "--dataset", options.dataset,
         "--experiments", options.experiments, "--seeds", options.seeds,
         *(["--only", options.only] if options.only else []),
         *(["--label", options.label] if options.label else []),
         *(part for change in options.set or () for part in ("--set", change))]
    )  # fmt: skip
    failed = []
    for experiment in [] if options.summary_only else options.experiments.split(","):
        records = run_experiment(
            experiment,
            options.dataset,
            "v1",
            parse_seeds(options.seeds),
            folder,
            device=options.device,
            config=parse_settings("--set", options.set),
            data_root=options.data_root,
            only=options.only,
            command=command,
        )
        failed += failures(records)
    print(write(folder, options.dataset, options.label, options.results, command))
    if failed:
        raise SystemExit("\n".join(["failed rows (run again to try them again):", *failed]))


if __name__ == "__main__":
    main(sys.argv[1:])
