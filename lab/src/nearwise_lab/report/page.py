"""One self-contained HTML page, and the tables beside it, made from a results folder alone."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nearwise import __version__
from nearwise.safe_files import write_aside
from nearwise_lab.experiments import METHODS, Record, read_records
from nearwise_lab.experiments.artifacts import load_json
from nearwise_lab.report.document import (
    Block,
    Document,
    Section,
    Terms,
    Words,
    document_latex,
    document_markdown,
)
from nearwise_lab.report.drawing import Picture
from nearwise_lab.report.facts import record_facts
from nearwise_lab.report.figures import (
    MAX_DIAGRAMS,
    comparison_bars,
    reliability_diagrams,
    risk_coverage,
    training_curves,
)
from nearwise_lab.report.model_page import fill_template
from nearwise_lab.report.pdf import document_pdf, picture_files
from nearwise_lab.report.summary import Results, summary_json
from nearwise_lab.report.tables import (
    all_tables,
    halves_table,
    paired_table,
    ranks_table,
    results_table,
    shots_table,
    to_csv,
    to_latex,
    to_markdown,
)
from nearwise_lab.results.gallery import Gallery, make_page_gallery
from nearwise_lab.results.measures import MAIN_MEASURES, MORE_MEASURES, Predictions, Table

FORMATS = ("pdf", "html", "md", "tex", "csv", "json", "figures")
OF_COMPARISONS = ("html", "md", "tex", "csv", "json")  # where none are requested
WRITTEN = ("md", "tex", "csv", "json", "figures", "html", "pdf")  # in this order


@dataclass(frozen=True)
class DatasetPart:
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
    sections: list[DatasetPart]
    noise: str
    methods: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    version: str = __version__


def render_report(
    folder: str | PathLike[str],
    *,
    title: str | None = None,
    formats: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Write the report of a results folder beside its records.

    Works from the records and what lies beside them; run it again at any time, also while an
    experiment or a comparison is still going. Records are never changed.

    Parameters
    ----------
    folder : path
        Written by `compare` or `run_experiment`; rows of experiments get the suite's report.
    title : str, optional
        Heading of the report.
    formats : sequence of str, optional
        Of `FORMATS`: "html" and "pdf" write report.*, "md", "tex", "csv" and "json" results.*,
        "figures" a PDF, an SVG and a PNG of every figure into the folder figures. Default: all; for
        a comparison `OF_COMPARISONS`.
    progress : callable, optional
        Called with a few words before each part is made: the verdicts, the figures of each
        preset, each file.

    Returns
    -------
    Path
        The page where it was requested, else the first file. The page is one file, needs no
        network, and is light or dark as the reader's system is.

    Raises
    ------
    RecordsError
        If there are no records, or they are damaged.
    ValueError
        If a format is unknown, or no row is finished yet.
    OSError
        If the folder cannot be written to.
    """
    folder = Path(folder)
    asked = check_formats(formats)
    records = read_records(folder)
    if not records:
        raise ValueError(
            f"{folder} holds no finished rows yet. Let `nearwise compare` or `nearwise experiment` "
            "finish one."
        )
    if any(record.experiment for record in records):
        written = _write_study(folder, records, title, asked or FORMATS, progress or _quiet)
    else:
        written = _write_comparison(
            folder, records, title, asked or OF_COMPARISONS, progress or _quiet
        )
    return written.get("html", next(iter(written.values())))


def _quiet(step: str) -> None:
    """Report nothing."""


def check_formats(formats: Sequence[str] | None) -> tuple[str, ...]:
    """Refuse unknown formats, name the right ones; none requested gives none."""
    asked = tuple(dict.fromkeys(formats or ()))
    for name in asked:
        if name not in FORMATS:
            raise ValueError(f"unknown format {name!r}. Known: {', '.join(FORMATS)}.")
    return asked


def _write_study(
    folder: Path,
    records: Sequence[Record],
    title: str | None,
    formats: Sequence[str],
    progress: Callable[[str], None],
) -> dict[str, Path]:
    from nearwise_lab.report.study.claims import judge_claims
    from nearwise_lab.report.study.document import study_document
    from nearwise_lab.report.study.export import study_csv, study_json, study_rows
    from nearwise_lab.report.study.parts import Study

    study = Study(records, folder)
    progress("verdicts on the claims")
    findings = {
        d: {p: judge_claims(study, d, p) for p in study.presets_of(d)} for d in study.datasets
    }
    texts: dict[str, Callable[[], str | bytes]] = {}
    pictures: list[Picture] = []
    if {"csv", "json"} & set(formats):
        rows = study_rows(study, findings)
        texts["csv"] = lambda: study_csv(rows)
        texts["json"] = lambda: _json(study_json(study, findings, rows))
    if set(formats) - {"csv", "json"}:
        document = study_document(study, findings, title, progress)
        pictures = document.pictures()
        texts["html"] = lambda: render_document(document)
        texts["md"] = lambda: document_markdown(document)
        texts["tex"] = lambda: document_latex(document)
        texts["pdf"] = lambda: document_pdf(document)
    return _write(folder, formats, texts, pictures, progress)


