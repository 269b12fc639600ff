"""Reports of comparisons: complete, made from the folder alone, their numbers the records'."""

import json
import shutil
from collections import Counter

import pytest
from nearwise_lab.experiments import Record, RecordsError, read_records
from nearwise_lab.records import METRICS
from nearwise_lab.report import FORMATS, render_report
from nearwise_lab.report.compare import comparison_document, halves_table, ranks_table
from nearwise_lab.report.summary import Results

from lab.tests.report.pages import check_page


@pytest.fixture(scope="module")
def results(compared):
    return Results(read_records(compared), compared)


@pytest.fixture(scope="module")
def page(compared):
    return render_report(compared).read_text(encoding="utf-8")


def test_the_page_shows_all_parts_and_needs_no_network(page):
    checked = check_page(page)
    assert "bayes &lt;1&gt;" in page
    assert "<1>" not in page
    text = " ".join(checked.text)
    for part in (
        "more & less", "results", "difference from attention", "reliability",
        "contributions of base and neighbors",
        "risk and coverage", "training of attention", "Where attention was", "failed",
        "this method never works", "How this was measured", "a test", "95 % t-interval",
    ):  # fmt: skip
        assert part in text, part
    assert checked.tags.count("svg") - page.count('<svg class="bar"') == 2 * 5
    assert page.count('<article class="card">') > 0


def test_the_page_is_the_same_every_time_and_says_what_it_does(compared, page):
    before, told = (compared / "records.jsonl").read_bytes(), []
    again = render_report(compared, formats=["html", "csv"], progress=told.append)
    assert again.read_text(encoding="utf-8") == page
    assert told == ["tables and figures", "results.csv", "report.html"]
    assert (compared / "records.jsonl").read_bytes() == before


def test_records_alone_are_enough(compared, tmp_path):
    shutil.copy(compared / "records.jsonl", tmp_path)
    html = render_report(tmp_path, title="Only records").read_text(encoding="utf-8")
    assert "Only records" in html
    assert "reliability" not in html
    check_page(html)


def test_a_folder_without_records_says_what_to_do(tmp_path):
    with pytest.raises(RecordsError, match="Pass a folder written by"):
        render_report(tmp_path)


def test_only_failures_still_give_a_page(tmp_path):
    from fakes import blobs, broken
    from nearwise_lab.experiments import compare

    compare([blobs()], [broken()], [0], tmp_path, progress=False)
    html = render_report(tmp_path).read_text(encoding="utf-8")
    assert "this method never works" in html


def test_one_seed_is_compared_by_rows(one_seed):
    html = render_report(one_seed).read_text(encoding="utf-8")
    assert "paired by test row" in html


@pytest.mark.slow
def test_a_comparison_has_every_form(compared, tmp_path):
    shutil.copytree(compared, tmp_path / "c")
    render_report(tmp_path / "c", formats=FORMATS)
    assert (tmp_path / "c" / "report.pdf").read_bytes().startswith(b"%PDF")
    forms = Counter(p.suffix for p in (tmp_path / "c" / "figures").iterdir())
    assert set(forms) == {".pdf", ".svg", ".png"}
    assert len(set(forms.values())) == 1


def test_numbers_are_those_of_the_records(compared, results, page):
    stored = json.loads((compared / "results.json").read_text())
    assert stored["reference"] == "attention"
    mean = results.mean("blobs", "attention", "nll")

    def number(**wanted):
        (row,) = [r for r in stored["numbers"] if wanted.items() <= r.items()]
        return row

    row = number(kind="mean", dataset="blobs", method="attention", measure="nll")
    assert (row["mean"], row["high"], row["n"]) == (mean.mean, pytest.approx(mean.high), 3)
    half = "attention:neighbors-alone"
    row = number(kind="difference", dataset="blobs", method=half, measure="nll")
    assert (row["reference"], row["verdict"]) == ("attention", "higher")
    assert [f["seed"] for f in stored["failed"] if f["dataset"] == "blobs"] == [0, 1, 2]
    names = {r["method"] for r in stored["numbers"]}
    assert names == {"bayes <1>", "attention", "attention:base-alone", half}


def table_of(results, title):
    return next(t for t in comparison_document(results).tables() if title in t.title)


def test_the_best_value_is_bold_and_ties_share_it():
    rows = [Record("d", m, 0, nll=v) for m, v in [("a", 0.10001), ("b", 0.10002), ("c", 0.2)]]
    table = table_of(Results(rows), "d: results")
    assert table.columns == ["method", "NLL"]  # nothing else was measured
    assert [cells[0].mark for _, cells in table.rows] == ["best", "best", ""]
    assert "One seed (0)" in table.caption
    assert "±" not in table.rows[0][1][0].text


def test_differences_say_better_worse_or_none(results):
    table = table_of(results, "blobs: difference from attention")
    assert [name for name, _ in table.rows] == ["bayes <1>"]
    assert all(cell.text.endswith(" none") for cell in table.rows[0][1])


def test_the_two_halves_stand_beside_the_whole(results):
    table = halves_table(results, "blobs", "attention")
    names = [name for name, _ in table.rows]
    assert names == [
        "attention", "base alone", "neighbors alone",
        "whole minus base alone", "whole minus neighbors alone",
    ]  # fmt: skip
    assert "On average 25 % of the attention weight" in table.caption
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
    assert "one row ms" not in shown  # not known on every data set


def test_accuracy_by_class_size_stands_where_sizes_differ():
    shots = {
        "many": 0.9, "medium": None, "few": 0.5, "balanced": 0.7,
        "classes": {"many": 1, "medium": 0, "few": 1}, "rule": "more than 100 training rows",
    }  # fmt: skip
    rows = [
        Record("d", "a", 0, nll=0.1, details={"shots": shots}),
        Record("d", "b", 0, nll=0.2, details={"shots": shots | {"few": 0.6}}),
    ]
    table = table_of(Results(rows), "size of the class")
    assert [cell.text for cell in table.rows[0][1]] == ["0.7000", "0.9000", "0.5000"]
    assert [cells[2].mark for _, cells in table.rows] == ["", "best"]
    assert "more than 100 training rows: 1 many-shot, 1 few-shot" in table.caption
    even = comparison_document(Results([Record("d", "a", 0, nll=0.1)]))
    assert not any("size of" in t.title for t in even.tables())
