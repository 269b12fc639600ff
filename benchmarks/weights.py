"""Learned attention beside other weightings of the same neighbors, all else equal.

Claim: with the same memory, neighbors, pool and calibration, the weights of the classifier's
attention predict better than distance, tuned distance and uniform weights, and the neighbors add to
the base alone.

    python benchmarks/weights.py --datasets cifar10 --seeds 0-2
    python benchmarks/weights.py --datasets quality --seeds 0-4
    python benchmarks/weights.py --datasets wine,ionosphere --seeds 31-40 --label other_seeds

Runs the experiment "weights" (`nearwise experiment weights`) into runs/weights, one folder per data
set; run again, it goes on. Writes benchmarks/RESULTS.md and benchmarks/results/weights.json, which
keeps the data sets that this run leaves out. With a label the names of its folder and file end with
that, and the record without one stays.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nearwise_lab.cli.settings_text import parse_seeds
from nearwise_lab.experiments import Record
from nearwise_lab.experiments.study import run_experiment
from nearwise_lab.experiments.study.weights import CLASSIFIER, WITH_BASE, WITHOUT_BASE
from nearwise_lab.report.summary import Results
from nearwise_lab.results.measures import MEASURES, better
from quality import BARS as QUALITY
from results_page import write_page

HERE = Path(__file__).parent
RESULTS = HERE / "results"
KEYS = ("accuracy", "nll", "ece", "aurc")
BARS = {"accuracy": 0.940, "nll": 0.193, "ece": 0.006, "aurc": 0.0067}  # of the classifier
BARRED = "cifar10"
"""The data set that the bars are for."""


def summary(records: list[Record], folder: Path) -> list[dict[str, Any]]:
    """One row per condition and method: means over seeds, and attention minus the method."""
    rows = []
    for condition in (WITH_BASE, WITHOUT_BASE):
        mine = [r for r in records if r.condition == condition]
        results = Results(mine, folder)
        for method in results.methods:
            row: dict[str, Any] = {"condition": condition, "method": method}
            row["seeds"] = [r.seed for r in mine if r.method == method]
            for key in KEYS:
                mean = results.mean(mine[0].dataset, method, key)
                row[key] = None if mean is None else round(mean.mean, 5)
            if method not in ("attention", CLASSIFIER):
                row |= differences(results, mine[0].dataset, method)
            rows.append(row)
    return rows


def differences(results: Results, dataset: str, method: str) -> dict[str, Any]:
    """Attention minus a method, with intervals over seeds and test rows together."""
    found = {}
    for measure in MEASURES:
        if measure.key in KEYS:
            gap = results.paired_over_rows(dataset, "attention", method, measure.key)
            if gap is not None:
                ends = {name: round(getattr(gap, name), 5) for name in ("mean", "low", "high")}
                verdict = better(gap, measure)
                found[f"attention minus it, {measure.key}"] = ends | {"verdict": verdict}
    return found


def bars(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Reached and wanted on CIFAR-10: the classifier's own figures."""
    whole = next(r for r in rows if (r["condition"], r["method"]) == (WITH_BASE, CLASSIFIER))
    return {
        key: {
            "reached": whole[key],
            "wanted": bar,
            "met": whole[key] >= bar if key == "accuracy" else whole[key] <= bar,
        }
        for key, bar in BARS.items()
    }


def main() -> None:
    """Run the experiment on each data set and write what it shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--datasets", default=BARRED, help="names, comma separated; quality: those of quality.py"
    )
    parser.add_argument("--seeds", default="0-2", help="0-4, or 0,2,7")
    parser.add_argument("--label", default="", help="of a record beside the first, as other_seeds")
    parser.add_argument("--runs", type=Path, help="default: runs/weights, with the label")
    parser.add_argument("--data-root", type=Path)
    arguments = parser.parse_args()
    label = f"_{arguments.label}" if arguments.label else ""
    result = RESULTS / f"weights{label}.json"
    runs = arguments.runs or Path(f"runs/weights{label}")
    kept = json.loads(result.read_text()) if result.exists() else {}
    quality = [name for name, bar in QUALITY.items() if bar.dataset is None]
    names = arguments.datasets.replace("quality", ",".join(quality)).split(",")
    command = f"python benchmarks/weights.py --datasets {arguments.datasets}"
    command += f" --seeds {arguments.seeds}"
    command += f" --label {arguments.label}" if arguments.label else ""
    for name in names:
        folder = runs / name
        records = run_experiment(
            "weights",
            name,
            "v1",
            parse_seeds(arguments.seeds),
            folder,
            data_root=arguments.data_root,
            command=command,
        )
        done = [r for r in records if r.status == "ok"]
        for record in records:
            if record.status == "failed":
                print(f"{name} {record.method}: {record.reason}", file=sys.stderr)
        if not done:
            continue
        rows = summary(done, folder)
        kept[name] = {
            "results": rows,
            "n_train": done[-1].n_train,
            "n_test": done[-1].n_test,
            "command": command,
            "versions": done[-1].versions,
            "hardware": done[-1].hardware,
        }
        if name == BARRED:
            kept[name]["bars"] = bars(rows)
        result.write_text(json.dumps(kept, indent=1) + "\n")
        write_page(RESULTS, HERE / "RESULTS.md")


if __name__ == "__main__":
    main()
