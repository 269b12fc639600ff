"""The classifier and its presets beside peers that are tuned, bagged and tempered like itself.

Measures quality and cost on three tables, one seed; it claims nothing. Minutes for each of the slow
peers (tuned CatBoost, TabM); rows that are finished are kept, so that it can be stopped and run
again.

    python benchmarks/higher_peers.py --data-root DATA
    python benchmarks/higher_peers.py --methods base-alone,xrfm --only-run
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from nearwise_lab.experiments import HIGHER_PEERS, Record, compare, read_records
from nearwise_lab.experiments.methods import get_methods
from nearwise_lab.report.summary import Results
from results_page import write_page

from nearwise.conditions import hardware
from nearwise.safe_files import plain, write_aside

HERE = Path(__file__).parent
DATASETS = ("wine", "breast_cancer", "ionosphere")
OURS = ("attention", "attention-instant")
PLAIN = ("knn-tuned", "logistic", "random-forest", "hgb", "lightgbm", "catboost", "mlp")
SHOWN = {  # fields of a record, and how many digits count
    "nll": 4,
    "accuracy": 4,
    "ece": 3,
    "fit_seconds": 3,
    "fit_cpu_seconds": 3,
    "predict_us_per_row": 3,
    "one_row_ms": 3,
    "model_mb": 3,
}


def row(record: Record) -> dict[str, Any]:
    """Quality and cost of one method on one table."""
    values = {key: getattr(record, key) for key in SHOWN}
    shown = {k: None if v is None else float(f"{v:.{SHOWN[k]}g}") for k, v in values.items()}
    return {"method": record.method, **shown}


def summarize(records: list[Record], command: str) -> dict[str, Any]:
    """Tables by data set, lowest NLL first, and mean ranks of the methods that ran on all."""
    done = [r for r in records if r.status == "ok" and r.part_of is None and r.dataset in DATASETS]
    tables = {
        name: [row(r) for r in sorted(done, key=lambda r: r.nll or 0.0) if r.dataset == name]
        for name in DATASETS
    }
    ranks = Results(done).mean_ranks("nll") if done else {}
    return {
        "command": command,
        "hardware": hardware(),
        "versions": done[-1].versions if done else {},
        "seed": 0,
        "note": "One seed. Other work was running: compare CPU seconds, and times only roughly.",
        "results": {
            **tables,
            "mean NLL rank": [{"method": m, "rank": round(r, 2)} for m, r in ranks.items()],
        },
    }


def main(arguments: list[str]) -> None:
    """Run what is missing, write what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default=",".join([*OURS, *PLAIN, *HIGHER_PEERS]))
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--data-root", help="default: NEARWISE_DATA")
    parser.add_argument("--out", type=Path, default=Path("runs/higher_peers"))
    parser.add_argument("--only-run", action="store_true", help="leave the results as they are")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    methods = get_methods(options.methods.split(",")) if options.methods else []
    if methods:
        datasets = options.datasets.split(",")
        compare(datasets, methods, [0], options.out, data_root=options.data_root)
    if options.only_run:
        return
    command = "OMP_NUM_THREADS=1 python benchmarks/higher_peers.py"
    text = json.dumps(plain(summarize(read_records(options.out), command)), indent=1)
    write_aside(HERE / "results" / "higher_peers.json", (text + "\n").encode())
    write_page(HERE / "results", HERE / "RESULTS.md")


if __name__ == "__main__":
    main(sys.argv[1:])
