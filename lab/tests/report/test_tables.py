"""Markdown, LaTeX and CSV."""

import csv
import io
import re
import shutil
import subprocess

import pytest
from nearwise_lab.experiments import Record, read_records
from nearwise_lab.experiments.records import METRICS
from nearwise_lab.report.summary import Results
from nearwise_lab.report.tables import (
    LATEX_PACKAGES,
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
from nearwise_lab.results.measures import MEASURES, Cell, Table


@pytest.fixture(scope="module")
def results(compared):
    return Results(read_records(compared), compared)


def test_the_best_value_is_bold_and_ties_share_it():
    rows = [Record("d", m, 0, nll=v) for m, v in [("a", 0.10001), ("b", 0.10002), ("c", 0.2)]]
    nll = [m for m in MEASURES if m.key == "nll"]
    table = results_table(Results(rows), "d", nll)
    assert [cells[0].mark for _, cells in table.rows] == ["best", "best", ""]


def test_a_single_seed_is_called_one_seed():
    table = results_table(Results([Record("d", "a", 7, nll=0.1)]), "d")
    assert "One seed (7)" in table.caption
    assert "±" not in to_markdown(table)


def test_differences_say_better_worse_or_none(results):
    table = paired_table(results, "blobs", "attention")
    assert [name for name, _ in table.rows] == ["bayes <1>"]
    assert all(cell.text.endswith(" none") for cell in table.rows[0][1])


def test_the_two_halves_stand_beside_the_whole(results):
    table = halves_table(results, "blobs", "attention")
    names = [name for name, _ in table.rows]
    assert names == [
        "attention", "base alone", "neighbors alone",
        "whole minus base alone", "whole minus neighbors alone",
    ]  # fmt: skip
    assert "null neighbor took 25 %" in table.caption
    assert table.rows[-1][1][1].mark == "better"
    assert halves_table(results, "blobs", "bayes <1>") is None


def test_ranks_need_two_data_sets(results):
    table = ranks_table(results)
    assert "Mean rank over 2 data sets" in table.title
    assert "left out: broken" in table.caption
    assert ranks_table(Results([Record("d", "a", 0, nll=0.1)])) is None


def test_costs_stand_beside_the_ranks_as_geometric_means():
    quality = dict.fromkeys(METRICS, 0.1)
    rows = [
        Record(d, "a", 0, **quality, fit_seconds=s, one_row_ms=ms)
        for d, s, ms in (("one", 1.0, 2.0), ("two", 100.0, None))
    ]
    table = ranks_table(Results(rows))
    shown = dict(zip(table.columns[1:], (cell.text for cell in table.rows[0][1]), strict=True))
    assert shown["fit s"] == "10.0"
    assert shown["one row ms"] == "-"  # not known on every data set


def test_markdown_has_as_many_cells_in_every_line(results):
    for table in all_tables(results):
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
        assert len(lines) == len(table.rows) + 2


def test_markdown_escapes_bars():
    table = Table("t", "c", ["method", "x"], [("a|b", [Cell("1")])])
    assert "a\\|b" in to_markdown(table)


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


def test_long_tables_are_divided_and_lose_no_row():
    long, wordy = map(to_latex, hard_tables()[1:])
    assert [f"row {n} &" in long for n in range(100)] == [True] * 100
    assert long.count(r"\begin{table}") == 3
    assert "Long (3 of 3)" in long
    assert wordy.count(r"\textbackslash") == 60


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


def test_csv_holds_every_mean(results):
    rows = list(csv.DictReader(io.StringIO(to_csv(results))))
    found = [
        r for r in rows
        if (r["dataset"], r["method"], r["measure"]) == ("blobs", "attention", "nll")
    ]  # fmt: skip
    mean = results.mean("blobs", "attention", "nll")
    assert len(found) == 1
    assert float(found[0]["mean"]) == mean.mean
    assert float(found[0]["high"]) == pytest.approx(mean.high)
    assert found[0]["n"] == "3"


def test_accuracy_by_class_size_stands_where_sizes_differ():
    shots = {
        "many": 0.9, "medium": None, "few": 0.5, "balanced": 0.7,
        "classes": {"many": 1, "medium": 0, "few": 1}, "rule": "more than 100 training rows",
    }  # fmt: skip
    rows = [
        Record("d", "a", 0, nll=0.1, details={"shots": shots}),
        Record("d", "b", 0, nll=0.2, details={"shots": shots | {"few": 0.6}}),
    ]
    table = shots_table(Results(rows), "d")
    assert [cell.text for cell in table.rows[0][1]] == ["0.7000", "0.9000", "-", "0.5000"]
    assert [cells[3].mark for _, cells in table.rows] == ["", "best"]
    assert "more than 100 training rows: 1 many-shot, 1 few-shot" in table.caption
    assert table in all_tables(Results(rows))
    assert shots_table(Results([Record("d", "a", 0, nll=0.1)]), "d") is None
