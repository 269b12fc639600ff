"""The report is whole, escaped, and says what the records say."""

import csv
import json
import re

import pytest
from nearwise_lab.experiments.representations import Comparison
from nearwise_lab.report.representations import FORMATS, write_report

from lab.tests.report.representations.cases import comparison, everything, flat

pytestmark = pytest.mark.slow  # runs of the study, half a minute and more


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    rates = flat() | {("sparse", p, "0.2"): 0.9 for p in ("knn", "attention", "linear")}
    return folder, write_report(comparison(rates, **everything()), folder)


def test_every_form_is_written(report):
    folder, page = report
    assert page == folder / "report.html"
    names = {p.name for p in folder.iterdir()}
    assert names == {"report.html", "report.pdf", *(f"results.{f}" for f in FORMATS[2:])}
    assert (folder / "report.pdf").read_bytes().startswith(b"%PDF")


def test_the_page_holds_every_figure_once_and_needs_no_network(report):
    text = report[1].read_text(encoding="utf-8")
    for words in (
        "Bars of accuracy", "Scatter of k-NN", "Learning curves", "Maps of the features",
        "Test images and their reconstructions", "Purity against", "Bars of knn",
    ):  # fmt: skip
        assert words in text, words
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert not re.search(r'(src|href)="https?:', text)


def test_the_tables_hold_the_means_of_the_records(report):
    folder, _ = report
    rows = list(csv.DictReader((folder / "results.csv").open(encoding="utf-8")))
    whole = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    (row,) = [r for r in rows if (r["part"], r["encoder"], r["probe"], r["context"], r["measure"])
              == ("main", "sparse", "linear", "0.2", "accuracy")]  # fmt: skip
    assert float(row["mean"]) > 0.85 and (row["seeds"], row["draws"]) == ("3", "3")
    assert len(whole["means"]) == len(rows)
    assert f"{float(row['mean']):.3f}" in (folder / "results.md").read_text(encoding="utf-8")
    h2 = next(h for h in whole["hypotheses"] if h["name"] == "H2, 0.2")
    assert h2["verdict"] == "supported in part" and h2["evidence"][0]["verdict"] == "higher"


def test_one_seed_shows_intervals_over_rows_only(tmp_path):
    some = comparison(flat(), seeds=(0,), draws=(0,))
    write_report(some, tmp_path, formats=["md"])
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "One seed (0)" in text and "±" not in text.split("## How this")[0]


def test_names_are_escaped(tmp_path):
    some = comparison(flat(), seeds=(0,), draws=(0,))
    records = [{**r, "encoder": "<b>&" if r["encoder"] == "random" else r["encoder"]}
               for r in some.records]  # fmt: skip
    page = write_report(Comparison(records, some.right), tmp_path, formats=["html"])
    text = page.read_text(encoding="utf-8")
    assert "<b>&" not in text and "&lt;b&gt;&amp;" in text


def test_a_page_without_evidence_says_what_its_verdicts_need(tmp_path):
    some = comparison(flat())
    pixels = [r for r in some.records if r["encoder"] == "pixels"]
    write_report(Comparison(pixels, some.right), tmp_path, formats=["md"])
    text = (tmp_path / "results.md").read_text()
    assert "not measured | Needs the fields sparse and full." in text
    assert "Every difference that decided" not in text and ": nothing" not in text
    assert "Verdicts: the question, full: not measured" in text


def test_an_empty_comparison_and_unknown_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing to report"):
        write_report(Comparison([], lambda r: None), tmp_path)
    with pytest.raises(ValueError, match="Known: html, pdf"):
        write_report(comparison(flat(), seeds=(0,)), tmp_path, formats=["docx"])
