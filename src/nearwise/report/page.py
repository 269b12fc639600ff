"""One self-contained HTML page, and the tables beside it, made from a results folder alone."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from nearwise import __version__
from nearwise.experiments import METHODS, Record, read_records
from nearwise.experiments.artifacts import (
    Predictions,
    artifact_path,
    load_json,
)
from nearwise.experiments.records import write_aside
from nearwise.report.drawing import Picture
from nearwise.report.figures import (
    MAX_DIAGRAMS,
    comparison_bars,
    reliability_diagrams,
    risk_coverage,
    training_curves,
)
from nearwise.report.gallery import Gallery, make_page_gallery
from nearwise.report.summary import MAIN_MEASURES, MORE_MEASURES, Results, summary_json
from nearwise.report.tables import (
    Table,
    all_tables,
    halves_table,
    paired_table,
    ranks_table,
    results_table,
    to_csv,
    to_latex,
    to_markdown,
)


@dataclass(frozen=True)
class Section:
    """What the page shows of one data set."""

    dataset: str
    failures: list[Record]
    results: Table | None = None
    more: Table | None = None
    bars: Picture | None = None
    paired: Table | None = None
    halves: list[Table] = field(default_factory=list)
    reliability: Picture | None = None
    risk: Picture | None = None
    curves: list[Picture] = field(default_factory=list)
    galleries: list[Gallery] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """Everything the template needs."""

    title: str
    lead: str
    reference: str
    ranks: Table | None
    sections: list[Section]
    noise: str
    methods: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    version: str = __version__


def render_report(folder: str | PathLike[str], *, title: str | None = None) -> Path:
    """Write report.html and results.md, .tex, .csv, .json into a results folder.

    Works from the records and what `compare` keeps beside them; run it again at any time, also
    while a comparison is still going.

    Parameters
    ----------
    folder : path
        Written by `compare`.
    title : str, optional
        Heading of the page.

    Returns
    -------
    Path
        The page: one file, no network, light or dark as the reader's system is.

    Raises
    ------
    RecordsError
        If there are no records, or they are damaged.
    OSError
        If the folder cannot be written to.
    """
    folder = Path(folder)
    results = Results(read_records(folder), folder)
    if not results.records:
        raise ValueError(f"{folder} holds no finished rows yet. Let `nearwise compare` finish one.")
    tables = all_tables(results)
    write_aside(folder / "results.md", "\n".join(map(to_markdown, tables)).encode())
    write_aside(folder / "results.tex", "\n".join(map(to_latex, tables)).encode())
    write_aside(folder / "results.csv", to_csv(results).encode())
    summary = json.dumps(summary_json(results), ensure_ascii=False, indent=1)
    write_aside(folder / "results.json", summary.encode())
    page = make_page(folder, results, title)
    write_aside(folder / "report.html", render_page(page).encode())
    return folder / "report.html"


def make_page(folder: Path, results: Results, title: str | None = None) -> Page:
    """Gather tables, figures and galleries."""
    reference = results.reference()
    return Page(
        title or f"Methods compared: {', '.join(results.datasets)}",
        _lead(results, reference),
        reference,
        ranks_table(results),
        [_section(folder, results, dataset, reference) for dataset in results.datasets],
        _noise(results.records[0]),
        [(m, METHODS[m].summary) for m in results.methods if m in METHODS],
        _facts(results.records),
    )  # fmt: skip


def render_page(page: Page) -> str:
    """Fill the template; every text is escaped."""
    templates = files("nearwise.report") / "templates"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string((templates / "report.html.j2").read_text(encoding="utf-8"))
    return template.render(page=page, style=(templates / "style.css").read_text(encoding="utf-8"))


def _section(folder: Path, results: Results, dataset: str, reference: str) -> Section:
    failures = results.failures(dataset)
    order = results.ranked_methods(dataset)
    if not order:
        return Section(dataset, failures)
    pooled = _pooled(results, dataset, order, reference)
    paired = paired_table(results, dataset, reference)
    halves = [halves_table(results, dataset, m) for m in order]
    return Section(
        dataset,
        failures,
        results_table(results, dataset, MAIN_MEASURES),
        results_table(results, dataset, MORE_MEASURES),
        comparison_bars(results, dataset, reference),
        paired if paired.rows and reference in order else None,
        [t for t in halves if t is not None],
        reliability_diagrams(dataset, pooled, reference) if pooled else None,
        risk_coverage(dataset, pooled, reference) if pooled else None,
        _curves(folder, results, dataset, order),
        _galleries(folder, results, dataset, order),
    )


def _pooled(
    results: Results, dataset: str, order: Sequence[str], reference: str
) -> dict[str, Predictions]:
    """Predictions of all seeds a method: the reference, plain neighbors, then the best others."""
    first = [reference, "knn-uniform", "knn-distance", "knn-tuned"]
    wanted = [m for m in first if m in order] + [m for m in order if m not in first]
    pooled: dict[str, Predictions] = {}
    for method in wanted:
        parts = [
            results.predictions(dataset, method, seed)
            for seed in results.values(dataset, method, "nll")
        ]
        kept = [p for p in parts if p is not None]
        if kept and len(pooled) < MAX_DIAGRAMS:
            pooled[method] = Predictions(
                np.concatenate([p.y for p in kept]),
                np.concatenate([p.proba for p in kept]),
                np.concatenate([p.test_index for p in kept]),
                kept[0].classes,
            )
    return pooled


def _curves(folder: Path, results: Results, dataset: str, order: Sequence[str]) -> list[Picture]:
    """Training curves of the first seed, of attention methods, or else of any that train."""
    found: dict[str, Picture] = {}
    for method in order:
        for seed in results.values(dataset, method, "nll"):
            history = load_json(artifact_path(folder, "curves", dataset, method, seed, "json"))
            picture = training_curves(dataset, method, history) if history else None
            if picture is not None:
                found[method] = picture
                break
    attention = [p for m, p in found.items() if m.startswith("attention")]
    return attention or list(found.values())


def _galleries(folder: Path, results: Results, dataset: str, order: Sequence[str]) -> list[Gallery]:
    """Take the gallery of the best method that has one."""
    for method in order:
        for seed in results.values(dataset, method, "nll"):
            stored = load_json(artifact_path(folder, "galleries", dataset, method, seed, "json"))
            if stored and stored["rows"]:
                return [make_page_gallery(dataset, method, seed, stored)]
    return []


def _lead(results: Results, reference: str) -> str:
    sets, methods, seeds = len(results.datasets), len(results.methods), len(results.seeds)
    counts = (
        f"{methods} method{'s' * (methods > 1)} on {sets} data set{'s' * (sets > 1)}, "
        f"{seeds} seed{'s' * (seeds > 1)}. "
    )
    first = sum(results.ranked_methods(d)[:1] == [reference] for d in results.datasets)
    if sets > 1:
        where = f"the lowest mean NLL on {first} of {sets}"
    else:
        where = f"{'' if first else 'not '}the lowest mean NLL"
    return f"{counts}{reference} has {where}; whether that is more than chance stands below."


def _noise(record: Record) -> str:
    if record.noise == 0:
        return ""
    return (
        f"{100 * record.noise:.0f} % of the training labels were changed ({record.noise_kind}); "
        "test labels are clean."
    )


def _facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Hardware, versions and commands, each variant once."""

    def distinct(values: Sequence[dict[str, Any]]) -> str:
        texts = [", ".join(f"{k} {v}" for k, v in value.items()) for value in values if value]
        return "; or ".join(dict.fromkeys(texts))

    return [
        ("Hardware", distinct([r.hardware for r in records])),
        ("Versions", distinct([r.versions for r in records])),
        ("Commands", "; ".join(dict.fromkeys(r.command for r in records if r.command))),
        ("Finished", f"{min(r.time for r in records)} to {max(r.time for r in records)}"),
    ]
