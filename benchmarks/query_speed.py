"""Time of a query: search, description of the neighbors and the attention head.

Claim: together they take under 20 microseconds per query at 50,000 x 256 in batches of 1,000 on a
GPU. The queries lie on the device, as keys do that a network has just made; the probabilities are
brought to the CPU. Two memories are timed: "spread" keys, and "collapsed" ones, which lie around
the centre of their class as those of a trained network do and are the hardest to tell apart.

    python benchmarks/query_speed.py --device cuda --out benchmarks/results/query_speed_gpu.json
    python benchmarks/query_speed.py --device cpu --repeats 5 \\
        --out benchmarks/results/query_speed_cpu.json
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.classifier.model.log_linear_pool import finish
from nearwise.classifier.model.memory_views import MemoryViews, SpaceSpec
from nearwise.conditions import command_line, hardware, versions
from nearwise.memory import MemoryBank
from nearwise.nn import shared_head

N_CLASSES, WARM_UP = 10, 3
NOISE = {"spread": 1.0, "collapsed": 0.003}


def make_keys(
    kind: str, n_rows: int, dim: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Keys of unit length around the centres of their classes, and the classes."""
    centers = torch.randn(N_CLASSES, dim, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, N_CLASSES, (n_rows,), generator=generator)
    noise = NOISE[kind] * torch.randn(n_rows, dim, generator=generator)
    return F.normalize(centers[labels] + noise, dim=1), labels


def make_memory(kind: str, args: argparse.Namespace, generator: torch.Generator) -> MemoryViews:
    """One space of keys, as a fitted classifier holds it."""
    keys, labels = make_keys(kind, args.rows, args.dim, generator)
    bank = MemoryBank({"features": keys}, labels, n_classes=N_CLASSES)
    device = torch.device(args.device)
    views = MemoryViews(args.dim, bank, [], "exact", None if device.type == "cpu" else device)
    return views.measure([SpaceSpec("features", "euclidean", 1.0, args.neighbors)])


def wait(device: torch.device) -> None:
    """Let the device finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def timed(kind: str, args: argparse.Namespace, seed: int) -> dict:
    """Microseconds per query of each repeat, whole and of the search alone."""
    device = torch.device(args.device)
    generator = torch.Generator().manual_seed(seed)
    views = make_memory(kind, args, generator)
    (spec,) = views.specs
    whole, alone, nearest = [], [], math.nan
    for repeat in range(WARM_UP + args.repeats):
        queries = make_keys(kind, args.batch, args.dim, generator)[0].to(device)
        base = torch.log_softmax(torch.randn(args.batch, N_CLASSES, generator=generator), 1)
        wait(device)
        start = time.perf_counter()
        found = views.search(spec, queries, args.neighbors)
        wait(device)
        searched = time.perf_counter()
        seen = [views.neighborhood(spec, found, base)]
        proba = finish(shared_head().predict(seen, base).log_proba, 1.0)
        done = time.perf_counter()
        assert proba.shape == (args.batch, N_CLASSES)
        if repeat >= WARM_UP:
            whole.append(1e6 * (done - start) / args.batch)
            alone.append(1e6 * (searched - start) / args.batch)
        nearest = float(found.distances[:, 0].mean())
    return {
        "keys": kind,
        "seed": seed,
        "microseconds_a_query": [round(value, 3) for value in whole],
        "median": round(statistics.median(whole), 3),
        "search_alone_median": round(statistics.median(alone), 3),
        "mean_nearest_distance_in_units": round(nearest, 4),
    }


def main() -> None:
    """Run and print; write JSON with --out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help='"cpu", "cuda" or "mps"')
    parser.add_argument("--rows", type=int, default=50_000, help="rows in the memory")
    parser.add_argument("--dim", type=int, default=256, help="width of a key")
    parser.add_argument("--batch", type=int, default=1_000, help="queries asked together")
    parser.add_argument("--neighbors", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here. Use --device cpu.")
    runs = [timed(kind, args, seed) for kind in NOISE for seed in args.seeds]
    for run in runs:
        print(
            f"{run['keys']:>9} keys, seed {run['seed']}: {run['median']} microseconds per query, "
            f"search alone {run['search_alone_median']}"
        )
    result = {
        "claim": "under 20 microseconds a query at 50,000 x 256 in batches of 1,000 on a GPU",
        "settings": {name: getattr(args, name) for name in vars(args) if name != "out"},
        "runs": runs,
        "command": command_line(),
        "hardware": hardware(),
        "versions": versions(),
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
