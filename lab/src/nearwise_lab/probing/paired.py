"""Paired differences between records that were measured on the same test rows."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from nearwise_lab.comparisons import PairedDifference, with_score_interval
from nearwise_lab.probing.measures import Record, RowMeasure, rows_of

_RESAMPLES = 2000
_PARTS = ("encoder", "probe", "pool", "context")
_SAME = ("encoder", "context", "draw", "seed", "data")
# differences (n_runs, n_rows) of the runs on the same test rows, by the digest of these
Tables = dict[str, NDArray[np.float64]]


def paired_differences(
    records: Sequence[Record], *, baseline: str, measure: RowMeasure = "accuracy"
) -> list[dict[str, Any]]:
    """Compare accuracies, or NLLs, of probes with those of a baseline, row by row.

    Records are paired where all but the probe is the same: encoder with its weights, context, draw,
    seed, rows and settings, whatever their names. Probes that read tokens are paired with those of
    every pool. The interval is a percentile bootstrap over test rows and, where there are several,
    over runs (draws and seeds); with few runs their spread is known badly, and the interval is
    rather too narrow than too wide. Accuracies that differ in few rows have at least the score
    interval, `with_score_interval`.

    Parameters
    ----------
    records : sequence of dict
        As `evaluate` returns them, of one data set.
    baseline : str
        The probe that the others are compared with.
    measure : {"accuracy", "nll"}, default="accuracy"

    Returns
    -------
    differences : list of dict
        encoder, probe, pool, context, baseline, measure, runs, n (rows), difference (the record
        minus the baseline), low, high, verdict ("higher", "lower" or "none"; a lower NLL is the
        better one).

    Raises
    ------
    ValueError
        If no record is of the baseline, or `measure` is unknown.
    """
    if measure not in get_args(RowMeasure):
        raise ValueError(f"measure={measure!r} is not one of {', '.join(get_args(RowMeasure))}.")
    base = [record for record in records if record["probe"] == baseline]
    if not base:
        seen = ", ".join(dict.fromkeys(record["probe"] for record in records))
        raise ValueError(f"No record is of the probe {baseline!r}. There are {seen}.")
    places: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        if record["probe"] != baseline:
            places.setdefault(tuple(record[part] for part in _PARTS), []).append(record)
    found = []
    for parts, own in places.items():
        named = dict(zip(_PARTS, parts, strict=True))
        for pool in dict.fromkeys(record["pool"] for record in base):
            if named["pool"] != pool and "tokens" not in (named["pool"], pool):
                continue
            tables = _tables(own, [b for b in base if b["pool"] == pool], measure)
            if not tables:
                continue
            difference = _two_level(tables)
            if measure == "accuracy":
                means = np.concatenate([table.mean(axis=0) for table in tables.values()])
                difference = with_score_interval(difference, means)
            found.append(
                {
                    **named,
                    "baseline": baseline,
                    "baseline_pool": pool,
                    "measure": measure,
                    "runs": sum(map(len, tables.values())),
                    "n": difference.n,
                    "difference": difference.mean,
                    "low": difference.low,
                    "high": difference.high,
                    "verdict": difference.verdict,
                }
            )
    return found


def _tables(own: Sequence[Record], base: Sequence[Record], measure: RowMeasure) -> Tables:
    """Differences of each row's hit or NLL between records that differ in the probe alone."""
    tables: dict[str, list[NDArray[np.float64]]] = {}
    for a in own:
        for b in base:
            same = all(a[part] == b[part] for part in _SAME)
            if same and all(a["source"][part] == b["source"][part] for part in ("encoder", "rows")):
                tables.setdefault(a["data"], []).append(rows_of(a, measure) - rows_of(b, measure))
    return {data: np.stack(runs) for data, runs in tables.items()}


def _two_level(tables: Tables) -> PairedDifference:
    """Mean difference with a 95 % bootstrap over runs and rows, the same of runs on the same."""
    generator = np.random.default_rng(0)
    n_runs = sum(map(len, tables.values()))
    means = np.empty(_RESAMPLES)
    for i in range(_RESAMPLES):
        resampled = []
        for table in tables.values():
            rows = generator.integers(0, table.shape[1], table.shape[1])
            resampled.append(table[:, rows].mean(axis=1))
        runs = np.concatenate(resampled)
        means[i] = runs[generator.integers(0, n_runs, n_runs)].mean() if n_runs > 1 else runs[0]
    low, high = np.quantile(means, [0.025, 0.975])
    mean = float(np.concatenate([table.mean(axis=1) for table in tables.values()]).mean())
    n = sum(table.shape[1] for table in tables.values())
    return PairedDifference(mean, float(low), float(high), n, 0.95, "bootstrap")