def _write_comparison(
    folder: Path,
    records: Sequence[Record],
    title: str | None,
    formats: Sequence[str],
    progress: Callable[[str], None],
) -> dict[str, Path]:
    progress("tables and figures")
    results = Results(records, folder)
    tables = all_tables(results)
    texts: dict[str, Callable[[], str | bytes]] = {
        "md": lambda: "\n".join(map(to_markdown, tables)),
        "tex": lambda: "\n".join(map(to_latex, tables)),
        "csv": lambda: to_csv(results),
        "json": lambda: _json(summary_json(results)),
    }
    pictures: list[Picture] = []
    if {"html", "pdf", "figures"} & set(formats):
        page = make_page(folder, results, title)
        document = page_document(page)
        pictures = document.pictures()
        texts["html"] = lambda: render_page(page)
        texts["pdf"] = lambda: document_pdf(document)
    return _write(folder, formats, texts, pictures, progress)


def _write(
    folder: Path,
    formats: Sequence[str],
    texts: Mapping[str, Callable[[], str | bytes]],
    pictures: Sequence[Picture],
    progress: Callable[[str], None],
) -> dict[str, Path]:
    written = {}
    for name in sorted(formats, key=WRITTEN.index):
        if name == "figures":
            written[name] = write_figures(pictures, folder / name, progress)
            continue
        path = folder / f"{'report' if name in ('html', 'pdf') else 'results'}.{name}"
        progress(path.name)
        content = texts[name]()
        write_aside(path, content if isinstance(content, bytes) else content.encode())
        written[name] = path
    return written


def write_figures(
    pictures: Sequence[Picture], folder: Path, progress: Callable[[str], None] = _quiet
) -> Path:
    """Write every figure as NAME.pdf, NAME.svg and NAME.png into a folder of its own."""
    folder.mkdir(exist_ok=True)
    for shown in pictures:
        progress(f"{folder.name}/{shown.name}")
        for form, content in picture_files(shown).items():
            write_aside(folder / f"{shown.name}.{form}", content)
    return folder


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


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
        record_facts(results.records),
    )  # fmt: skip


def render_page(page: Page) -> str:
    """Fill the template of a comparison; every text is escaped."""
    return fill_template("report.html.j2", page=page)


def render_document(document: Document) -> str:
    """Fill the template of the suite's report; every text is escaped."""
    return fill_template("study.html.j2", document=document, reference="attention")


def page_document(page: Page) -> Document:
    """Lay the page of a comparison out for the PDF."""
    sections = [Section("Over all data sets", 2, [page.ranks])] if page.ranks else []
    for s in page.sections:
        blocks: list[Block | None] = [
            *(
                Words(f"{f.method}, seed {f.seed}, failed: {f.reason}", "failed")
                for f in s.failures
            ),
            s.results, s.more, s.bars, s.paired, *s.halves, s.reliability, s.risk, *s.curves,
            *s.galleries,
        ]  # fmt: skip
        sections.append(Section(s.dataset, 2, [b for b in blocks if b is not None]))
    how: list[Block] = [Words(page.noise)] if page.noise else []
    sections.append(
        Section("How this was measured", 2, [*how, Terms(page.methods), Terms(page.facts)])
    )
    footer = f"Made by nearwise {page.version} from records.jsonl in its folder."
    return Document(page.title, page.lead, sections, footer)


def _section(folder: Path, results: Results, dataset: str, reference: str) -> DatasetPart:
    failures = results.failures(dataset)
    order = results.ranked_methods(dataset)
    if not order:
        return DatasetPart(dataset, failures)
    pooled = _pooled(results, dataset, order, reference)
    paired = paired_table(results, dataset, reference)
    halves = [halves_table(results, dataset, m) for m in order]
    n_seeds = max(len(results.values(dataset, method, "nll")) for method in order)
    return DatasetPart(
        dataset,
        failures,
        results_table(results, dataset, MAIN_MEASURES),
        results_table(results, dataset, MORE_MEASURES),
        comparison_bars(dataset, results.bars(dataset), reference),
        paired if paired.rows and reference in order else None,
        [t for t in (*halves, shots_table(results, dataset)) if t is not None],
        reliability_diagrams(dataset, pooled, reference, n_seeds=n_seeds) if pooled else None,
        risk_coverage(dataset, pooled, reference, n_seeds=n_seeds) if pooled else None,
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


def _kept(results: Results, what: str, dataset: str, method: str, seed: int) -> Any:
    path = results.artifact(what, dataset, method, seed, "json")
    return None if path is None else load_json(path)


def _curves(folder: Path, results: Results, dataset: str, order: Sequence[str]) -> list[Picture]:
    """Training curves of the first seed, of attention methods, or else of any that train."""
    found: dict[str, Picture] = {}
    for method in order:
        for seed in results.values(dataset, method, "nll"):
            history = _kept(results, "curves", dataset, method, seed)
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
            stored = _kept(results, "galleries", dataset, method, seed)
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
    return f"{counts}{reference} has {where}; whether that is more than chance is shown below."


def _noise(record: Record) -> str:
    if record.noise == 0:
        return ""
    return (
        f"{100 * record.noise:.0f} % of the training labels were changed ({record.noise_kind}); "
        "test labels are clean."
    )
