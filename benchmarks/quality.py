"""Quality: the attention classifier against its bars and against every peer, on real data.

Claims: the bars below, each a mean over seeds on the test part; on letter and ionosphere a lower
NLL than every peer, paired by seed; and the first mean NLL rank over all data sets.

    python benchmarks/quality.py --data-root DATA
    python benchmarks/quality.py --datasets digits,wine --seeds 0,1 --methods attention,lightgbm
    python benchmarks/quality.py --datasets wine --methods attention,peers,higher-peers
    python benchmarks/quality.py --judge-only          # no fits: judge the rows there are

Rows are kept in runs/quality as they finish (`nearwise compare`); run again, it goes on. Writes
benchmarks/results/quality.json, benchmarks/RESULTS.md and docs/results/summary.md. With
`--keep` rows of quality.json that are not there stay as they are, so that one method can be
measured again beside peers whose code has not changed.
"""

import argparse
import json
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keeping import HERE, RESULTS, keep, listed, options_of, read
from nearwise_lab.experiments import HIGHER_PEERS, PEERS, Record, compare, read_records
from nearwise_lab.experiments.methods import FOUNDATION_MODELS, get_methods
from nearwise_lab.experiments.peers.foundation import find_checkpoints
from nearwise_lab.records import COSTS, METRICS
from nearwise_lab.report.summary import Results
from nearwise_lab.results.measures import Mean, mean_with_interval
from results_page import write_page, write_summary

OURS = "attention"
VIEWS = "attention-views"


@dataclass(frozen=True)
class Margin:
    """How far a mean is to lie from a peer's on the same seeds.

    `key` of the classifier minus that of `peer` is to be at least `above`; or their ratio at most
    `ratio`.
    """

    peer: str
    key: str
    above: float | None = None
    ratio: float | None = None

    @property
    def name(self) -> str:
        """What is compared, in words."""
        if self.ratio is None:
            return f"{self.key} minus that of {self.peer} at least"
        return f"{self.key} over that of {self.peer} at most"


@dataclass(frozen=True)
class Bar:
    """What the attention classifier is to reach on a data set, as means over seeds.

    `accuracy` is at least, the others are at most; None where nothing is asked.
    `beats_peers` asks for a lower NLL than every peer, its paired interval below 0.
    `method` and `dataset` are asked where they are not "attention" and the bar's own name.
    """

    accuracy: float | None = None
    nll: float | None = None
    ece: float | None = None
    fit_seconds: float | None = None
    beats_peers: bool = False
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    margins: tuple[Margin, ...] = ()
    method: str = OURS
    dataset: str | None = None


BARS = {
    "digits": Bar(0.988, 0.040, 0.010),
    "wine-red": Bar(0.825, 0.402, 0.045),
    "wine-red-dd": Bar(0.780, 0.480, 0.055),
    "breast_cancer": Bar(0.978, 0.060, 0.024),
    "wine": Bar(0.990, 0.024, 0.012),
    "magic04": Bar(0.897, 0.265),
    "letter": Bar(beats_peers=True),
    "ionosphere": Bar(beats_peers=True),
    "adult": Bar(0.880, 0.269, 0.009, seeds=(0, 1, 2)),
    "cifar10-features": Bar(
        0.892,
        0.305,
        0.008,
        fit_seconds=300.0,
        margins=(
            Margin("knn-uniform", "accuracy", above=0.08),
            Margin("knn-tuned", "accuracy", above=0.03),
            Margin("mlp", "accuracy", above=0.013),
            Margin("mlp", "nll", ratio=0.86),
        ),
    ),
    "cifar10-features-views": Bar(
        0.905,
        0.280,
        0.008,
        seeds=(0, 1, 2),
        margins=(Margin("mlp", "aurc", ratio=0.7),),
        method=VIEWS,
        dataset="cifar10-features",
    ),
}


