"""Every form of a report holds the whole document, escaped, and the same every time."""

import csv
import html
import io
import json
import re
import shutil
import subprocess
from xml.etree import ElementTree

import numpy as np
import pypdf
import pytest
from nearwise_lab.report.charts import Line, Lines, chart
from nearwise_lab.report.document import Document, Fold, Section, Terms, Words
from nearwise_lab.report.drawing import Picture, picture
from nearwise_lab.report.pdf import document_pdf, picture_files
from nearwise_lab.report.writers import (
    LATEX_PACKAGES,
    document_csv,
    document_html,
    document_json,
    document_markdown,
    to_latex,
)
from nearwise_lab.results.gallery import make_page_gallery
from nearwise_lab.results.measures import Cell, Table
from PIL import Image

from lab.tests.report.pages import Checker

MARGIN, WIDTH = 0.6 * 72, 11.69 * 72  # points
HARD = '#let x = *not* _markup_ $1^2$ @here <there> \\n // "it" & [so] µ ±'


def drawing() -> Picture:
    lines = Lines("risk & coverage", {"a": Line([(0, 0), (1, 1)])}, x="share of rows")
    return picture(chart([lines], (4, 2)), "risk", 'a "rising" <line>', "How the risk grows.")


def gallery_of(why: str, rows: list, **more):
    """One query and two neighbors, the second of which was not kept."""
    asked, near = rows
    neighbors = [{"label": "cat", "weight": 0.75, "distance": 1.5, "row": near},
                 {"label": "dog", "weight": 0.125, "distance": 2.0, "row": None}]  # fmt: skip
    row = {"why": why, "true": "cat", "predicted": "dog" if why == "wrong" else "cat",
           "proba": [0.2, 0.8], "null_mass": 0.1, "row": asked, "neighbors": neighbors}  # fmt: skip
    stored = {"classes": ["cat", "dog"], "rows": [row], **more}
    return make_page_gallery("toys", "attention", 0, stored)


def images():
    rows = [np.full((4, 4), value).tolist() for value in (3, 9)]
    return gallery_of("wrong", rows, kind="images", image_shape=[4, 4])


def numbers(n_rows: int, n_columns: int, name: str = "method") -> Table:
    rows = []
    for r in range(n_rows):
        cells = [Cell(f"{r}.{c:03d} ± 0.5", "best" if r == c else "") for c in range(n_columns)]
        rows.append((f"{name} {r}", cells))
    columns = ["", *(f"m{c}" for c in range(n_columns))]
    return Table("Every method", "Lower is better.", columns, rows)


def report(*blocks, sections=(), **more) -> Document:
    parts = [Section("Results", [*blocks]), *sections]
    return Document("A report", "What was done.", parts, **more)


def whole() -> Document:
    cells = [Cell("0.125", "best"), Cell("-0.5 worse", "worse", "[-0.9, -0.1]"), Cell("-", "none")]
    table = Table("Accuracy", "Of all seeds.", ["method", "a", "b", "c"], [("m|1", cells)])
    blocks = [
        Words("A paragraph."), None, Words("It failed: 3 times.", "failed"), Words(HARD),
        Terms([("leak", "a row finds itself")]), table, drawing(),
        Fold("More", [Words("Hidden at first.")]),
    ]  # fmt: skip
    below = [Section("Below", [Words("Deeper.")], 3), Section("Nothing", [None])]
    return report(*blocks, sections=below, facts=[("Hardware", "a machine"), ("Command", "")])


def pages_of(document: Document) -> list[pypdf.PageObject]:
    return list(pypdf.PdfReader(io.BytesIO(document_pdf(document))).pages)


def text_of(document: Document) -> str:
    return "\n".join(page.extract_text() for page in pages_of(document))


def words_of(text: str) -> set[str]:
    return set(re.sub(r"\s+", " ", text).split())


