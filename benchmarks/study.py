"""The original study replayed and the corrected method, on CIFAR-10, side by side.

Claims (size "full", 45,000 rows in memory, at most 60 epochs, on a GPU): attention k-NN is at least
as accurate as the CNN on the same rows, calibrated (ECE .008, with views .006), and its AURC is
under .7 of the CNN's with temperature; the replay of preset v0.5 shows the collapse. Size "slice"
is the same experiment on 6,000 rows with a small network, for two processor cores. It has no bars:
at the study's rate 20 epochs leave the replay of so few rows undertrained, and the collapse, which
digits show (docs/experiments.md), does not come about.

    python benchmarks/study.py --size full --device cuda
    python benchmarks/study.py --size slice --seeds 0,1,2

Rows are kept in runs/study_SIZE; run again, it goes on. Writes benchmarks/RESULTS.md and
benchmarks/results/study_SIZE.json.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from results_page import write_page

from nearwise.lab.experiments import Record
from nearwise.lab.experiments.study import run_experiment
from nearwise.lab.results.measures import mean_with_interval
from nearwise.safe_files import write_aside

HERE = Path(__file__).parent
SLICE: dict[str, Any] = {
    "backbone": "resnet-small",
    "max_rows": 6000,
    "max_test_rows": 2000,
    "cnn_epochs": 12,
}
CHANGES: dict[str, dict[str, Any]] = {"slice": SLICE, "full": {}}
KEYS = ("accuracy", "nll", "ece", "aurc", "null_mass")
BARS = (  # method, key, limit; accuracies at least, the others at most
    ("attention", "accuracy", 0.945),
    ("attention", "ece", 0.008),
    ("attention", "nll", 0.200),
    ("attention+tta", "accuracy", 0.950),
    ("attention+tta", "ece", 0.006),
)
AURC_RATIO = 0.7
BARRED = "cifar10"  # the data set that the bars are for
COLLAPSE_GAP, COLLAPSE_LOSS = 0.03, 0.05


def summary(records: list[Record]) -> list[dict[str, Any]]:
    """One row a preset and method: means over seeds and half their 95 % interval."""
    rows = []
    for preset, method in dict.fromkeys((r.preset, r.method) for r in records):
        mine = [r for r in records if (r.preset, r.method) == (preset, method)]
        row: dict[str, Any] = {"preset": preset, "method": method, "seeds": len(mine)}
        for key in KEYS:
            values = [v for r in mine if (v := getattr(r, key)) is not None]
            if values:
                mean = mean_with_interval(values)
                row[key] = round(mean.mean, 5)
                row[f"{key} ±"] = None if mean.half is None else round(mean.half, 5)
        rows.append(row)
    return rows


def checks(records: list[Record], size: str) -> dict[str, Any]:
    """Reached and wanted of every bar of this size."""
    found: dict[str, Any] = {}
    if any(r.preset == "v0.5" for r in records):
        found["collapse in v0.5"] = collapse(records)
    if size != "full" or not any(r.preset == "v1" for r in records):
        return found
    mean = {
        (r["method"], key): r[key]
        for r in summary(records)
        if r["preset"] == "v1"
        for key in KEYS[:4]
    }
    for method, key, limit in BARS:
        reached = mean[method, key]
        met = reached >= limit if key == "accuracy" else reached <= limit
        found[f"{method} {key}"] = {"wanted": limit, "reached": reached, "met": met}
    gap = mean["attention", "accuracy"] - mean["cnn", "accuracy"]
    found["attention accuracy minus CNN's"] = {"wanted": 0, "reached": gap, "met": gap >= 0}
    nll = mean["attention", "nll"] - mean["cnn+temperature", "nll"]
    found["attention NLL minus CNN + temperature's"] = {"wanted": 0, "reached": nll, "met": nll < 0}
    ratio = mean["attention", "aurc"] / mean["cnn+temperature", "aurc"]
    found["AURC over CNN + temperature's"] = {
        "wanted": AURC_RATIO,
        "reached": ratio,
        "met": ratio <= AURC_RATIO,
    }
    return found


def collapse(records: list[Record]) -> dict[str, Any]:
    """Whether ECE is about 1 - accuracy and the training loss nearly 0, as in the study."""
    rows = [r for r in records if (r.preset, r.method) == ("v0.5", "attention")]
    gaps = [abs(r.ece - (1 - r.accuracy)) for r in rows if r.ece is not None and r.accuracy]
    losses = [r.details["knn_loss_with_self"] for r in rows]
    met = bool(rows) and max(gaps) <= COLLAPSE_GAP and max(losses) <= COLLAPSE_LOSS
    return {
        "ECE minus (1 - accuracy), at most": max(gaps, default=None),
        "training loss with self, at most": max(losses, default=None),
        "purity": [round(r.details["purity"], 4) for r in rows],
        "met": met,
    }


def main(arguments: list[str]) -> None:
    """Run what is missing, summarise, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=tuple(CHANGES), default="slice")
    parser.add_argument("--dataset", default="cifar10", help="default: cifar10")
    parser.add_argument("--presets", default="v1,v0.5", help="comma-separated")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", help="default: NEARWISE_DATA")
    parser.add_argument("--out", type=Path, help="folder for rows; default: runs/study-SIZE")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder for JSON")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    command = shlex.join(
        ["python", "benchmarks/study.py", "--size", options.size, "--seeds", options.seeds,
         "--dataset", options.dataset, "--presets", options.presets, "--device", options.device]
    )  # fmt: skip
    name = f"study_{options.size}" + ("" if options.dataset == BARRED else f"_{options.dataset}")
    records: list[Record] = []
    for preset in options.presets.split(","):
        records += run_experiment(
            "main",
            options.dataset,
            preset,
            [int(seed) for seed in options.seeds.split(",")],
            options.out or Path(f"runs/{name}"),
            device=options.device,
            config=CHANGES[options.size],
            data_root=options.data_root,
            progress=not options.quiet,
            command=command,
        )
    if failed := [f"{r.preset} {r.method}: {r.reason}" for r in records if r.status != "ok"]:
        raise SystemExit("\n".join(["failed rows (run again to try them again):", *failed]))
    content = {
        "command": command,
        "settings": CHANGES[options.size],
        "hardware": records[0].hardware,
        "versions": records[0].versions,
        "seeds": options.seeds,
        "checks": checks(records, options.size if options.dataset == BARRED else "slice"),
        "results": summary(records),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_aside(options.results / f"{name}.json", text.encode())
    write_page(options.results, options.results.parent / "RESULTS.md")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
