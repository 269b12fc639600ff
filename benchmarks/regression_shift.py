"""Intervals of a regressor whose memory is given rows of a shifted source, and is not fitted again.

Claim: after 1,000 `add`s from there, 90 % intervals cover at least 85 % of new rows from there.

    python benchmarks/regression_shift.py --tables DATA/regression

The source that is fitted to has the rows whose most telling column (largest rank correlation with
the target) is at most its median; the shifted one has the others. 2,000 rows are fitted, 1,000
added one batch of 100 after the other, and up to 1,000 others of the shifted source predicted:
before, after the last batch, and after a `refresh`.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from keeping import RESULTS, interval, keep_runs, listed, options_of
from regression import read_table
from scipy.stats import spearmanr
from threadpoolctl import threadpool_limits

from nearwise import AttnKNNRegressor

NAMES = "kin8nm,power-plant,taxis,bikeshare,kc-house"
_FITTED, _ADDED, _BATCH, _TESTED = 2_000, 1_000, 100, 1_000


def sources(X: pd.DataFrame, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Positions of the rows of both sources, in random order, and the column between them."""
    numbers = X.select_dtypes("number")
    telling = {str(name): abs(spearmanr(numbers[name], y).statistic) for name in numbers}
    name = max(telling, key=lambda one: np.nan_to_num(telling[one]))
    order = np.random.default_rng(seed).permutation(len(y))
    below = (numbers[name] <= numbers[name].median()).to_numpy()[order]
    return order[below], order[~below], name


def measured(folder: Path, table: str, preset: Any, seed: int) -> dict[str, Any]:
    """Coverage and CRPS, in standard deviations of the targets of the fit, at three times."""
    X, y = read_table(folder, table)
    known, shifted, column = sources(X, y, seed)
    fit, add = known[:_FITTED], shifted[:_ADDED]
    test = shifted[_ADDED:][:_TESTED]
    found: dict[str, Any] = {"column": column, "n_fitted": len(fit), "n_tested": len(test)}
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        model = AttnKNNRegressor(preset=preset, n_jobs=1, random_state=seed)
        model.fit(X.iloc[fit].reset_index(drop=True), y[fit])
        scale = float(np.std(y[fit]))

        def note(when: str) -> None:
            query = model.query(X.iloc[test].reset_index(drop=True))
            low, high = query.interval(0.9).T
            found[f"coverage {when}"] = round(
                float(((low <= y[test]) & (y[test] <= high)).mean()), 4
            )
            found[f"crps {when}"] = round(float(query.mixture.crps(y[test]).mean()) / scale, 5)
            found[f"width {when}"] = round(float((high - low).mean()) / scale, 4)

        note("before")
        for rows in np.array_split(add, _ADDED // _BATCH):
            model.add(X.iloc[rows].reset_index(drop=True), y[rows])
        note("after")
        model.refresh()
        note("refreshed")
    return found


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds of each table and preset."""
    rows = []
    for table, preset in dict.fromkeys((run["table"], run["preset"]) for run in runs):
        mine = [run for run in runs if (run["table"], run["preset"]) == (table, preset)]
        names = [name for name in mine[0] if name.startswith(("coverage", "crps", "width"))]
        row: dict[str, Any] = {"table": table, "preset": preset, "seeds": len(mine)}
        rows.append(row | {name: interval([run[name] for run in mine], 4) for name in names})
    return rows


def main() -> None:
    """Measure what is not there yet."""
    parser = options_of(
        __doc__, tables=Path("data/regression"), names=NAMES, seeds="0,1,2,3,4",
        presets="default,instant",
    )  # fmt: skip
    options = parser.parse_args()
    wanted = [
        {"table": table, "preset": preset, "seed": seed}
        for seed in listed(options.seeds, int)
        for table in listed(options.names)
        for preset in listed(options.presets)
    ]
    keep_runs(
        wanted, lambda **which: measured(options.tables, **which), summary,
        RESULTS / "regression_shift.json",
    )  # fmt: skip


if __name__ == "__main__":
    main()