def judge(results: Results, dataset: str, bar: Bar, peers: list[str]) -> dict[str, Any]:
    """What was reached on a data set, beside its bar and beside every peer on the same seeds."""
    own = bar.method
    ours = results.values(dataset, own, "nll")
    results = Results([r for r in results.records if not ours or r.seed in ours], results.folder)
    checks = {
        key: check(results.mean(dataset, own, key), wanted, higher=key == "accuracy")
        for key in ("accuracy", "nll", "ece", "fit_seconds")
        if (wanted := getattr(bar, key)) is not None
    }
    checks |= {margin.name: check_margin(results, dataset, own, margin) for margin in bar.margins}
    paired = {}
    for peer in peers:
        difference = results.paired(dataset, own, peer, "nll")
        if difference is not None:
            paired[peer] = difference.as_dict()
    means = {
        method: {key: _as_dict(results.mean(dataset, method, key)) for key in (*METRICS, *COSTS)}
        for method in [own, *results.halves(own), *peers]
        if results.mean(dataset, method, "nll") is not None
    }
    judged: dict[str, Any] = {
        "method": own,
        "checks": checks,
        "nll_minus_peer": paired,
        "means": means,
        "seeds": sorted(ours),
        "n_train": results.sizes(dataset).n_train,
        "n_test": results.sizes(dataset).n_test,
    }
    if bar.beats_peers:
        missed = [p for p in peers if paired.get(p, {}).get("verdict") != "lower"]
        known = results.mean(dataset, own, "nll") is not None
        judged["beats_peers"] = {"met": not missed if known else None, "not_beaten": missed}
    return judged


def check(reached: Mean | None, wanted: float, *, higher: bool) -> dict[str, Any]:
    """One bar: reached, met or not, and by how much it is missed (0 when met)."""
    if reached is None:
        return {"wanted": wanted, "reached": None, "met": None, "missed_by": None}
    gap = wanted - reached.mean if higher else reached.mean - wanted
    return {
        "wanted": wanted,
        "reached": _as_dict(reached),
        "met": gap <= 0,
        "missed_by": max(0.0, gap),
    }


def check_margin(results: Results, dataset: str, own: str, margin: Margin) -> dict[str, Any]:
    """A margin to a peer, over the seeds both have."""
    ours = results.values(dataset, own, margin.key)
    theirs = results.values(dataset, margin.peer, margin.key)
    seeds = sorted(set(ours) & set(theirs))
    higher = margin.ratio is None
    wanted = margin.above if higher else margin.ratio
    assert wanted is not None  # a margin has one of the two
    if not seeds:
        return check(None, wanted, higher=higher)
    pairs = [(ours[seed], theirs[seed]) for seed in seeds]
    found = [a - b if higher else a / b for a, b in pairs]
    return check(mean_with_interval(found), wanted, higher=higher)


def ranks(results: Results, methods: list[str]) -> dict[str, Any]:
    """Mean NLL rank over the data sets on which every method finished, on the seeds all have."""
    there = [m for m in methods if any(r.method == m for r in results.records)]
    common = {
        d: set.intersection(*(set(results.values(d, m, "nll")) for m in there)) if there else set()
        for d in results.datasets
    }
    chosen = [r for r in results.records if r.method in there and r.seed in common[r.dataset]]
    mean_rank = Results(chosen).mean_ranks("nll") if chosen else {}
    return {
        "mean_nll_rank": mean_rank,
        "datasets": {d: sorted(seeds) for d, seeds in common.items() if seeds},
        "left_out": [d for d, seeds in common.items() if not seeds],
        "absent": [m for m in methods if m not in there],
        "first": next(iter(mean_rank), None),
        "met": next(iter(mean_rank), None) == OURS,
    }


def _as_dict(mean: Mean | None) -> dict[str, Any] | None:
    return None if mean is None else {**asdict(mean), "low": mean.low, "high": mean.high}


