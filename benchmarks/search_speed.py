"""Exact search against FAISS flat, and predictions against scikit-learn's brute force.

Claims: exact top-16 of 1,000 queries over 50,000 x 256 takes at most .9 of the time of FAISS's
IndexFlatL2, in one thread and in all, and probabilities of 10,000 queries over 50,000 x 64, weights
included, take less time than ``KNeighborsClassifier(algorithm="brute").predict_proba``. Both sides
run in turn, repeatedly, in one process on the same rows; the ratio of each pair is what counts.
Beside other work FAISS's threads wait for each other: then one thread shows more.

    python benchmarks/search_speed.py --out benchmarks/results/search_speed.json
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import faiss
import numpy as np
import torch
from keeping import RESULTS, conditions, keep, options_of
from sklearn.neighbors import KNeighborsClassifier

from nearwise.conditions import hardware, versions
from nearwise.functional import aggregate_labels, distance_weights, topk_neighbors

N_NEIGHBORS, N_CLASSES, SEED = 16, 10, 0


def seconds(work: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def paired(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> dict:
    """Time both in turn after a warm-up; a ratio below 1 means ours is faster."""
    ours(), theirs()
    pairs = []
    for i in range(repeats):
        if i % 2:
            pairs.append((seconds(ours), seconds(theirs)))
        else:
            other = seconds(theirs)
            pairs.append((seconds(ours), other))
    ratios = [mine / other for mine, other in pairs]
    return {
        "ours_seconds": [round(mine, 4) for mine, _ in pairs],
        "theirs_seconds": [round(other, 4) for _, other in pairs],
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }


def search_against_faiss(repeats: int, n_threads: int) -> dict:
    """Top-16 of 1,000 queries over 50,000 x 256, both sides in so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    faiss.omp_set_num_threads(n_threads)
    generator = torch.Generator().manual_seed(SEED)
    keys = torch.randn(50_000, 256, generator=generator)
    query = torch.randn(1_000, 256, generator=generator)
    index = faiss.IndexFlatL2(256)
    index.add(keys.numpy())
    ours = topk_neighbors(query, keys, N_NEIGHBORS).indices.numpy()
    same = float((ours == index.search(query.numpy(), N_NEIGHBORS)[1]).mean())
    result = paired(
        lambda: topk_neighbors(query, keys, N_NEIGHBORS),
        lambda: index.search(query.numpy(), N_NEIGHBORS),
        repeats,
    )
    torch.set_num_threads(before)
    threads = f"{n_threads} thread{'s' * (n_threads > 1)}"
    task = f"exact top-16 of 1,000 queries over 50,000 x 256, euclidean, {threads}"
    return {"task": task, "against": "faiss IndexFlatL2.search", "same_neighbors": same} | result


def predict_against_sklearn(repeats: int) -> dict:
    """Probabilities of 10,000 queries over 50,000 x 64."""
    generator = torch.Generator().manual_seed(SEED)
    keys = torch.randn(50_000, 64, generator=generator)
    query = torch.randn(10_000, 64, generator=generator)
    labels = torch.randint(0, N_CLASSES, (50_000,), generator=generator)
    peer = KNeighborsClassifier(N_NEIGHBORS, algorithm="brute").fit(keys.numpy(), labels.numpy())

    def ours() -> torch.Tensor:
        distances, indices = topk_neighbors(query, keys, N_NEIGHBORS)
        return aggregate_labels(distance_weights(distances), labels[indices], N_CLASSES)

    result = paired(ours, lambda: peer.predict_proba(query.numpy()), repeats)
    task = "class probabilities of 10,000 queries over 50,000 x 64, k = 16, weights included"
    against = 'sklearn KNeighborsClassifier(algorithm="brute").predict_proba'
    return {"task": task, "against": against} | result


def circumstances() -> dict:
    """Hardware with the load before the run, and versions, for a record of times."""
    load, core = round(os.getloadavg()[0], 2), os.environ.get("OPENBLAS_CORETYPE", "as detected")
    return {
        "hardware": hardware() | {"load_before": load, "openblas_core": core},
        "versions": versions() | {"numba": version("numba")},
    }


def main() -> None:
    """Measure, print and write."""
    out = RESULTS / "search_speed.json"
    arguments = options_of(__doc__, repeats=9, out=out).parse_args()
    threads = sorted({1, torch.get_num_threads()})
    results = [search_against_faiss(arguments.repeats, n) for n in threads]
    results.append(predict_against_sklearn(arguments.repeats))
    about = {"seed": SEED, "repeats": arguments.repeats, "results": results}
    keep(conditions() | circumstances() | about, arguments.out)
    for result in results:
        print(
            f"{result['task']}\n  ours / {result['against']}: {result['ratio_median']} "
            f"(median of {arguments.repeats}, {result['ratio_min']}-{result['ratio_max']}); "
            f"medians {np.median(result['ours_seconds']):.3f} s and "
            f"{np.median(result['theirs_seconds']):.3f} s",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
