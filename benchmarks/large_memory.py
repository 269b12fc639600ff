"""What large memories cost: fit, a batch, memory, and how many of the true neighbors are found.

    python benchmarks/large_memory.py --data-root DATA
    python benchmarks/large_memory.py --parts 1000000

Instant fits without a base, CPU seconds of one thread. Parts named by a number are that many rows
of 64 normal numbers around ten class means: where all rows are nearly equally far, an approximate
search finds fewest of the nearest. "embeddings" are 100,000 rows of cifar10-features, images and
their mirror images, with the exact search in the same record.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nearwise_lab.experiments.measure import PeakMemory
from search_speed import circumstances

from nearwise import AttnKNNClassifier
from nearwise.functional import topk_neighbors
from nearwise.metrics import nll

SEED, BATCH, JUDGED = 101, 2_000, 1_000
OUT = Path(__file__).parent / "results" / "large_memory.json"


def normal(n: int, width: int = 64, n_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Rows around the means of their classes."""
    rng = np.random.default_rng(SEED)
    means = 0.35 * rng.normal(size=(n_classes, width))
    y = rng.integers(0, n_classes, n)
    return rng.standard_normal((n, width), dtype=np.float32) + means[y].astype(np.float32), y


def cpu_seconds(call: Any) -> tuple[float, Any]:
    """CPU seconds of this process, and the result."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def recall(found: torch.Tensor, true: torch.Tensor) -> float:
    """Share of the true neighbors (n, k) among those found (n, k)."""
    return round(float((true[:, :, None] == found[:, None]).any(2).float().mean()), 4)


def costs(
    X: np.ndarray, y: np.ndarray, new: np.ndarray, y_new: np.ndarray, index: str
) -> dict[str, Any]:
    """Fit and predict with an index; compare with an exact search of some rows."""
    model = AttnKNNClassifier(
        preset="instant", estimator=None, random_state=SEED, settings={"index": index}
    )
    with PeakMemory() as peak:
        taken, _ = cpu_seconds(lambda: model.fit(X, y))
    model.predict_proba(new[:100])
    times = [cpu_seconds(lambda: model.predict_proba(new[:BATCH]))[0] for _ in range(3)]
    proba = model.predict_proba(new)
    views = model._predictor.views
    bank, spec = views.bank, views.specs[0]
    keys, some = bank.keys["features"], torch.arange(len(y))[:: max(1, len(y) // JUDGED)][:JUDGED]
    k = spec.n_neighbors
    lists = views.own_neighbors(spec)[some]
    true = topk_neighbors(keys[some], keys, lists.shape[1], query_ids=some).indices
    found = views.search(spec, keys[some], k, bank.ids[some]).indices
    true_found = topk_neighbors(keys[some], keys, k, query_ids=some).indices
    return {
        "index": index,
        "rows": len(y),
        "fit_cpu_s": round(taken, 1),
        "batch_us_per_row": [round(1e6 * t / BATCH, 1) for t in sorted(times)],
        "peak_mib_above": round(peak.mib),
        "peak_over_data": round(peak.mib * 2**20 / X.nbytes, 2),
        "recall_of_lists": recall(lists, true),
        f"recall_of_{k}": recall(found, true_found),
        "nll": round(nll(y_new, proba), 4),
        "accuracy": round(float((proba.argmax(1) == y_new).mean()), 4),
    }


def of_normal(n: int) -> dict[str, Any]:
    """Rows of the worst kind, with the index that "auto" takes."""
    X, y = normal(n + 2 * BATCH)
    return costs(X[:n], y[:n], X[n:], y[n:], "auto")


def of_embeddings(data_root: Path) -> dict[str, Any]:
    """Real embeddings, with the index that "auto" takes and the exact one."""
    with np.load(next((data_root / "cifar10-features").glob("*.npz"))) as file:
        X = np.concatenate([file["train"], file["train_flip"]]).astype(np.float32)
        y = np.tile(file["train_label"], 2)
        new, y_new = file["test"].astype(np.float32), file["test_label"]
    return {index: costs(X, y, new, y_new, index) for index in ("auto", "exact")}


def main() -> None:
    """Measure, print and write; parts that are not asked for keep what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ["embeddings", "100000", "400000"]
    parser.add_argument("--parts", type=lambda text: text.split(","), default=parts)
    parser.add_argument("--data-root", type=Path, default=os.environ.get("NEARWISE_DATA"))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warm, y = normal(5_000)
    AttnKNNClassifier(preset="instant", estimator=None).fit(warm, y).predict_proba(warm[:100])
    for part in args.parts:
        # Read again: other parts may have been measured meanwhile.
        record = json.loads(args.out.read_text()) if args.out.exists() else {"results": {}}
        found = (
            of_embeddings(Path(args.data_root)) if part == "embeddings" else of_normal(int(part))
        )
        record["results"][part] = found
        record |= {"command": "benchmarks/large_memory.py", "seed": SEED, **circumstances()}
        args.out.write_text(json.dumps(record, indent=1) + "\n")
        print(part, json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()
