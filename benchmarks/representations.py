"""What k-NN, attention, linear and transformer probes read out of neural fields and pixels.

Claims, on scikit-learn's digits (test rows of one split, mean over seeds): the whole comparison
(five arms and the untrained field, two contexts, four probes) takes under 8 minutes per seed on two
quiet cores, and accuracies are at least those of an earlier small run of the same model (`BARS`).
Beside them: what the records say of the question and of H1 to H3, with intervals.

    python benchmarks/representations.py
    python benchmarks/representations.py --seeds 0-2
    python benchmarks/representations.py --dataset cifar10 --seeds 0-2 --device cuda
    python benchmarks/representations.py --dataset cifar10 --limit 2000,1000 --set epochs=3

What is finished is kept in runs/ and not done again, so it can be stopped at any time.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from keeping import conditions
from nearwise_lab.cli.settings_text import change_settings, parse_seeds
from nearwise_lab.data import load_images
from nearwise_lab.experiments.representations import Cell, Comparison, run_comparison
from nearwise_lab.report import render_report
from nearwise_lab.report.representations import judge_all

from nearwise.cli.rows.parsing import parse_count

NAMES = {"digits": "digits-images"}
# (encoder, probe, context): accuracy of one seed of a run of 600 steps, cosine k-NN, k 20
BARS = {
    ("pixels", "knn", "full"): 0.974,
    ("pixels", "linear", "full"): 0.970,
    ("random", "knn", "full"): 0.774,
    ("random", "linear", "full"): 0.904,
    ("full", "knn", "full"): 0.932,
    ("full", "linear", "full"): 0.964,
    ("full", "knn", "0.2"): 0.250,
    ("full", "linear", "0.2"): 0.364,
    ("full", "knn", "0.2:fixed"): 0.676,
    ("full", "linear", "0.2:fixed"): 0.698,
    ("sparse", "knn", "full"): 0.902,
    ("sparse", "linear", "full"): 0.928,
    ("sparse", "knn", "0.2"): 0.530,
    ("sparse", "linear", "0.2"): 0.552,
    ("sparse", "knn", "0.2:fixed"): 0.668,
    ("sparse", "linear", "0.2:fixed"): 0.728,
    ("sparse+nce", "knn", "full"): 0.878,
    ("sparse+nce", "linear", "full"): 0.930,
    ("sparse+nce", "knn", "0.2"): 0.512,
    ("sparse+nce", "linear", "0.2"): 0.544,
}
TRANSFORMER = 0.60  # accuracy on CIFAR-10 of the transformer probe, on the best field
ATTENTION = 0.02  # by which attention is to be above uniform k-NN, on reconstruction features


def judge_digits(comparison: Comparison) -> list[dict[str, Any]]:
    """Compare means over seeds and draws with the earlier run."""
    judged = []
    for place, wanted in BARS.items():
        part = "protocol" if ":" in place[2] else "main"
        values = list(comparison.values(Cell(*place), part=part).values())
        if values:
            judged.append(judge(*place, wanted, values))
    return judged


def judge_cifar10(comparison: Comparison) -> list[dict[str, Any]]:
    """Compare the transformer probe on the best field, and attention with k-NN, with their bars."""

    def by_seed(encoder: str, probe: str) -> list[float]:
        return list(comparison.values(Cell(encoder, probe, "full")).values())

    fields = [e for e in comparison.encoders if e not in ("pixels", "random")]
    best = max(fields, key=lambda encoder: sum(by_seed(encoder, "transformer")))
    pairs = zip(by_seed("full", "attention"), by_seed("full", "knn"), strict=True)
    gains = [attention - uniform for attention, uniform in pairs]
    found = [
        (best, "transformer", TRANSFORMER, by_seed(best, "transformer")),
        ("full", "attention - knn", ATTENTION, gains),
    ]
    return [judge(e, probe, "full", wanted, values) for e, probe, wanted, values in found if values]


JUDGES = {"digits": judge_digits, "cifar10": judge_cifar10}
"""What a data set's comparison is held against; others have no bars."""


def judge(
    encoder: str, probe: str, context: str, wanted: float, values: list[float]
) -> dict[str, Any]:
    """One bar: what was wanted of a place, and what was reached."""
    reached = sum(values) / len(values)
    return {
        "encoder": encoder,
        "probe": probe,
        "context": context,
        "wanted": wanted,
        "reached": reached,
        "by_seed": values,
        "met": reached >= wanted,
        "missed_by": max(0.0, wanted - reached),
    }


def means(comparison: Comparison) -> list[dict[str, Any]]:
    """Accuracy, NLL and ECE of every place, with every seed."""
    rows = []
    for encoder in comparison.encoders:
        for probe in comparison.probes:
            for context in comparison.contexts:
                place = Cell(encoder, probe, context)
                found = {m: comparison.values(place, m) for m in ("accuracy", "nll", "ece")}
                rows.append(place._asdict() | found)
    return rows


def protocol(comparison: Comparison) -> list[dict[str, Any]]:
    """Accuracy under each way of hiding pixels."""
    cells = (Cell(*(r[k] for k in Cell._fields)) for r in comparison.part("protocol"))
    return [
        cell._asdict() | {"accuracy": comparison.values(cell, part="protocol")}
        for cell in dict.fromkeys(cells)
    ]


def main() -> None:
    """Measure, judge and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--context", default="full,0.2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", default="auto", help="processes that train and probe")
    parser.add_argument("--limit", help="at most so many training and test rows: 2000,1000")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="of StudyConfig")
    args = parser.parse_args()
    config = change_settings({}, "--set", args.set) | {"contexts": args.context.split(",")}
    if args.limit:
        config["limit"] = tuple(map(int, args.limit.split(",")))
    work = Path("runs") / f"representations-{args.dataset}"
    name = NAMES.get(args.dataset, args.dataset)
    began = time.perf_counter()
    comparison = run_comparison(
        load_images(name),
        work,
        seeds=parse_seeds(args.seeds),
        config=config,
        device=args.device,
        n_jobs=parse_count("--jobs", args.jobs) or "auto",
        progress=lambda words: None if ", step" in words else print(words),
    )
    page = render_report(work)
    seconds = time.perf_counter() - began
    bars = JUDGES[args.dataset](comparison) if args.dataset in JUDGES else []
    print(f"\n{page}")
    for bar in bars:
        said = "met" if bar["met"] else f"missed by {bar['missed_by']:.3f}"
        print(f"{bar['encoder']:10} {bar['probe']:15} {bar['context']:10} "
              f"{bar['reached']:.3f} of {bar['wanted']:.3f}: {said}")  # fmt: skip
    hypotheses = judge_all(comparison)
    for h in hypotheses:
        print(f"{h.claim.key}: {h.verdict}. {h.words}")
    content = {
        **conditions(),
        "note": "seconds: wall, report included; of a run that went on from a folder, of its last "
        "part. times: of the comparison without the report",
        "settings": comparison.facts["config"],
        "rows": comparison.facts["sizes"],
        "seconds": seconds,
        "times": comparison.facts["times"],
        "training_seconds": [
            {"encoder": f["encoder"], "seed": f["seed"], "seconds": f["seconds"]}
            for f in comparison.fields
        ],
        "bars": bars,
        "means": means(comparison),
        "protocol": protocol(comparison),
        "hypotheses": [
            {"name": h.claim.key, **h.as_dict()} for h in hypotheses
        ],
    }  # fmt: skip
    out = Path(__file__).parent / "results" / f"representations_{args.dataset}.json"
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
