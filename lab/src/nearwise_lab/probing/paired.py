"""Paired differences between records that were measured on the same test rows."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from nearwise_lab.comparisons import PairedDifference, with_score_interval
from nearwise_lab.probing.measures import Record, RowMeasure, rows_of

_RESAMPLES = 2000
_PARTS = ("encoder", "probe", "pool", "context")


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
    found = []
    for parts in dict.fromkeys(tuple(record[p] for p in _PARTS) for record in records):
        named = dict(zip(_PARTS, parts, strict=True))
        if named["probe"] == baseline:
            continue
        own = [record for record in records if all(record[p] == named[p] for p in _PARTS)]
        for pool in dict.fromkeys(record["pool"] for record in base):
            pairs = _pairs(own, base, pool, measure)
            if pairs and (named["pool"] == pool or "tokens" in (named["pool"], pool)):
                difference = two_level(pairs)
                if measure == "accuracy":
                    difference = with_score_interval(difference, _row_means(pairs))
                row = _row(named, baseline, pool, pairs, difference)
                found.append({**row, "measure": measure})
    return found


def _pairs(
    own: Sequence[Record], base: Sequence[Record], pool: str, measure: RowMeasure
) -> list[tuple[NDArray[np.float64], str]]:
    """Differences of each row's hit or NLL, a run each, with the digest of the test rows."""
    same = ("encoder", "context", "draw", "seed", "data")
    return [
        (rows_of(a, measure) - rows_of(b, measure), a["data"])
        for a in own
        for b in base
        if b["pool"] == pool
        and all(a[part] == b[part] for part in same)
        and all(a["source"][part] == b["source"][part] for part in ("encoder", "rows"))
    ]


def two_level(
    pairs: Sequence[tuple[NDArray[np.float64], str]],
) -> PairedDifference:
    """Mean of the differences of several runs, with a 95 % bootstrap over runs and rows.

    Parameters
    ----------
    pairs : sequence of (ndarray of shape (n,), str)
        Differences of the rows of each run, and which rows they are: runs on the same rows have
        the same text, and are resampled together.
    """
    generator = np.random.default_rng(0)
    tables = _by_rows(pairs)
    n_runs = len(pairs)
    means = np.empty(_RESAMPLES)
    for i in range(_RESAMPLES):
        resampled = []
        for table in tables:
            rows = generator.integers(0, table.shape[1], table.shape[1])
            resampled.append(table[:, rows].mean(axis=1))
        runs = np.concatenate(resampled)
        means[i] = runs[generator.integers(0, n_runs, n_runs)].mean() if n_runs > 1 else runs[0]
    low, high = np.quantile(means, [0.025, 0.975])
    mean = float(np.mean([values.mean() for values, _ in pairs]))
    n = sum(table.shape[1] for table in tables)
    return PairedDifference(mean, float(low), float(high), n, 0.95, "bootstrap")


def _by_rows(
    pairs: Sequence[tuple[NDArray[np.float64], str]],
) -> list[NDArray[np.float64]]:
    """Differences (n_runs, n_rows) of the runs on the same rows, for each set of rows."""
    groups: dict[str, list[NDArray[np.float64]]] = {}
    for values, digest in pairs:
        groups.setdefault(digest, []).append(values)
    return [np.stack(group) for group in groups.values()]


def _row_means(pairs: Sequence[tuple[NDArray[np.float64], str]]) -> NDArray[np.float64]:
    return np.concatenate([table.mean(axis=0) for table in _by_rows(pairs)])


def _row(
    named: Mapping[str, Any],
    baseline: str,
    pool: str,
    pairs: Sequence[tuple[NDArray[np.float64], str]],
    difference: PairedDifference,
) -> dict[str, Any]:
    return {
        **named,
        "baseline": baseline,
        "baseline_pool": pool,
        "runs": len(pairs),
        "n": difference.n,
        "difference": difference.mean,
        "low": difference.low,
        "high": difference.high,
        "verdict": difference.verdict,
    }
