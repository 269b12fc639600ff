"""The page: self-contained, complete, well formed, made from the folder alone."""

import json
import re
import shutil

import pytest
from nearwise_lab.experiments import RecordsError, read_records
from nearwise_lab.report import demo as demo_module
from nearwise_lab.report import render_report

from lab.tests.report.pages import Checker


@pytest.fixture(scope="module")
def page(compared):
    return render_report(compared).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def checked(page):
    return Checker(page)


def test_the_page_needs_no_network(page):
    markup, _, script = page.partition("<script>")
    addresses = re.findall(r'(?:src|href|url\()\s*=?\s*["\']?([^"\')\s>]+)', markup)
    assert addresses
    assert all(a.startswith(("data:", "#")) for a in addresses)
    assert "<script" not in script
    assert "@import" not in page
    assert not re.search(r"fetch|XMLHttp|import\(|http", script)


def test_the_page_is_well_formed_and_ids_are_unique(checked):
    assert len(checked.ids) == len(set(checked.ids))
    assert checked.tags.count("h1") == 1


def test_everything_has_a_text_for_those_who_cannot_see_it(checked):
    for tag, attributes in checked.attributes:
        if tag == "img":
            assert attributes["alt"]
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
    assert ("html", {"lang": "en"}) in checked.attributes


def test_names_are_escaped(page):
    assert "bayes &lt;1&gt;" in page
    assert "<1>" not in page
    assert "more &amp; less" in page


def test_the_page_shows_all_parts(checked):
    text = " ".join(checked.text)
    for part in (
        "Results", "Difference from attention", "What the neighbors add",
        "Do the probabilities mean what they say?", "Answer only when sure", "Training",
        "Where attention was", "failed", "this method never works", "How this was measured",
        "a test", "95 % t-interval",
    ):  # fmt: skip
        assert part in text, part
    assert checked.tags.count("svg") == 2 * 4


def test_tables_lie_beside_the_page(compared, page):
    for name in ("results.md", "results.tex", "results.csv"):
        assert "attention" in (compared / name).read_text()
    assert json.loads((compared / "results.json").read_text())["reference"] == "attention"


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
    assert "Do the probabilities" not in html
    Checker(html)


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
def test_the_demo_prints_its_table_and_its_page(tmp_path, capsys, monkeypatch):
    from fakes import attention, bayes

    monkeypatch.setattr(demo_module, "DEMO_METHODS", (bayes(), attention()))
    page = demo_module.run_demo(tmp_path / "demo", seed=1)
    printed = capsys.readouterr().out
    assert "neighbors alone" in printed
    assert page.name in printed.replace("\n", "")
    assert "data:image/png;base64," in page.read_text(encoding="utf-8")
    demo_module.run_demo(tmp_path / "demo", seed=1, progress=False)
    assert capsys.readouterr().out == ""
    assert len(read_records(tmp_path / "demo")) == 4
