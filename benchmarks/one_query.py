"""What trust costs beside a prediction, when one query answers everything.

Claim: a query with prediction sets, selective prediction and novelty takes at most 1.3 times as
long as `predict_proba` of the same rows. Explanations stand beside it: each neighbor shown is one
more pass through the pools of the heads, though no search, no base and no attention.

    python benchmarks/one_query.py

Two models (digits with preset "instant", and 700 rows with categories and gaps with the default
preset), 1 and 300 new rows, one thread; the three kinds of query take turns, and medians are
reported with the smallest and largest time. Writes benchmarks/results/one_query.json.
"""

import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from keeping import RESULTS, conditions, keep, options_of
from sklearn.datasets import load_digits

from nearwise import AttnKNNClassifier

AT_MOST = 1.3


def mixed_table(n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers, gaps and categories, with two classes that overlap."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    columns = {f"x{i}": y * 0.5 + rng.normal(size=n) for i in range(6)}
    columns["gaps"] = np.where(rng.random(n) < 0.2, np.nan, y + rng.normal(size=n))
    columns["town"] = np.where(rng.random(n) < 0.6, rng.choice(["Rome", "Oslo"], n), "Lima")
    return pd.DataFrame(columns), np.array(["no", "yes"])[y]


def trust(model: AttnKNNClassifier, rows: Any, explain: int | bool | None = False) -> None:
    """Ask everything of one query."""
    query = model.query(rows, explain=explain)
    query.proba(), query.sets(), query.selection(coverage=0.9), query.novelty_p_value()
    if explain is not False:
        query.explanations()


def timed(model: AttnKNNClassifier, rows: Any, repeats: int) -> dict[str, dict[str, float]]:
    kinds = {
        "predict_proba": lambda: model.predict_proba(rows),
        "all but explanations": lambda: trust(model, rows),
        "with 5 neighbors explained": lambda: trust(model, rows, 5),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for call in kinds.values():
        call()  # what is kept for all queries, such as the calibration rows, is made here
    for _ in range(repeats):
        for kind, call in kinds.items():
            start = time.perf_counter()
            call()
            times[kind].append(1000 * (time.perf_counter() - start))
    plain = np.array(times["predict_proba"])
    return {
        kind: {
            "ms": float(np.median(of_kind)),
            "ms_least": min(of_kind),
            "ms_most": max(of_kind),
            "times_predict_proba": float(np.median(np.array(of_kind) / plain)),
        }
        for kind, of_kind in times.items()
    }


def main() -> None:
    options = options_of(__doc__, repeats=9).parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    sources = {
        "digits, instant": (*load_digits(return_X_y=True), {"preset": "instant"}),
        "mixed table, default": (*mixed_table(1000), {}),
    }
    for name, (X, y, settings) in sources.items():
        model = AttnKNNClassifier(random_state=0, n_jobs=1, **settings).fit(X[:-300], y[:-300])
        for n_rows in (1, 300):
            rows = X[-300:][:n_rows]
            measured = timed(model, rows, options.repeats)
            found[f"{name}, {n_rows} rows"] = measured
            for kind, of_kind in measured.items():
                times = of_kind["times_predict_proba"]
                print(f"{name:22} {n_rows:4} rows {kind:27} {of_kind['ms']:8.1f} ms {times:6.2f}")
    worst = max(one["all but explanations"]["times_predict_proba"] for one in found.values())
    kept = {"repeats": options.repeats, "at_most": AT_MOST, "worst": worst, "rows": found}
    keep(conditions() | kept, RESULTS / "one_query.json")
    print(f"worst {worst:.2f} of at most {AT_MOST}")


if __name__ == "__main__":
    main()