def test_page_pdf_and_markdown_say_the_same():
    page = document_html(whole())
    Checker(page)
    shown = html.unescape(re.sub(r"<[^>]+>", " ", page.split("</style>")[-1].split("<script>")[0]))
    words = words_of(shown.replace("leak", "leak:"))
    folded = {"More", "Hardware", "Hardware,", "versions", "and", "commands"}
    assert words - words_of(text_of(whole())) <= folded
    plain = document_markdown(whole())
    for part in (
        "# A report", "## Results", "### Below", "It failed: 3 times.", HARD, "Hidden at first.",
        "- **leak**: a row finds itself", "- **Hardware**: a machine",
        "| m\\|1 | **0.125** | -0.5 worse [-0.9, -0.1] | - |",
    ):  # fmt: skip
        assert part in plain, part
    assert "Nothing" not in page
    assert "<there>" not in page


def test_csv_and_json_hold_numbers_and_verdicts():
    claim = {"claim": "better", "verdict": "validated", "estimate": 0.5, "low": 0.25, "high": 1.0,
             "n": 3, "preset": "v1"}  # fmt: skip
    number = {"kind": "mean", "method": "a", "mean": 0.25, "low": None, "n": 1}
    document = report(numbers=[number], claims=[claim], failed=[{"reason": "<no>"}])
    first, second = csv.DictReader(io.StringIO(document_csv(document)))
    assert (first["mean"], first["low"], first["kind"]) == ("0.25", "", "mean")
    assert (second["kind"], second["method"], second["mean"]) == ("claim", "better", "0.5")
    assert (second["verdict"], second["preset"]) == ("validated", "v1")
    stored = json.loads(document_json(document))
    assert (stored["numbers"], stored["claims"]) == ([number], [claim])
    assert stored["failed"] == [{"reason": "<no>"}]


def test_a_figure_by_itself_is_a_pdf_an_svg_and_a_png():
    files = picture_files(drawing())
    page = pypdf.PdfReader(io.BytesIO(files["pdf"])).pages[0]
    assert "share of rows" in page.extract_text()
    root = ElementTree.fromstring(files["svg"])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert b"var(--" not in files["svg"]  # no colors of a page that is not there
    width, height = Image.open(io.BytesIO(files["png"])).size
    assert width / height == pytest.approx(2, rel=0.01)
    assert width >= 800
    assert picture_files(drawing()) == files


def test_galleries_show_queries_and_neighbors():
    rows = gallery_of("uncertain", [[2.5, None], [1.5, "red"]], columns=["size", "color"])
    pages = pages_of(report(images(), *rows.tables()))
    text = re.sub(r"\s+", " ", "\n".join(page.extract_text() for page in pages))
    for part in (
        "toys, where attention was wrong, seed 0", "dog (80 %)", "true cat", "cat (75 %)",
        "dog (12 %)", "toys, where attention was right but unsure, seed 0",
        "query 1 cat cat (80 %)", "2.5 missing", "neighbor 1 cat 75.0 % 1.5 1.5 red",
    ):  # fmt: skip
        assert part in text, part
    assert len(pages[1].images) == 2  # a neighbor whose row was not kept has none


def test_a_long_table_goes_on_with_its_heading():
    pages = [page.extract_text() for page in pages_of(report(numbers(120, 3)))][1:]
    assert len(pages) > 2
    assert "Every method\n" in pages[0]
    for page in pages[1:]:
        assert "Every method (continued)" in page
    assert all("m0 m1 m2" in page for page in pages)
    together = "\n".join(pages)
    assert all(f"method {r} {r}.000 ± 0.5 {r}.001 ± 0.5 {r}.002" in together for r in range(120))


@pytest.mark.parametrize("n_columns", [6, 14, 25])
def test_a_wide_table_fits_the_page(n_columns):
    name = "averyveryverylongnamewithoutanyspaceinit" * 2
    table = numbers(4, n_columns, name)
    (_, page, *more) = pages_of(report(table))
    assert not more
    ends = []

    def visit(text, matrix, text_matrix, font, size):
        if text.strip() and font is not None:
            x = text_matrix[4] * matrix[0] + matrix[4]
            ends.append((x, x + 0.3 * size * len(text.strip()), text))

    together = re.sub(r"[\s\u200b]", "", page.extract_text(visitor_text=visit))
    for row in range(4):
        assert f"{name}{row}" in together
        for column in range(n_columns):
            assert f"{row}.{column:03d}±0.5" in together
    assert min(start for start, _, _ in ends) >= MARGIN - 1
    assert max(end for _, end, _ in ends) <= WIDTH - MARGIN + 1


