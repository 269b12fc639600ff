"""Speed of the k-NN probe: 10,000 queries against 50,000 features of width 512.

    python benchmarks/probe_speed.py --help

The bar is 5 seconds on two cores, search, votes and probabilities together. Beside the wall clock
stands the processor time of the process, which a busy machine does not change: divided by the
threads it is the wall time of an idle one at best. scikit-learn's brute force is measured on the
same rows, and its probabilities are compared with ours.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from nearwise.conditions import command_line, hardware, versions
from nearwise.lab.experiments.measure import PeakMemory
from nearwise.probes import KNNProbe

BAR_SECONDS = 5.0


def features(n: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten Gaussian classes that overlap."""
    centers = np.random.default_rng(99).normal(size=(10, width)) * 0.2
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 10, n)
    return (centers[y] + generator.normal(size=(n, width))).astype(np.float32), y


def timed(predict, query: np.ndarray) -> dict[str, float]:
    """Wall and processor seconds, and peak memory, of one prediction."""
    with PeakMemory() as memory:
        wall, cpu = time.perf_counter(), time.process_time()
        predict(query)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall_seconds": wall, "cpu_seconds": cpu, "peak_mib": memory.mib}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=3, help="repeats, each on rows of its own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--index", nargs="+", default=["exact"], help="exact, faiss-flat-ip, ...")
    parser.add_argument("--no-peer", action="store_true", help="leave scikit-learn out")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "probe_speed.json"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warm = features(256, args.width, 1)
    runs: list[dict] = []
    for index in args.index:
        probe = KNNProbe(20, weights="softmax", index=index, device=args.device)
        probe.fit(*warm).predict_proba(warm[0])  # compiles
        for seed in range(args.seeds):
            probe.fit(*features(args.rows, args.width, 2 * seed))
            query = features(args.queries, args.width, 2 * seed + 1)[0]
            run = {"method": f"KNNProbe, {index}", "seed": seed}
            runs.append(run | timed(probe.predict_proba, query))
            print(runs[-1], flush=True)
    if not args.no_peer:
        X, y = features(args.rows, args.width, 0)
        query = features(args.queries, args.width, 1)[0]
        peer = KNeighborsClassifier(20, metric="cosine", algorithm="brute").fit(X, y)
        runs.append({"method": "scikit-learn brute", "seed": 0} | timed(peer.predict_proba, query))
        print(runs[-1], flush=True)
        ours = KNNProbe(20, device=args.device).fit(X, y).predict_proba(query[:500])
        apart = float(np.abs(ours - peer.predict_proba(query[:500])).max())
        print(f"largest difference of probabilities: {apart:.2g}")
    medians = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        medians[method] = {
            name: float(np.median([run[name] for run in own]))
            for name in ("wall_seconds", "cpu_seconds", "peak_mib")
        }
    report = {
        "claim": f"k-NN probe of {args.queries} against {args.rows} x {args.width} under "
        f"{BAR_SECONDS:g} s on 2 cores",
        "bar_seconds": BAR_SECONDS,
        "threads": args.threads,
        "device": args.device,
        "medians": medians,
        "runs": runs,
        "command": command_line(),
        "versions": versions(),
        "hardware": hardware(),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
