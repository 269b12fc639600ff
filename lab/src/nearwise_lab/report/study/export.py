"""All numbers of the suite's report in one tidy table and in JSON."""

import csv
import io
from typing import Any

from nearwise_lab.comparisons import PairedDifference
from nearwise_lab.experiments.places import Place
from nearwise_lab.report.study.claims import CLAIMS
from nearwise_lab.report.study.parts import Study
from nearwise_lab.report.study.published import REPORTED, SOURCE
from nearwise_lab.report.study.tables import NULL_MASS, SWEEP_COMPARED, other_weightings
from nearwise_lab.report.study.verdicts import Finding
from nearwise_lab.report.summary import Results
from nearwise_lab.results.measures import COMPARED, LEVEL, MEASURES

COLUMNS = (
    "kind", "dataset", "experiment", "preset", "condition", "noise", "noise_kind", "method",
    "reference", "measure", "mean", "low", "high", "n", "verdict",
)  # fmt: skip
Findings = dict[str, dict[str, dict[str, Finding]]]


def study_rows(study: Study, findings: Findings) -> list[dict[str, Any]]:
    """List every mean, difference, verdict and reported number, each as a row.

    Returns
    -------
    rows : list of dict
        With the keys `COLUMNS`; kind is "mean", "difference", "claim" or "reported".
    """
    rows: list[dict[str, Any]] = []
    for dataset, place in study.all_places():
        rows += _means(study.part(dataset, place), dataset, place)
        rows += _differences(study, dataset, place)
    for dataset, presets in findings.items():
        for preset, found in presets.items():
            rows += [
                _row(
                    "claim", dataset, Place("", preset), claim.key,
                    mean=f.estimate, low=f.low, high=f.high, n=f.n, verdict=f.verdict,
                )
                for claim, f in ((c, found[c.key]) for c in CLAIMS)
            ]  # fmt: skip
    for reported in REPORTED:
        for preset in reported.presets:
            for key in ("accuracy", "nll", "ece"):
                place = Place("main", preset)
                value = getattr(reported, key)
                rows.append(
                    _row("reported", "cifar10", place, reported.method, measure=key, mean=value)
                )
    return rows


def study_csv(rows: list[dict[str, Any]]) -> str:
    """Write the rows of `study_rows`, one per line; an unknown end of an interval is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def study_json(study: Study, findings: Findings, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the content of the report as JSON: rows, verdicts with their notes, failures."""
    texts = {claim.key: claim.text for claim in CLAIMS}
    return {
        "level": LEVEL,
        "datasets": study.datasets,
        "presets": study.presets,
        "seeds": study.seeds,
        "reported_source": SOURCE,
        "claims": [
            {"dataset": d, "preset": p, "claim": key, "text": texts[key], **found.as_dict()}
            for d, presets in findings.items()
            for p, all_found in presets.items()
            for key, found in all_found.items()
        ],
        "rows": rows,
        "failed": [
            {
                "dataset": r.dataset, "experiment": r.experiment, "preset": r.preset,
                "condition": r.condition, "method": r.method, "seed": r.seed, "reason": r.reason,
            }
            for r in study.records
            if r.status == "failed"
        ],
    }  # fmt: skip


def _means(results: Results, dataset: str, place: Place) -> list[dict[str, Any]]:
    rows = []
    for method in results.every_method:
        for measure in (*MEASURES, NULL_MASS):
            mean = results.mean(dataset, method, measure.key)
            if mean is not None:
                rows.append(
                    _row(
                        "mean", dataset, place, method, measure=measure.key,
                        mean=mean.mean, low=mean.low, high=mean.high, n=mean.n,
                    )
                )  # fmt: skip
    return rows


def _differences(study: Study, dataset: str, place: Place) -> list[dict[str, Any]]:
    """Differences that the tables show, as they show them."""
    results = study.part(dataset, place)
    find, measures = results.paired, SWEEP_COMPARED
    pairs = [("attention", "uniform")]
    if place.experiment == "main":
        measures = COMPARED
        pairs = [(m, "uniform") for m in results.methods if m != "uniform"]
        pairs += [(m, half) for m in results.methods for half in results.halves(m)]
    elif place.experiment == "weights":
        find, measures = results.paired_over_rows, COMPARED
        pairs = [("attention", other) for other in other_weightings(results)]
    rows = []
    for method, reference in pairs:
        for measure in measures:
            found = find(dataset, method, reference, measure.key)
            if found is not None:
                rows.append(
                    _row(
                        "difference", dataset, place, method, reference=reference,
                        measure=measure.key, **_interval(found),
                    )
                )  # fmt: skip
    return rows


def _interval(found: PairedDifference) -> dict[str, Any]:
    known = found.as_dict()
    return {name: known[name] for name in ("mean", "low", "high", "n", "verdict")}


def _row(kind: str, dataset: str, place: Place, method: str, **values: Any) -> dict[str, Any]:
    where = {
        "kind": kind, "dataset": dataset, "experiment": place.experiment, "preset": place.preset,
        "condition": place.condition, "noise": place.noise, "noise_kind": place.noise_kind,
        "method": method,
    }  # fmt: skip
    return {name: (where | values).get(name) for name in COLUMNS}
