"""Probes that vote, with few and many remembered rows.

Does the pretrained head weigh the neighbors of frozen features as well as one that is trained on
them? A seed shuffles a data set; its first 2,000 rows (500 of digits) are queries, the next ones
are remembered. Rows named "trained" are of the `AttentionProbe` that trained a head and a map of
its own, measured on the same rows at commit 839f4ff; they are kept, and cannot be measured again.

    python benchmarks/probe_memory.py --data-root DATA
    python benchmarks/probe_memory.py --data-root DATA --datasets digits --sizes 500

What benchmarks/results/probe_memory.json holds already is kept; delete rows to measure them again.
"""

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nearwise_lab.comparisons import paired_difference
from nearwise_lab.data import load_dataset
from nearwise_lab.probing.catalog import make_probe

from nearwise.conditions import hardware, versions
from nearwise.metrics import accuracy, nll
from nearwise.safe_files import write_aside

OUT = Path(__file__).parent / "results" / "probe_memory.json"
PROBES = ("knn", "attention-features", "attention")
BEFORE = {"attention-features": "trained features", "attention": "trained"}


def split(X: Any, y: Any, n: int, seed: int) -> tuple[Any, ...]:
    """Rows to remember and rows to ask, of the classes that are remembered."""
    order = np.random.default_rng(seed).permutation(len(y))
    n_asked = 500 if len(y) < 5_000 else min(2_000, len(y) - n)
    queries, known = order[:n_asked], order[n_asked : n_asked + n]
    classes = np.unique(y[known])
    queries = queries[np.isin(y[queries], classes)]
    codes = [np.searchsorted(classes, y[rows]) for rows in (known, queries)]
    return X[known], codes[0], X[queries], codes[1]


def measure(data: str, X: Any, y: Any, n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Fit every probe, and predict."""
    known, y_known, queries, y_asked = split(X, y, n, seed)
    for name in PROBES:
        start = time.process_time()
        probe = make_probe(name, seed=seed).fit(known, y_known)
        fitted = time.process_time()
        proba = probe.predict_proba(queries)
        yield {
            "data": data,
            "n": len(known),
            "seed": seed,
            "probe": name,
            "nll": round(nll(y_asked, proba), 5),
            "accuracy": round(accuracy(y_asked, proba), 5),
            "fit_seconds": round(fitted - start, 3),
            "query_us": round(1e6 * (time.process_time() - fitted) / len(queries), 1),
            "keys": probe.choice_.get("keys"),
        }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds for each data set, size and probe."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["data"], row["n"], row["probe"]].append(row)
    names = ("nll", "accuracy", "fit_seconds", "query_us")
    return [
        dict(zip(("data", "n", "probe"), key, strict=True))
        | {name: round(float(np.mean([row[name] for row in found])), 5) for name in names}
        for key, found in sorted(groups.items())
    ]


def differences(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """NLL against the head trained before, paired by data set and seed, for each size."""
    losses = {(r["probe"], r["n"], r["data"], r["seed"]): r["nll"] for r in rows}
    sizes = {"50": (50, 50), "500": (500, 500), "1,297 to 5,000": (501, 5_000), "all": (50, 5_000)}
    made = {}
    for name, before in BEFORE.items():
        for size, (least, most) in sizes.items():
            keys = [k[1:] for k in losses if k[0] == name and least <= k[1] <= most]
            pairs = [(losses[name, *k], losses[before, *k]) for k in keys if (before, *k) in losses]
            if len(pairs) > 1:
                found = paired_difference(*map(list, zip(*pairs, strict=True)))
                made[f"{name} - {before}, {size} rows"] = found.as_dict()
    return made


def main() -> None:
    """Measure what is missing, and write all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", default="digits,letter,cifar10-features,mnist")
    parser.add_argument("--sizes", default="50,500,5000")
    parser.add_argument("--seeds", default="101,102,103")
    parser.add_argument("--data-root", default=None)
    options = parser.parse_args()
    rows = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for data in options.datasets.split(","):
        loaded = load_dataset(data, data_root=options.data_root)
        X = np.asarray(loaded.X, dtype=np.float32).reshape(len(loaded.y), -1)
        y = np.unique(loaded.y, return_inverse=True)[1]
        for n in map(int, options.sizes.split(",")):
            for seed in map(int, options.seeds.split(",")):
                size = min(n, len(y) - 500)
                done = {(r["data"], r["n"], r["seed"], r["probe"]) for r in rows}
                if all((data, size, seed, name) in done for name in PROBES):
                    continue
                rows.extend(measure(data, X, y, n, seed))
                print(*rows[-len(PROBES) :], sep="\n", flush=True)
    content: dict[str, Any] = {
        "command": "python benchmarks/probe_memory.py",
        "hardware": hardware(),
        "versions": versions(),
        "differences of NLL": differences(rows),
        "summary": summary(rows),
        "rows": rows,
    }
    write_aside(OUT, (json.dumps(content, indent=1) + "\n").encode())
    print(json.dumps(content["differences of NLL"], indent=1))


if __name__ == "__main__":
    main()
