"""``nearwise evaluate --report``: one page about the model."""

import json
import sys
from html import unescape

from sklearn.datasets import load_diabetes

from lab.tests.report.pages import Checker
from tests.cli.test_evaluate_learned import mixed, pictures

__all__ = ["pictures"]
NEW = "rows not in the training data"


def page_of(nearwise, model, data, folder):
    """Text of a page, on which every remark about its rows stands."""
    scores, page = folder / "scores.json", folder / "page.html"
    options = ("--json", scores, "--report", page, "--resamples", "20")
    result = nearwise("evaluate", model, data, *options)
    assert result.exit_code == 0, result.err
    text = unescape(page.read_text())
    for remark in json.loads(scores.read_text())["rows"]["remarks"]:
        assert remark in text
    return text


def test_evaluate_writes_a_page_with_its_hard_cases(nearwise, tables, trained, tmp_path):
    page = tmp_path / "report.html"
    options = ("--report", page, "--resamples", "20", "--json", tmp_path / "s.json")
    assert nearwise("evaluate", trained, tables / "test.csv", *options).exit_code == 0
    text = page.read_text()
    checked = Checker(text)
    assert len(checked.ids) == len(set(checked.ids))
    for part in ("results", "difference from attention", "training of", "attention was"):
        assert part in " ".join(checked.text)
    assert "base alone" in text
    assert "<svg" in text
    assert "seeds" not in text and "t-interval" not in text  # it is one model
    assert json.loads((tmp_path / "s.json").read_text())["n"] == 60


def test_the_page_of_rows_that_were_learned_from_says_so(nearwise, tables, trained, tmp_path):
    page = page_of(nearwise, trained, tables / "train.csv", tmp_path)
    assert "measured on 160 training rows, predicted out of sample" in page
    assert NEW not in page


def test_the_page_is_about_new_rows_where_there_are_some(nearwise, tables, trained, tmp_path):
    page = page_of(nearwise, trained, mixed(tables, tmp_path), tmp_path)
    assert f"measured on 60 {NEW}" in page


def test_the_page_of_images_counts_those_that_were_held_out(nearwise, pictures, tmp_path):
    page = page_of(nearwise, pictures / "model", pictures / "set", tmp_path)
    assert "measured on 20 training images, predicted out of sample" in page


def test_without_its_packages_the_extra_is_named(nearwise, tables, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = tmp_path / "report.html"
    result = nearwise("evaluate", trained, tables / "test.csv", "--report", page)
    assert result.exit_code == 2
    assert result.err == (
        'error: The page of --report needs the extra "figures": pip install nearwise-lab[figures]\n'
    )
    assert nearwise("evaluate", trained, tables / "test.csv", "--resamples", "20").exit_code == 0


def test_the_page_of_numbers_shows_how_far_they_may_be_off(nearwise, tmp_path):
    frame = load_diabetes(as_frame=True).frame.round(5)
    train, test, model = tmp_path / "train.csv", tmp_path / "test.csv", tmp_path / "m"
    frame.iloc[:120].to_csv(train, index=False)
    frame.iloc[120:160].to_csv(test, index=False)
    fit = ("fit", train, "-t", "target", "--preset", "instant", "-o", model, "-q")
    assert nearwise(*fit).exit_code == 0
    page = page_of(nearwise, model, test, tmp_path)
    checked = " ".join(Checker(page).text)
    scores = json.loads((tmp_path / "scores.json").read_text())
    for part in ("RMSE", "PIT", "True against predicted", "The largest errors", "base alone"):
        assert part in checked
    assert f"{scores['metrics']['crps']:.6g}" in checked
    assert page.count("<svg") == 3 and f"measured on 40 {NEW}" in page
    learned = page_of(nearwise, model, train, tmp_path)
    assert "The largest errors" not in learned and learned.count("<svg") == 2
