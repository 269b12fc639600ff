"""Speed of the k-NN probe, beside scikit-learn and DINO's protocol: accuracy, memory, time.

    python benchmarks/probe_speed.py
    python benchmarks/probe_speed.py --dataset cifar10-features --threads 1

Without a data set, 10,000 queries against 50,000 random features of width 512; the bar is 5 seconds
on two cores. With one, its official test rows against its training rows. Fit, search, votes and
probabilities are measured together, each time in a process of its own, after a small warm-up.
Beside the wall clock stands the processor time, which a busy machine does not change: divided by
the threads it is the wall time of an idle one at best. (With several threads on a busy machine
torch's own wait for each other in each of the 100 parts of DINO's protocol; compare on one.)

All methods compute the votes of DINO's protocol: k = 20, weights exp(similarity / 0.07). The
protocol is written from its description, in tests/reference/dino_knn.py. Probabilities are compared
row by row with those of the first method.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from keeping import conditions
from nearwise_lab.data import load_dataset
from nearwise_lab.experiments.measure import PeakMemory
from sklearn.neighbors import KNeighborsClassifier

from nearwise.probes import KNNProbe

ROOT = Path(__file__).parents[1]
BAR_SECONDS = 5.0
ROWS, QUERIES, WIDTH = 50_000, 10_000, 512
MEASURES = ("accuracy", "wall_seconds", "cpu_seconds", "peak_mib")
Rows = tuple[np.ndarray, np.ndarray]


def random_features(n: int, seed: int) -> Rows:
    """Ten Gaussian classes that overlap."""
    centers = np.random.default_rng(99).normal(size=(10, WIDTH)) * 0.2
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 10, n)
    return (centers[y] + generator.normal(size=(n, WIDTH))).astype(np.float32), y


def parts(args: argparse.Namespace, repeat: int) -> tuple[Rows, Rows]:
    """Training and test rows of a repeat: of the data set the same ones, else rows of its own."""
    if args.dataset is None:
        return random_features(ROWS, 2 * repeat), random_features(QUERIES, 2 * repeat + 1)
    dataset = load_dataset(args.dataset)
    tested = np.isin(np.arange(len(dataset)), np.asarray(dataset.test_index))
    X, y = np.asarray(dataset.X, np.float32), np.unique(dataset.y, return_inverse=True)[1]
    return (X[~tested], y[~tested]), (X[tested], y[tested])


def knn_probe(X: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
    return KNNProbe(20, weights="softmax", temperature=0.07).fit(X, y).predict_proba(query)


def scikit_learn(X: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
    peer = KNeighborsClassifier(
        20, metric="cosine", algorithm="brute", weights=lambda far: np.exp((1 - far) / 0.07)
    )
    return peer.fit(X, y).predict_proba(query)


def dino(X: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
    from tests.reference.dino_knn import dino_votes

    votes = dino_votes(X, y, query, n_classes=int(y.max()) + 1)
    return votes / votes.sum(axis=1, keepdims=True)


PEERS = {"DINO's protocol": dino, "scikit-learn brute": scikit_learn}
METHODS = {"KNNProbe, exact": knn_probe} | PEERS


def measured(
    args: argparse.Namespace, name: str, repeat: int
) -> tuple[dict[str, float], np.ndarray]:
    """Accuracy, seconds and peak memory of a fit with its predictions; the probabilities."""
    torch.set_num_threads(args.threads)
    sys.path.insert(0, str(ROOT))  # for the protocol in tests/reference
    method = METHODS[name]
    (X, y), (query, truth) = parts(args, repeat)
    method(X[:512], y[:512], query[:256])  # compiles
    with PeakMemory() as memory:
        wall, cpu = time.perf_counter(), time.process_time()
        proba = method(X, y, query)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    right = float((proba.argmax(axis=1) == truth).mean())
    return dict(zip(MEASURES, (right, wall, cpu, memory.mib), strict=True)), proba


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every method in every repeat, in turn, each in a process: freed memory would hide a peak."""
    runs: list[dict[str, Any]] = []
    for repeat in range(args.repeats):
        ours = None
        for name in ("KNNProbe, exact", *args.peers):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                found, proba = process.submit(measured, args, name, repeat).result()
            ours = proba if ours is None else ours
            compared = {
                "rows predicted otherwise than by the first": int(
                    (proba.argmax(axis=1) != ours.argmax(axis=1)).sum()
                ),
                "largest difference of probabilities": float(np.abs(proba - ours).max()),
            }
            runs.append({"method": name, "repeat": repeat} | found | compared)
            print(runs[-1], flush=True)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", help="ready features, as cifar10-features; default random")
    parser.add_argument("--repeats", type=int, default=3, help="on random rows of their own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    args = parser.parse_args()
    name = "probe_speed" + (f"_{args.dataset}" if args.dataset else "")
    runs = run(args)
    medians = {
        method: {
            key: float(np.median([one[key] for one in runs if one["method"] == method]))
            for key in MEASURES
        }
        for method in dict.fromkeys(one["method"] for one in runs)
    }
    rows = args.dataset or f"{QUERIES} against {ROWS} x {WIDTH}"
    report = {
        "claim": f"k-NN probe of {rows}, fit and predictions"
        + ("" if args.dataset else f", under {BAR_SECONDS:g} s on 2 cores"),
        "bar_seconds": None if args.dataset else BAR_SECONDS,
        "threads": args.threads,
        "device": "cpu",
        "medians": medians,
        "runs": runs,
        **conditions(),
    }
    out = Path(__file__).parent / "results" / f"{name}.json"
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