def summarize(
    folder: Path,
    datasets: list[str],
    peers: list[str],
    command: str,
    former: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything RESULTS.md shows, from the records, and from what `former` results have beside."""
    records = read_records(folder)
    makers = [(r.versions, r.hardware) for r in records]
    if former is not None:
        there = {(r.dataset, r.method, r.seed) for r in records}
        others = (Record(**row, part_of=_whole(row["method"])) for row in former["rows"])
        records += [r for r in others if (r.dataset, r.method, r.seed) not in there]
    sets = {BARS[d].dataset or d for d in datasets}
    records = [r for r in records if r.dataset in sets]
    if not records:
        raise SystemExit(f"{folder} holds no rows of {', '.join(datasets)} yet.")
    results = Results(records, folder)
    return {
        "command": command,
        "versions": _distinct([v for v, _ in makers] + (former or {}).get("versions", [])),
        "hardware": _distinct([h for _, h in makers] + (former or {}).get("hardware", [])),
        "datasets": {
            d: judge(results, BARS[d].dataset or d, BARS[d], peers)
            for d in datasets
            if results.mean(BARS[d].dataset or d, BARS[d].method, "nll") is not None
        },
        "ranks": ranks(results, [OURS, *peers]),
        "failed": [
            {"dataset": r.dataset, "method": r.method, "seed": r.seed, "reason": r.reason}
            for r in records
            if r.status == "failed"
        ],
        "rows": [_row(r) for r in records if r.status == "ok"],
    }


KEPT = (
    *("dataset", "method", "seed", "k", "n_train", "n_test"),
    *METRICS,
    "null_mass",
    *COSTS,
    "time",
)


def _whole(method: str) -> str | None:
    """The method that a half is part of."""
    return method.partition(":")[0] if ":" in method else None


def _row(record: Record) -> dict[str, Any]:
    return {key: _short(getattr(record, key)) for key in KEPT}


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _distinct(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(v) for v in values)]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = options_of(
        __doc__, datasets=",".join(BARS), methods=f"{OURS},peers", seeds=None, data_root=None,
        out=Path("runs/quality"), results=RESULTS, judge_only=False, keep=False, quiet=False,
    )  # fmt: skip
    parser.add_argument("--peer-weights", action="append", default=[], metavar="PATH")
    options = parser.parse_args(arguments)
    options.datasets = listed(options.datasets)
    options.weights = find_checkpoints(options.peer_weights)
    asked = [m.name for m in get_methods(listed(options.methods))]
    options.methods = [m for m in asked if m not in FOUNDATION_MODELS or m in options.weights]
    if left_out := [m for m in asked if m not in options.methods]:
        print(f"left out without --peer-weights: {', '.join(left_out)}", file=sys.stderr)
    if unknown := [d for d in options.datasets if d not in BARS]:
        parser.error(f"no bar for {', '.join(unknown)}; known: {', '.join(BARS)}")
    return options


def own_command(options: argparse.Namespace) -> str:
    """The command that makes the same rows on another machine: no folders in it."""
    words = ["python", "benchmarks/quality.py"]
    if options.datasets != list(BARS):
        words += ["--datasets", ",".join(options.datasets)]
    if options.methods != [OURS, *PEERS]:
        words += ["--methods", ",".join(options.methods)]
    words += [f"--peer-weights={name}=PATH" for name in options.weights]
    if options.seeds:
        words += ["--seeds", options.seeds]
    if options.keep:
        words.append("--keep")
    return shlex.join(words)


def main(arguments: list[str]) -> None:
    """Run what is missing, judge, write."""
    options = parse(arguments)
    command = own_command(options)
    for dataset in [] if options.judge_only else options.datasets:
        bar = BARS[dataset]
        seeds = listed(options.seeds, int) if options.seeds else bar.seeds
        compare(
            [bar.dataset or dataset],
            [bar.method if m == OURS else m for m in options.methods],
            seeds,
            options.out,
            data_root=options.data_root,
            peer_weights=options.weights,
            progress=not options.quiet,
            command=command,
        )
    peers = [m for m in options.methods if m in (*PEERS, *HIGHER_PEERS, *FOUNDATION_MODELS)]
    target = options.results / "quality.json"
    former = read(target) if options.keep else None
    summary = summarize(options.out, options.datasets, peers, command, former)
    keep(summary, target)
    page = write_page(options.results, options.results.parent / "RESULTS.md")
    if options.results == RESULTS:
        write_summary(options.results, HERE.parent / "docs" / "results.md")
    if not options.quiet:
        print(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(sys.argv[1:])
