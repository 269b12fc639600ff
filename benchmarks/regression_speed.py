"""Time of a regressor beside a forest of 200 trees: a fit, one row, many rows, one row added.

Claim: on kin8nm a row takes under 5 ms, a row of a batch 150 us, and a fit 10 times a forest's.

    python benchmarks/regression_speed.py --tables DATA/regression

One thread. Fits in CPU seconds; milliseconds are medians of 200 calls after 20.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from keeping import RESULTS, conditions, keep, milliseconds, options_of
from regression import read_table, split
from sklearn.ensemble import RandomForestRegressor
from threadpoolctl import threadpool_limits

from nearwise import AttnKNNRegressor

_CALLS, _FIRST = 200, 20
_BATCH = 800


def median_ms(call: Any, rows: list[Any]) -> float:
    """Median time of a call on one row."""
    found = [milliseconds(partial(call, row)) for row in rows]
    return round(float(np.median(found[_FIRST:])), 3)


def measured(folder: Path, table: str, preset: Any) -> dict[str, Any]:
    """Times of one preset."""
    X, y = read_table(folder, table)
    train, test = split(folder, table, 0, len(y))
    old, new = (X.iloc[at].reset_index(drop=True) for at in (train, test))
    rows = [new.iloc[[at % len(new)]] for at in range(_FIRST + _CALLS)]
    with threadpool_limits(1):
        start = time.process_time()
        RandomForestRegressor(200, random_state=0).fit(old.to_numpy(), y[train])
        forest = time.process_time() - start
        start = time.process_time()
        model = AttnKNNRegressor(preset=preset, n_jobs=1, random_state=0).fit(old, y[train])
        fit = time.process_time() - start
        model.predict_interval(new[:_BATCH])  # calibrates
        batch = np.median([milliseconds(lambda: model.predict(new[:_BATCH])) for _ in range(9)])
        found = {
            "predict_ms": median_ms(model.predict, rows),
            "interval_ms": median_ms(model.predict_interval, rows),
            "explain_ms": median_ms(model.explain, rows),
            "batch_us_per_row": round(float(batch) * 1000 / len(new[:_BATCH]), 1),
            "add_ms": median_ms(lambda row: model.add(row, [0.0]), rows),
        }
    return {
        "table": table, "preset": preset, "n": len(train), "fit_cpu_s": round(fit, 2),
        "forest_cpu_s": round(forest, 2), "fit_over_forest": round(fit / forest, 2), **found,
    }  # fmt: skip


def main() -> None:
    """Measure all presets."""
    parser = options_of(__doc__, tables=Path("data/regression"), table="kin8nm")
    options = parser.parse_args()
    presets = ("default", "instant")
    found = [measured(options.tables, options.table, preset) for preset in presets]
    print(*found, sep="\n")
    keep({**conditions(), "results": found}, RESULTS / "regression_speed.json")


if __name__ == "__main__":
    main()
