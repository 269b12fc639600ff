"""Paired differences between records that were measured on the same test rows."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from nearwise_lab.comparisons import PairedDifference
from nearwise_lab.probing.records import Record, RowMeasure, rows_of

By = Literal["probe", "encoder", "context", "pool"]
_PARTS: tuple[By, ...] = ("encoder", "probe", "pool", "context")


def paired_differences(
    records: Sequence[Record],
    *,
    by: By = "probe",
    baseline: str,
    measure: RowMeasure = "accuracy",
    level: float = 0.95,
    n_resamples: int = 2000,
    random_state: int = 0,
) -> list[dict[str, Any]]:
    """Compare accuracies, or NLLs, with those of a baseline, row by row.

    Records are paired where all but `by` is the same: draw, seed, rows and settings always, and
    the encoder's weights and the probe's settings, whatever their names. Probes
    that read tokens are paired with those of every pool. The interval is a percentile bootstrap
    over test rows and, where there are several, over runs (draws and seeds); with few runs their
    spread is known badly, and the interval is rather too narrow than too wide.

    Parameters
    ----------
    records : sequence of dict
        As `evaluate` returns them, of one data set.
    by : {"probe", "encoder", "context", "pool"}, default="probe"
        What is compared.
    baseline : str
        Its value that the others are compared with.
    measure : {"accuracy", "nll"}, default="accuracy"
    level : float, default=0.95
    n_resamples : int, default=2000
    random_state : int, default=0

    Returns
    -------
    differences : list of dict
        encoder, probe, pool, context, baseline, measure, runs, n (rows), difference (the record
        minus the baseline), low, high, verdict ("higher", "lower" or "none"; a lower NLL is the
        better one).

    Raises
    ------
    ValueError
        If no record has the baseline, `by` or `measure` is unknown, or a record of an earlier
        version keeps no NLL of its rows.
    """
    if measure not in get_args(RowMeasure):
        raise ValueError(f"measure={measure!r} is not one of {', '.join(get_args(RowMeasure))}.")
    if by not in _PARTS:
        raise ValueError(f"by={by!r} is not one of {', '.join(_PARTS)}.")
    seen = list(dict.fromkeys(record[by] for record in records))
    if baseline not in seen:
        raise ValueError(f"No record has {by} {baseline!r}. There are {', '.join(map(str, seen))}.")
    base = [record for record in records if record[by] == baseline]
    found = []
    for parts in dict.fromkeys(tuple(record[p] for p in _PARTS) for record in records):
        named = dict(zip(_PARTS, parts, strict=True))
        if named[by] == baseline:
            continue
        own = [record for record in records if all(record[p] == named[p] for p in _PARTS)]
        for pool in dict.fromkeys(record["pool"] for record in base):
            if not _pools_match(by, named["pool"], pool):
                continue
            pairs = _pairs(own, base, by, pool, measure)
            if pairs:
                difference = two_level(pairs, level, n_resamples, random_state)
                row = _row(named, baseline, pool, pairs, difference)
                found.append({**row, "measure": measure})
    return found


def _pools_match(by: By, own: str, other: str) -> bool:
    return by == "pool" or own == other or (by == "probe" and "tokens" in (own, other))


def _pairs(
    own: Sequence[Record], base: Sequence[Record], by: By, pool: str, measure: RowMeasure
) -> list[tuple[NDArray[np.float64], str]]:
    """Differences of each row's hit or NLL, a run each, with the digest of the test rows."""
    same = [part for part in _PARTS if part not in (by, "pool")]
    pairs = []
    for a in own:
        for b in base:
            alike = all(a[part] == b[part] for part in (*same, "seed", "data"))
            alike = alike and _same_source(a, b, by)
            draws = by == "context" or a["draw"] == b["draw"]
            if alike and draws and b["pool"] == pool:
                pairs.append((rows_of(a, measure) - rows_of(b, measure), a["data"]))
    return pairs


def _same_source(a: Record, b: Record, by: By) -> bool:
    """Whether encoder, probe, rows and settings are the same, except for what is compared.

    Records of an earlier version lack these, and are compared by their names.
    """
    one, other = (record.get("source") for record in (a, b))
    if one is None or other is None:
        return True
    return all(one[part] == other[part] for part in ("encoder", "probe", "rows") if part != by)


def two_level(
    pairs: Sequence[tuple[NDArray[np.float64], str]],
    level: float = 0.95,
    n_resamples: int = 2000,
    random_state: int = 0,
) -> PairedDifference:
    """Mean of the differences of several runs, with a bootstrap over runs and rows.

    Parameters
    ----------
    pairs : sequence of (ndarray of shape (n,), str)
        Differences of the rows of each run, and which rows they are: runs on the same rows have
        the same text, and are resampled together.
    level : float, default=0.95
    n_resamples : int, default=2000
    random_state : int, default=0
    """
    generator = np.random.default_rng(random_state)
    groups: dict[str, list[NDArray[np.float64]]] = {}
    for values, digest in pairs:
        groups.setdefault(digest, []).append(values)
    tables = [np.stack(group) for group in groups.values()]
    n_runs = len(pairs)
    means = np.empty(n_resamples)
    for i in range(n_resamples):
        resampled = []
        for table in tables:
            rows = generator.integers(0, table.shape[1], table.shape[1])
            resampled.append(table[:, rows].mean(axis=1))
        runs = np.concatenate(resampled)
        means[i] = runs[generator.integers(0, n_runs, n_runs)].mean() if n_runs > 1 else runs[0]
    low, high = np.quantile(means, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
    mean = float(np.mean([values.mean() for values, _ in pairs]))
    n = sum(table.shape[1] for table in tables)
    return PairedDifference(mean, float(low), float(high), n, level, "bootstrap")


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