def test_sentences_in_a_table_are_broken_over_lines():
    rows = [("a claim of many words " * 5, [Cell("holds", "better", "for a long reason " * 12)])]
    text = text_of(report(Table("Claims", "", ["claim", "verdict"], rows, wrap=True)))
    together = re.sub(r"\s+", " ", text)
    assert ("for a long reason " * 12).strip() in together
    assert ("a claim of many words " * 5).strip() in together


def test_contents_list_the_sections_and_an_outline_leads_to_them():
    reader = pypdf.PdfReader(io.BytesIO(document_pdf(report(Words("x")))))
    assert re.search(r"Results[ .]*2", reader.pages[0].extract_text())
    assert [item.title for item in reader.outline] == ["Results"]
    assert reader.metadata.title == "A report"


def test_the_same_document_gives_the_same_bytes():
    document = report(numbers(3, 3), drawing(), images())
    assert document_pdf(document) == document_pdf(document)


def test_only_embedded_fonts_of_typst_are_used():
    fonts = set()
    for page in pages_of(report(drawing(), Words(HARD))):
        for font in page["/Resources"].get("/Font", {}).values():
            (part,) = font.get_object()["/DescendantFonts"]
            fonts.add(part.get_object()["/BaseFont"].partition("+")[2])
    assert fonts
    assert all(name.startswith("Libertinus") for name in fonts), fonts


def test_latex_is_a_booktabs_table_with_special_characters_escaped():
    table = Table("50 %", "a_b & c", ["method", "x ± y"], [("m_1", [Cell("0.5 ± 0.1", "best")])])
    lines = to_latex(table).splitlines()
    assert lines[2] == r"  \caption{50 \%. a\_b \& c}"
    assert lines[3].endswith(r"{\begin{tabular}{lr}")  # scaled where it is wider than the text
    assert lines[4:9] == [
        r"    \toprule",
        r"    method & x $\pm$ y \\",
        r"    \midrule",
        r"    m\_1 & \textbf{0.5 $\pm$ 0.1} \\",
        r"    \bottomrule",
    ]


def hard_tables():
    numbers = [Cell("0.1234 ± 0.5678")] * 9
    wide = Table("Wide", "As it is.", list("abcdefghij"), [("a method", numbers)] * 3)
    long = Table("Long", "As it is.", ["a", "b"], [(f"row {n}", [Cell("1")]) for n in range(100)])
    claim = "A claim of some thirty words or a few more, as it stands in the reports: " * 3
    verdict = Cell("not validated", "worse", '[0.1, 0.2] # $ ^ ~ \\ < > | "and a note of its own"')
    wordy = Table("Words", "As it is.", ["claim", "v1", "v2"], [(claim, [verdict] * 2)] * 30, True)
    return [wide, long, wordy]


def test_long_and_wide_tables_are_divided_and_lose_nothing():
    wide, long, wordy = map(to_latex, hard_tables())
    assert [f"row {n} &" in long for n in range(100)] == [True] * 100
    assert long.count(r"\begin{table}") == 3
    assert "Long (3 of 3)" in long
    assert wordy.count(r"\textbackslash") == 60
    heads = re.findall(r"toprule\n\s*(.*) \\\\", wide)
    assert [head.split(" & ") for head in heads] == [list("abcdef"), list("aghij")]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
def test_every_table_fits_a_page_of_latex(tmp_path):
    tables = "\n".join(map(to_latex, hard_tables()))
    packages = rf"\usepackage{{{', '.join(LATEX_PACKAGES)}}}"
    parts = [r"\documentclass{article}", packages, r"\begin{document}", tables, r"\end{document}"]
    (tmp_path / "paper.tex").write_text("\n".join(parts))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert ran.returncode == 0, ran.stdout[-1500:]
    assert not re.findall(r"Overfull .*|Float too large.*", ran.stdout)
