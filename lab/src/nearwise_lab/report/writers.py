"""The forms of a report: one page of HTML, PDF, Markdown, LaTeX, CSV, JSON and figures."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from nearwise.html import STYLE, environment
from nearwise.safe_files import plain, write_aside
from nearwise_lab.report.document import Block, Document, Terms, Words
from nearwise_lab.report.pdf import document_pdf, picture_files
from nearwise_lab.results.measures import LEVEL, Cell, Table

FORMATS = ("pdf", "html", "md", "tex", "csv", "json", "figures")
LATEX_PACKAGES = ("array", "booktabs", "graphicx")
LATEX_COLUMNS = 6
_FIRST_COLUMN = 0.4  # share of the text's width, in a table of sentences
_LINE = 80  # characters of a line of small text as wide as the page's text
_LINES = 38  # of a page


def check_formats(formats: Sequence[str] | None) -> tuple[str, ...]:
    """Refuse unknown formats, name the right ones; none requested gives none."""
    asked = tuple(dict.fromkeys(formats or ()))
    for name in asked:
        if name not in FORMATS:
            raise ValueError(f"unknown format {name!r}. Known: {', '.join(FORMATS)}.")
    return asked


def write_document(
    document: Document,
    folder: Path,
    formats: Sequence[str],
    progress: Callable[[str], None] = lambda step: None,
) -> Path:
    """Write report.html and .pdf, results.md, .tex, .csv and .json, and the folder figures.

    Existing files of `folder` are replaced; `formats` are of `FORMATS`, at least one; `progress` is
    called with the name of each file before it is made. Returns the page where it was requested,
    else the first file.
    """
    makers: dict[str, Callable[[], str | bytes]] = {
        "md": lambda: document_markdown(document),
        "tex": lambda: "\n".join(map(to_latex, document.tables())),
        "csv": lambda: document_csv(document),
        "json": lambda: document_json(document),
        "html": lambda: document_html(document),
        "pdf": lambda: document_pdf(document),
    }
    written: dict[str, Path] = {}
    for name in (n for n in makers if n in formats):
        path = folder / f"{'report' if name in ('html', 'pdf') else 'results'}.{name}"
        progress(path.name)
        content = makers[name]()
        write_aside(path, content if isinstance(content, bytes) else content.encode())
        written[name] = path
    if "figures" in formats:
        written["figures"] = folder / "figures"
        written["figures"].mkdir(exist_ok=True)
        for shown in document.pictures():
            progress(f"figures/{shown.name}")
            for form, data in picture_files(shown).items():
                write_aside(written["figures"] / f"{shown.name}.{form}", data)
    return written.get("html", next(iter(written.values())))


def document_html(document: Document) -> str:
    """One self-contained page: no network, light or dark as the reader's system is."""
    folder = files("nearwise_lab.report") / "templates"

    def read(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    return (
        environment("nearwise_lab.report")
        .get_template("page.html.j2")
        .render(
            document=document,
            kind_of=lambda block: type(block).__name__,
            style=STYLE + read("style.css"),
            script=read("report.js"),
        )
    )


def document_markdown(document: Document) -> str:
    """Words and tables in GitHub's Markdown; figures are in the page and in the PDF."""
    parts = [f"# {document.title}", document.lead]
    for section in document.parts():
        parts.append(f"{'#' * section.level} {section.title}")
        parts += filter(None, map(_block_markdown, section.flat()))
    return "\n\n".join([*parts, document.footer]) + "\n"


def _block_markdown(block: Block) -> str:
    if isinstance(block, Words):
        return block.text
    if isinstance(block, Terms):
        return "\n".join(f"- **{name}**: {text}" for name, text in block.items)
    return to_markdown(block).rstrip() if isinstance(block, Table) else ""


def to_markdown(table: Table) -> str:
    """One table in GitHub's Markdown."""
    lines = [f"**{table.title}**", "", table.caption, "", _pipe(table.columns)]
    lines.append(_pipe(["---", *("---:" for _ in table.columns[1:])]))
    for name, cells in table.rows:
        texts = [f"**{c.line}**" if c.mark == "best" else c.line for c in cells]
        lines.append(_pipe([name, *texts]))
    return "\n".join(lines) + "\n"


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def document_csv(document: Document) -> str:
    """All numbers and verdicts, a line each; an unknown end of an interval is empty."""
    ends = ("dataset", "experiment", "preset", "condition", "low", "high", "n", "verdict")
    claims = [
        {"kind": "claim", "method": c["claim"], "mean": c["estimate"]}
        | {key: c[key] for key in ends if key in c}
        for c in document.claims
    ]
    rows = [*document.numbers, *claims]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def document_json(document: Document) -> str:
    """Numbers, verdicts with their evidence, failures, and conditions of the run, as JSON."""
    content = {
        "title": document.title,
        "level": LEVEL,
        "reference": document.reference,
        "facts": dict(document.facts),
        "claims": list(document.claims),
        "numbers": list(document.numbers),
        "failed": list(document.failed),
    }
    return json.dumps(plain(content), ensure_ascii=False, indent=1)


def to_latex(table: Table) -> str:
    r"""One table in LaTeX, for the packages of `LATEX_PACKAGES`, in parts that fit a page each.

    No part has more than `LATEX_COLUMNS` columns. Numbers that are wider than the text are scaled
    down to it, sentences are broken in their cells.
    """
    parts: list[tuple[Any, Any, Any]] = []
    width = LATEX_COLUMNS - 1
    for start in range(1, max(len(table.columns), 2), width):
        columns = [table.columns[0], *table.columns[start : start + width]]
        rows = [(name, cells[start - 1 : start - 1 + width]) for name, cells in table.rows]
        others = len(columns) - 1
        sizes = [_FIRST_COLUMN, *[(1 - _FIRST_COLUMN) / others] * others] if table.wrap else None
        lines = 0 if parts else len(table.caption) // _LINE
        parts += [(columns, some, sizes) for some in _pages(rows, sizes, lines)]
    texts = []
    for number, (columns, rows, sizes) in enumerate(parts, start=1):
        more = "" if len(parts) == 1 else f" ({number} of {len(parts)})"
        caption = f"{table.title}{more}. {table.caption if number == 1 else ''}".strip()
        texts.append(_tex_table(caption, columns, rows, sizes))
    return "\n".join(texts)


def _pages(
    rows: Sequence[tuple[str, list[Cell]]], sizes: Sequence[float] | None, lines: int
) -> list[list[tuple[str, list[Cell]]]]:
    """Split rows into pages by their number of lines; `lines` are used on the first page."""
    pages: list[list[tuple[str, list[Cell]]]] = [[]]
    for name, cells in rows:
        needed = 1
        if sizes is not None:
            texts = [name, *(c.line for c in cells)]
            needed = max(math.ceil(len(t) / (_LINE * w)) for t, w in zip(texts, sizes, strict=True))
        if lines + needed > _LINES and pages[-1]:
            pages.append([])
            lines = 0
        pages[-1].append((name, cells))
        lines += max(needed, 1)
    return pages


def _tex_table(
    caption: str, columns: Sequence[str], rows: Sequence[tuple[str, list[Cell]]],
    sizes: Sequence[float] | None,
) -> str:  # fmt: skip
    if sizes is None:
        form = f"l{'r' * (len(columns) - 1)}"
        start = (
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{\begin{tabular}"
            f"{{{form}}}"
        )
        end = r"\end{tabular}}"
    else:
        form = "".join(
            rf">{{\raggedright\arraybackslash}}p{{\dimexpr {w:.3f}\linewidth-2\tabcolsep\relax}}"
            for w in sizes
        )
        start, end = rf"\small\begin{{tabular}}{{{form}}}", r"\end{tabular}"
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_tex(caption)}}}",
        f"  {start}",
        r"    \toprule",
        f"    {' & '.join(map(_tex, columns))} \\\\",
        r"    \midrule",
        *(f"    {_tex_row(*row)}" for row in rows),
        r"    \bottomrule",
        f"  {end}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex_row(name: str, cells: Sequence[Cell]) -> str:
    texts = [rf"\textbf{{{_tex(c.line)}}}" if c.mark == "best" else _tex(c.line) for c in cells]
    return " & ".join([_tex(name), *texts]) + r" \\"


_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "µ": r"$\mu$", '"': "''", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
})  # fmt: skip


def _tex(text: str) -> str:
    return text.translate(_TEX)
