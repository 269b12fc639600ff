"""Numbers of the comparison for programs: CSV and JSON."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from nearwise.safe_files import plain
from nearwise_lab.experiments.representations import Cell, Comparison
from nearwise_lab.report.representations.findings import Hypothesis
from nearwise_lab.report.representations.tables import CALIBRATION, mean_of

_KEYS = ("part", "encoder", "probe", "pool", "context")


def comparison_csv(comparison: Comparison) -> str:
    """All means, one line a part, encoder, probe, pool, context and measure.

    Returns
    -------
    str
        Columns part, encoder, probe, pool, context, measure, mean, low, high, seeds, draws; low
        and high are empty for one seed.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_KEYS, "measure", "mean", "low", "high", "seeds", "draws"])
    for row in comparison_rows(comparison):
        writer.writerow(
            [*(row[k] for k in _KEYS), row["measure"], row["mean"], row["low"], row["high"],
             row["seeds"], row["draws"]]
        )  # fmt: skip
    return out.getvalue()


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Means over seeds and draws, in the order they were measured."""
    rows = []
    for key in dict.fromkeys(tuple(r[k] for k in _KEYS) for r in comparison.records):
        part, encoder, probe, pool, context = key
        place = Cell(encoder, probe, context)
        draws = len({r["draw"] for r in comparison.at(place, part, pool)})
        for measure in ("accuracy", *(m.key for m in CALIBRATION)):
            mean = mean_of(comparison.values(place, measure, part, pool))
            if mean is not None:
                rows.append(
                    dict(zip(_KEYS, key, strict=True))
                    | {"measure": measure, "mean": mean.mean, "low": mean.low, "high": mean.high}
                    | {"seeds": mean.n, "draws": draws}
                )
    return rows


def comparison_json(comparison: Comparison, hypotheses: Sequence[Hypothesis]) -> str:
    """Means, verdicts with their evidence, geometry, reconstruction errors and conditions."""
    content = {
        "facts": dict(comparison.facts),
        "means": comparison_rows(comparison),
        "hypotheses": [
            {
                "name": h.name,
                "claim": h.claim,
                "verdict": h.verdict,
                "words": h.words,
                "evidence": [{"what": e.what, **e.difference.as_dict()} for e in h.evidence],
            }
            for h in hypotheses
        ],
        "geometry": [dict(g) for g in comparison.geometry],
        "reconstruction": [
            {k: f[k] for k in ("encoder", "seed", "errors")} for f in comparison.fields
        ],
    }
    return json.dumps(plain(content), ensure_ascii=False, indent=1)
