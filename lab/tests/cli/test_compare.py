"""``nearwise compare``: tables and a page from the same splits, finished rows kept."""

import pandas as pd
import pytest
from nearwise_lab.experiments import read_records
from nearwise_lab.report import demo

METHODS = "knn-uniform,knn-distance"


def test_compare_writes_records_tables_and_one_page(nearwise, tmp_path):
    out = tmp_path / "runs"
    result = nearwise("compare", "iris", "--methods", METHODS, "--seeds", "0-2", "-o", out)
    assert result.exit_code == 0
    assert "knn-uniform" in result.out
    assert {(r.method, r.seed) for r in read_records(out)} == {
        (method, seed) for method in METHODS.split(",") for seed in (0, 1, 2)
    }
    for name in ("results.md", "results.tex", "results.csv", "results.json", "report.html"):
        assert (out / name).stat().st_size > 0
    page = (out / "report.html").read_text()
    assert "<script src=" not in page
    assert "http-equiv" not in page


def test_finished_rows_are_kept_and_new_ones_added(nearwise, tmp_path):
    out = tmp_path / "runs"
    command = ("compare", "iris", "-q", "-o", out, "--methods")
    assert nearwise(*command, "knn-uniform", "--seeds", "0").exit_code == 0
    first = (out / "records.jsonl").read_text()
    assert nearwise(*command, METHODS, "--seeds", "0,1").exit_code == 0
    assert (out / "records.jsonl").read_text().startswith(first)
    assert len(read_records(out)) == 4


def test_a_table_of_ones_own_and_label_noise(nearwise, tables, tmp_path):
    options = ("--methods", "knn-uniform", "--seeds", "0", "--noise", "0.3", "-q")
    frame = pd.read_csv(tables / "train.csv").drop(columns="row")
    frame.to_csv(tmp_path / "mine.csv", index=False)
    out = tmp_path / "runs"
    assert nearwise("compare", f"{tmp_path}/mine.csv:label", "-o", out, *options).exit_code == 0
    (record,) = read_records(out)
    assert (record.dataset, record.noise) == ("mine", 0.3)


@pytest.mark.slow
def test_the_demo_prints_its_table_and_its_page(nearwise, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "DEMO_METHODS", ("knn-uniform", "attention-instant"))
    result = nearwise("demo", "-o", tmp_path / "demo", "--seed", "1")
    assert result.exit_code == 0
    assert "attention-instant" in result.out and "contributions of base and neighbors" in result.out
    page = tmp_path / "demo" / "report.html"
    assert str(page) in result.err.replace("\n", "")
    assert "data:image/png;base64," in page.read_text(encoding="utf-8")
    again = nearwise("demo", "-o", tmp_path / "demo", "--seed", "1", "-q")
    assert (again.exit_code, again.out, again.err) == (0, "", "")
    assert len(read_records(tmp_path / "demo")) == 4


def test_wrong_names_and_rates_are_one_line(nearwise, tmp_path):
    for arguments, hint in (
        (("irs",), "'iris'"),
        (("iris", "--methods", "knn-unifrom"), "'knn-uniform'"),
        (("iris", "--noise", "1.5"), "noise"),
        (("iris", "--seeds", "4-0"), "Write 0-4"),
    ):
        result = nearwise("compare", *arguments, "-o", tmp_path / "runs", "-q")
        assert result.exit_code == 2
        assert hint in result.err
        assert result.err.count("\n") == 1


def test_foundation_models_without_weights_are_left_out_with_one_line(nearwise, tmp_path):
    options = ("--seeds", "0", "-q", "-o", tmp_path / "runs")
    result = nearwise("compare", "iris", "--methods", "tabicl,knn-uniform", *options)
    assert result.exit_code == 0
    (note,) = [line for line in result.err.splitlines() if "tabicl" in line]
    assert note.startswith("note: tabicl left out") and "--peer-weights tabicl=PATH" in note
    assert [r.method for r in read_records(tmp_path / "runs")] == ["knn-uniform"]
    result = nearwise("compare", "iris", "--peer-weights", f"tabicl={tmp_path}/none", *options)
    assert result.exit_code == 2
    assert "no checkpoint at" in result.err
