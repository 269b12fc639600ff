"""The report of the comparison of representations, as a document."""

from collections.abc import Callable, Sequence
from pathlib import Path

from nearwise import __version__
from nearwise.safe_files import write_aside
from nearwise_lab.experiments.representations import Comparison, arm_of
from nearwise_lab.report.commands import readable_command
from nearwise_lab.report.document import (
    Block,
    Document,
    Fold,
    Section,
    Terms,
    Words,
    document_latex,
    document_markdown,
)
from nearwise_lab.report.page import render_document
from nearwise_lab.report.pdf import document_pdf
from nearwise_lab.report.representations.export import comparison_csv, comparison_json
from nearwise_lab.report.representations.figures import (
    five_bars,
    learning_curves,
    metric_scatter,
    protocol_bars,
    purity_curves,
)
from nearwise_lab.report.representations.findings import Hypothesis, judge_all
from nearwise_lab.report.representations.pictures import WAYS, feature_maps, reconstructions
from nearwise_lab.report.representations.tables import (
    accuracy_table,
    calibration_table,
    cost_table,
    difference_table,
    geometry_table,
    likeness_table,
    pooling_table,
    protocol_table,
    reconstruction_table,
    verdict_table,
)
from nearwise_lab.report.study.parts import seed_words

FORMATS = ("html", "pdf", "md", "tex", "csv", "json")


def write_report(
    comparison: Comparison,
    folder: str | Path,
    *,
    formats: Sequence[str] = FORMATS,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Write the report of a comparison: report.html and report.pdf, results.md, .tex, .csv, .json.

    Parameters
    ----------
    comparison : Comparison
        With at least one record.
    folder : path
        Where the files go; existing ones are replaced.
    formats : sequence of str, default=all
    progress : callable, optional
        Called with a few words before each file.

    Returns
    -------
    Path
        The page where it was requested, else the first file.

    Raises
    ------
    ValueError
        If a format is unknown or nothing was measured yet.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"unknown format {unknown or ''}. Known: {', '.join(FORMATS)}.")
    if not comparison.records:
        raise ValueError("No probe has finished yet, so there is nothing to report.")
    hypotheses = judge_all(comparison)
    document = comparison_document(comparison, hypotheses)
    texts: dict[str, Callable[[], bytes]] = {
        "md": lambda: document_markdown(document).encode(),
        "tex": lambda: document_latex(document).encode(),
        "csv": lambda: comparison_csv(comparison).encode(),
        "json": lambda: comparison_json(comparison, hypotheses).encode(),
        "html": lambda: render_document(document).encode(),
        "pdf": lambda: document_pdf(document),  # last: it changes the figures
    }
    written = {}
    for name in (n for n in texts if n in formats):
        path = Path(folder) / f"{'report' if name in ('html', 'pdf') else 'results'}.{name}"
        if progress is not None:
            progress(path.name)
        write_aside(path, texts[name]())
        written[name] = path
    return written.get("html", next(iter(written.values())))


def comparison_document(comparison: Comparison, hypotheses: Sequence[Hypothesis]) -> Document:
    """Lay the report out."""
    facts = comparison.facts
    sections = [
        _answer_section(comparison, hypotheses),
        *(_accuracy_section(comparison, c) for c in comparison.contexts),
        _structure_section(comparison),
        _protocol_section(comparison),
        _map_section(comparison),
        _field_section(comparison),
        _how_section(comparison),
    ]
    return Document(
        str(facts.get("title") or f"Representations compared: {facts.get('dataset', '')}".strip()),
        _lead(comparison, hypotheses),
        [s for s in sections if s.blocks],
        f"Made by nearwise {__version__} from the records in its folder.",
    )


def _lead(comparison: Comparison, hypotheses: Sequence[Hypothesis]) -> str:
    names = ", ".join(arm_of(n).title for n in comparison.encoders)
    said = "; ".join(f"{h.name}: {h.verdict}" for h in hypotheses)
    return (
        f"Frozen features of {len(comparison.encoders)} encoders ({names}), read by "
        f"{', '.join(comparison.probes)}, {seed_words(comparison.seeds)}. Verdicts: {said}."
    )


