"""A memory of a million rows on disk: time to open, query and change it, and memory used.

Claim: a model whose memory of 1,000,000 x 128 is on disk opens in under 5 s, predicts in under 1 GB
above the interpreter and its libraries, and answers within 100 ms of an addition.

    python benchmarks/disk_store.py
    python benchmarks/disk_store.py --rows 100000 --keep runs/disk

Synthetic rows (2,000 clusters in 128 dimensions, ten classes), preset "instant" without a base. The
model is fitted with `--fitted` of the rows; the others are added in batches, each followed by
`compact`. Then a fresh process opens, queries and changes it. Writes
benchmarks/results/disk_store.json and RESULTS.md.
"""

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from keeping import HERE, RESULTS, conditions, keep, milliseconds, options_of
from results_page import write_page

from nearwise import AttnKNNClassifier
from nearwise.estimators import LiveModel, move_memory

N_FEATURES, N_CLUSTERS, SPREAD = 128, 2_000, 0.7
BATCH = 50_000
BARS = {"open_s": 5.0, "memory_mb": 1_000.0, "after_add_ms": 100.0}


def rows(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows around the same centers for every seed, and the classes of their centers."""
    centers = np.random.default_rng(0).normal(size=(N_CLUSTERS, N_FEATURES)).astype(np.float32)
    rng = np.random.default_rng(seed)
    cluster = rng.integers(0, N_CLUSTERS, n_rows)
    noise = rng.normal(size=(n_rows, N_FEATURES)).astype(np.float32)
    return centers[cluster] + SPREAD * noise, cluster % 10


def make(folder: Path, n_rows: int, n_fitted: int) -> dict[str, float]:
    """Fit, move, and add the rest."""
    seconds = {}
    X, y = rows(n_fitted, 1)
    begin = time.perf_counter()
    model = AttnKNNClassifier(estimator=None, preset="instant", random_state=101).fit(X, y)
    seconds["fit_s"] = time.perf_counter() - begin
    begin = time.perf_counter()
    move_memory(model, folder)
    seconds["move_s"] = time.perf_counter() - begin
    seconds["add_s"] = seconds["compact_s"] = 0.0
    del model, X
    with LiveModel(folder) as live:
        for number, start in enumerate(range(n_fitted, n_rows, BATCH)):
            X, y = rows(min(BATCH, n_rows - start), 2 + number)
            begin = time.perf_counter()
            live.add(X, y)
            seconds["add_s"] += time.perf_counter() - begin
            begin = time.perf_counter()
            print(f"{start + len(X)} rows: {live.compact()}", flush=True)
            seconds["compact_s"] += time.perf_counter() - begin
    return seconds


def memory_mb() -> dict[str, float]:
    """Memory of this process: in all, and without pages of files, which can be dropped; Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {name: text for name, _, text in (line.partition(":") for line in lines)}
    named = {"memory_mb": "RssAnon", "with_pages_of_files_mb": "VmRSS"}
    return {name: int(sizes[line].split()[0]) / 1024 for name, line in named.items()}


def asked(folder: Path, repeats: int) -> dict[str, Any]:
    """Open the model, ask and change it; in a process that has done nothing before."""
    X, y = rows(4 * repeats + 1_000, 10_000)
    small, small_y = rows(200, 9)
    warm = AttnKNNClassifier(estimator=None, preset="instant").fit(small, small_y)
    warm.predict_proba(X[:2])  # libraries and compiled loops are there before anything is measured
    before = memory_mb()
    found: dict[str, Any] = {}
    begin = time.perf_counter()
    live = LiveModel(folder)
    found["open_s"] = time.perf_counter() - begin
    found["n_rows"] = live.model.fitted_.n_remembered
    found["first_ms"] = milliseconds(lambda: live.model.predict_proba(X[:1]))
    singles = [
        milliseconds(partial(live.model.predict_proba, X[i : i + 1])) for i in range(repeats)
    ]
    found["single_ms"] = statistics.median(singles)
    found["single_ms_p95"] = statistics.quantiles(singles, n=20)[-1]
    found["batch_us_per_row"] = milliseconds(lambda: live.model.predict_proba(X[-1_000:]))
    added, after = [], []
    for i in range(repeats, 2 * repeats):
        added.append(milliseconds(partial(live.add, X[i : i + 1], y[i : i + 1])))
        after.append(milliseconds(partial(live.model.predict_proba, X[i : i + 1])))
    found["add_ms"] = statistics.median(added)
    found["after_add_ms"] = statistics.median(after)
    found["after_add_ms_worst"] = max(after)
    found |= {name: now - before[name] for name, now in memory_mb().items()}
    found["accuracy"] = float((live.model.predict(X[-1_000:]) == y[-1_000:]).mean())
    live.close()
    return found


def main(arguments: list[str]) -> None:
    """Make the model, measure it in a fresh process, and write the results."""
    parser = options_of(__doc__, rows=1_000_000, fitted=50_000, repeats=50)
    parser.add_argument("--keep", type=Path, help="make the model here, or measure the one there")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)  # the fresh process
    options = parser.parse_args(arguments)
    if options.ask is not None:
        print(json.dumps(asked(options.ask, options.repeats)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch) / "model"
        made = {}
        if not (folder / "manifest.json").exists():
            made = make(folder, options.rows, min(options.fitted, options.rows))
        work = Path(scratch) / "asked"
        shutil.copytree(folder, work)
        size = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
        command = [sys.executable, __file__, "--ask", str(work), "--repeats", str(options.repeats)]
        measured = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
    kept = None if options.keep is None else str(options.keep)  # says nothing to others
    without_path = ["FOLDER" if word == kept else word for word in arguments]
    results = [
        {"": "measured", **measured, "disk_mb": size / 2**20, **made},
        {"": "at most", **BARS},
    ]
    recorded = shlex.join(["python", "benchmarks/disk_store.py", *without_path])
    keep(conditions(recorded) | {"results": results}, RESULTS / "disk_store.json")
    print(json.dumps(results, indent=1))
    print(write_page(RESULTS, HERE / "RESULTS.md"))


if __name__ == "__main__":
    main(sys.argv[1:])
