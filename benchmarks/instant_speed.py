"""What preset="instant" costs: fit, one row, a batch, its folder, and memory.

Claims (two quiet cores): a fit takes at most twice as long as a random forest of 200 trees, plus .3
seconds; one row 5 ms and 60 microseconds per row in a batch of 2,000; for 50,000 ready embeddings
with estimator=None a fit takes 10 seconds, one row 4 ms, 60 microseconds per row in a batch; a fit
of 200,000 rows of 20 numbers peaks under 2 GB.

    python benchmarks/instant_speed.py --data-root DATA
    python benchmarks/instant_speed.py --parts digits,mixed

Wall time of this process with torch's threads; the least and the median of the repeats.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from keeping import RESULTS, conditions, keep, listed, options_of, read
from nearwise_lab.data import load_dataset
from nearwise_lab.experiments.measure import PeakMemory
from search_speed import circumstances
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier

from nearwise import AttnKNNClassifier
from nearwise.metrics import nll

SEED, BATCH = 0, 2_000
OUT = RESULTS / "instant_speed.json"


def seconds(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Least and median wall seconds of a call."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return {"least": round(min(taken), 5), "median": round(float(np.median(taken)), 5)}


def costs(X: Any, y: np.ndarray, new: Any, base: Any, repeats: int) -> dict[str, Any]:
    """Fit, predictions and folder of one table; `new` is repeated to a batch."""

    def fit() -> AttnKNNClassifier:
        return AttnKNNClassifier(preset="instant", estimator=base, random_state=SEED).fit(X, y)

    model = fit()
    frame = isinstance(new, pd.DataFrame)
    at = np.arange(BATCH) % len(new)
    batch = new.iloc[at].reset_index(drop=True) if frame else new[at]
    one = batch.iloc[:1] if frame else batch[:1]
    model.predict_proba(one)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "m")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    added = seconds(lambda: (model.add(one, y[:1]), model.predict_proba(one)), 3)
    return {
        "rows": len(y),
        "base": "forest" if model.report_.choice["base"] else "none",
        "fit_s": seconds(fit, repeats),
        "one_row_s": seconds(lambda: model.predict_proba(one), 10 * repeats),
        "batch_s_per_row": {
            k: v / BATCH for k, v in seconds(lambda: model.predict_proba(batch), repeats).items()
        },
        "add_one_and_predict_s": added,
        "folder_mb": round(size / 1e6, 2),
    }


def table(X: Any, y: np.ndarray, new: Any, numbers: np.ndarray, repeats: int) -> dict[str, Any]:
    """Costs with and without the forest, beside a random forest of 200 trees in as many threads."""
    n_jobs = 1 if len(y) <= 1_000 else -1

    def forest() -> RandomForestClassifier:
        return RandomForestClassifier(200, n_jobs=n_jobs, random_state=SEED).fit(numbers, y)

    found: dict[str, Any] = {
        "instant": costs(X, y, new, "auto", repeats),
        "instant without base": costs(X, y, new, None, repeats),
        "random forest, fit_s": seconds(forest, repeats),
    }
    allowed = 2 * found["random forest, fit_s"]["least"] + 0.3
    found["fit over the bar"] = round(found["instant"]["fit_s"]["least"] / allowed, 3)
    return found


def digits(repeats: int, data_root: str | None) -> dict[str, Any]:
    """All of scikit-learn's digits but 300."""
    X, y = load_digits(return_X_y=True)
    return table(X[:1497], y[:1497], X[1497:], X[:1497], repeats)


def mixed(repeats: int, data_root: str | None) -> dict[str, Any]:
    """4,000 rows of 16 numbers and 4 categories in a DataFrame."""
    X, y = make_classification(5_000, 20, n_informative=8, n_classes=3, random_state=SEED)
    frame = pd.DataFrame(X).rename(columns=lambda i: f"x{i}")
    for name in list(frame)[:4]:
        frame[name] = pd.qcut(frame[name], 6, labels=list("abcdef")).astype(str)
    return table(frame[:4000], y[:4000], frame[4000:], X[:4000], repeats)


def embeddings(repeats: int, data_root: str | None) -> dict[str, Any]:
    """CIFAR-10 through a frozen network: 50,000 rows of 192 numbers, estimator=None."""
    found = load_dataset("cifar10-features", data_root=data_root)
    train, test = np.arange(50_000), np.arange(50_000, 60_000)
    X, y = found.X, found.y
    measured = costs(X[train], y[train], X[test], None, max(1, repeats // 3))
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=SEED).fit(
        X[train], y[train]
    )
    proba = model.predict_proba(X[test])
    codes = np.searchsorted(model.classes_, y[test])
    measured["nll"], measured["accuracy"] = (
        nll(codes, proba),
        float((proba.argmax(1) == codes).mean()),
    )
    return measured


def memory(repeats: int, data_root: str | None) -> dict[str, Any]:
    """Peak memory of one fit of 200,000 rows of 20 numbers, above what was there before."""
    X, y = make_classification(200_000, 20, n_informative=8, n_classes=3, random_state=SEED)
    X = X.astype(np.float32)
    found = {}
    for base in (None, "auto"):
        start = time.perf_counter()
        with PeakMemory() as peak:
            AttnKNNClassifier(preset="instant", estimator=base, random_state=SEED).fit(X, y)
        taken = round(time.perf_counter() - start, 1)
        found["none" if base is None else "forest"] = {"peak_mib": round(peak.mib), "fit_s": taken}
    return found


PARTS = {"digits": digits, "mixed": mixed, "embeddings": embeddings, "memory": memory}


def main() -> None:
    """Measure, print and write; parts that are not asked for keep what was measured."""
    root = os.environ.get("NEARWISE_DATA")
    args = options_of(
        __doc__, parts=",".join(PARTS), repeats=5, data_root=root, out=OUT
    ).parse_args()
    record = read(args.out) or {"results": {}}
    for part in listed(args.parts):
        record["results"][part] = PARTS[part](args.repeats, args.data_root)
        print(part, json.dumps(record["results"][part], indent=1), flush=True)
    keep(record | conditions() | circumstances() | {"seed": SEED}, args.out)


if __name__ == "__main__":
    main()
