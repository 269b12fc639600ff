"""``nearwise evaluate --report``: one page about the model."""

import json
import sys

from lab.tests.report.pages import Checker


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


def test_without_its_packages_the_extra_is_named(nearwise, tables, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = tmp_path / "report.html"
    result = nearwise("evaluate", trained, tables / "test.csv", "--report", page)
    assert result.exit_code == 2
    assert result.err == (
        'error: The page of --report needs the extra "figures": pip install nearwise-lab[figures]\n'
    )
    assert nearwise("evaluate", trained, tables / "test.csv", "--resamples", "20").exit_code == 0
