"""Paired differences between records that were measured on the same test rows."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from nearwise_lab.comparisons import crossed_difference, with_score_interval
from nearwise_lab.probing.measures import Record, RowMeasure, rows_of

_RESAMPLES = 2000
_PARTS = ("encoder", "probe", "pool", "context")
_SAME = ("encoder", "context", "draw", "seed", "data")


def paired_differences(
    records: Sequence[Record], *, baseline: str, measure: RowMeasure = "accuracy"
) -> list[dict[str, Any]]:
    """Compare accuracies or NLLs of probes with a baseline, row by row.

    Records are paired where all but the probe is the same: encoder with its weights, context, draw,
    seed, rows and settings, whatever their names. Probes that read tokens are paired with those of
    every pool. The interval is that of `crossed_difference`: over test rows and, where there are
    several, over runs (draws and seeds). Accuracies that differ in few rows have at least the score
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
            runs = _paired_runs(own, [b for b in base if b["pool"] == pool], measure)
            if not len(runs):
                continue
            difference = crossed_difference(runs)
            if measure == "accuracy":
                difference = with_score_interval(difference, runs.mean(axis=0))
            found.append(
                {
                    **named,
                    "baseline": baseline,
                    "baseline_pool": pool,
                    "measure": measure,
                    "runs": len(runs),
                    "n": runs.shape[1],
                    "difference": difference.mean,
                    "low": difference.low,
                    "high": difference.high,
                    "verdict": difference.verdict,
                }
            )
    return found


def _paired_runs(
    own: Sequence[Record], base: Sequence[Record], measure: RowMeasure
) -> NDArray[np.float64]:
    """Differences (runs, n) of rows between records that differ in the probe alone."""
    return np.array(
        [
            rows_of(a, measure) - rows_of(b, measure)
            for a in own
            for b in base
            if all(a[part] == b[part] for part in _SAME)
            and all(a["source"][part] == b["source"][part] for part in ("encoder", "rows"))
        ]
    )