def _answer_section(comparison: Comparison, hypotheses: Sequence[Hypothesis]) -> Section:
    evidence: list[Block] = [
        Terms([(h.claim, "; ".join(f"{e.what}: {e.points}" for e in h.evidence))])
        for h in hypotheses
        if h.evidence
    ]
    blocks: list[Block | None] = [
        five_bars(comparison),
        verdict_table(hypotheses),
        Fold("Every difference that decided, in points", evidence) if evidence else None,
        metric_scatter(comparison),
    ]
    return Section("Does metric structure favor other fields than trained probes do?", 2,
                   _kept(blocks))  # fmt: skip


def _accuracy_section(comparison: Comparison, context: str) -> Section:
    more: list[Block] = [calibration_table(comparison, context, p) for p in comparison.probes]
    costs: list[Block] = [cost_table(comparison, context, p) for p in comparison.probes]
    blocks: list[Block | None] = [
        accuracy_table(comparison, context),
        difference_table(comparison, context) if "full" in comparison.encoders else None,
        pooling_table(comparison, context),
        Fold("Calibration, probe by probe", more),
        Fold("What probes read and cost", costs),
    ]
    return Section(f"Probes, context {context}", 2, _kept(blocks))


def _structure_section(comparison: Comparison) -> Section:
    blocks: list[Block | None] = [purity_curves(comparison)]
    for context in comparison.contexts:
        blocks += [
            geometry_table(comparison, context),
            likeness_table(comparison, context, "cka"),
            likeness_table(comparison, context, "overlap"),
        ]
    return Section("Geometry of the features", 2, _kept(blocks))


def _protocol_section(comparison: Comparison) -> Section:
    probes = [p for p in comparison.probes if protocol_table(comparison, p) is not None]
    blocks: list[Block | None] = []
    for probe in probes:
        blocks += [protocol_bars(comparison, probe), protocol_table(comparison, probe)]
    return Section("What the protocol itself does", 2, _kept(blocks))


def _map_section(comparison: Comparison) -> Section:
    blocks: list[Block | None] = [
        feature_maps(comparison, context, way) for context in comparison.contexts for way in WAYS
    ]
    return Section("Maps", 2, _kept(blocks))


def _field_section(comparison: Comparison) -> Section:
    blocks: list[Block | None] = [
        learning_curves(comparison),
        reconstruction_table(comparison),
        reconstructions(comparison),
    ]
    return Section("The fields themselves", 2, _kept(blocks))


def _how_section(comparison: Comparison) -> Section:
    facts = comparison.facts
    text = (
        "Encoders are frozen and read each image once; probes are fitted on the training part, "
        "every choice is made on the validation part, and the test part is read once. Rows of the "
        "validation part then join those that k-NN, attention and linear probes learn from; "
        "transformers keep their best epoch. Where pixels are hidden, transformers read the "
        "original pixels as points with Fourier features of their places. All fields "
        "take the same number of steps: finetuning with the contrastive term is compared with as "
        "many further steps without it. Differences are paired over test rows and seeds: the "
        "variance of their means over seeds and over rows both count, and where there is one seed "
        "the interval is over rows alone."
    )
    shown = []
    for key, title in _FACTS.items():
        value = str(facts.get(key) or "")
        if value:
            shown.append((title, readable_command(value) if key == "command" else value))
    blocks: list[Block] = [Words(text)]
    if shown:
        blocks.append(Terms(shown))
    return Section("How this was measured", 2, blocks)


_FACTS = {
    "dataset": "Data set",
    "sizes": "Rows",
    "left_out": "Left out",
    "settings": "Settings",
    "times": "Times",
    "hardware": "Hardware",
    "versions": "Versions",
    "command": "Command",
}


def _kept(blocks: Sequence[Block | None]) -> list[Block]:
    return [b for b in blocks if b is not None]
