"""``nearwise experiment`` and ``nearwise report``."""

import re
from dataclasses import replace

import pytest
from nearwise_lab.cli.experiment_command import _show_rows
from nearwise_lab.cli.needs import refuse_failed
from nearwise_lab.cli.settings_text import change_settings, parse_settings
from nearwise_lab.experiments import Record, read_records

QUICK = (
    "--set", "backbone=mlp", "--set", "pretrained=false",
    "--set", "epochs=1", "--set", "cnn_epochs=1",
    "--set", "max_rows=200", "--set", "max_test_rows=100", "--device", "cpu",
)  # fmt: skip


@pytest.mark.slow
def test_a_replay_is_run_told_with_its_defects_and_reported(nearwise, tmp_path):
    out = tmp_path / "runs"
    result = nearwise("experiment", "main", "-p", "v0.5", "--small", *QUICK, "-o", out)
    assert result.exit_code == 0, result.err
    assert "leak: A training row finds itself" in result.err
    assert "attention+k-ensemble" in result.out
    assert re.search(r"^ ?v0\.5 +uniform +0\.\d{4} ", result.out, re.MULTILINE)
    assert "condition" not in result.out  # nothing was varied
    assert re.search(r"^digits-images, v0\.5: .*\d+ not measured$", result.out, re.MULTILINE)
    assert "##" not in result.out
    assert {r.preset for r in read_records(out)} == {"v0.5"}
    before = (out / "records.jsonl").read_text()
    (out / "report.html").unlink()
    assert nearwise("report", out).exit_code == 0
    assert (out / "report.html").stat().st_size > 0
    again = nearwise("experiment", "main", "-p", "v0.5", "--small", *QUICK, "-o", out, "-q")
    assert (again.exit_code, again.err) == (0, "")
    assert (out / "records.jsonl").read_text() == before


def test_a_file_of_settings_and_the_option_that_wins_over_it(nearwise, tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text("epochs: 3\nsweep_k: [1, 2]\n")
    out = tmp_path / "runs"
    result = nearwise(
        "experiment",
        "k-sweep",
        "-p",
        "v0.3",
        "--small",
        "--config",
        config,
        *QUICK,
        "-o",
        out,
        "-q",
    )
    assert result.exit_code == 0, result.err
    records = read_records(out)
    assert {r.condition for r in records} == {"k=1", "k=2"}
    assert "k = 2" in result.out


def test_rows_are_means_over_seeds_without_halves(capsys):
    row = Record("toys", "attention", 0, experiment="main", preset="v1")
    scores = {"nll": 0.5, "ece": 0.1, "aurc": 0.0123}
    _show_rows(
        [
            replace(row, accuracy=0.8, **scores),
            replace(row, method="attention:base-alone", part_of="attention", accuracy=0.1),
            replace(row, seed=1, accuracy=0.9, **scores),
            replace(row, method="uniform", status="failed", reason="broke"),
            replace(row, experiment="theory", condition="collapse"),
        ]
    )
    out = capsys.readouterr().out
    cells = next(line for line in out.splitlines() if "attention" in line)
    assert cells.split() == ["v1", "attention", "0.8500", "0.5000", "0.1000", "12.3"]
    assert "alone" not in out
    assert "uniform" not in out
    assert "1 row without these measures: see the report (theory)." in out


def test_failed_rows_are_grouped_by_their_reason():
    methods = ["cnn", "uniform", "cnn", "distance", "attention"]
    failed = [
        Record("toys", m, i, status="failed", reason="no memory") for i, m in enumerate(methods)
    ]
    broke = Record("toys", "cnn", 9, status="failed", reason="broke")
    refuse_failed([Record("toys", "cnn", 0)])
    with pytest.raises(ValueError) as caught:
        refuse_failed([*failed, broke, Record("toys", "cnn", 10)])
    assert str(caught.value).startswith("6 of 7 rows failed; the others are kept")
    assert str(caught.value).endswith(
        "5 rows (cnn, uniform, distance, ...): no memory | 1 row (cnn): broke"
    )


def test_defects_are_not_told_where_the_input_is_refused(nearwise, tmp_path):
    result = nearwise("experiment", "main", "-p", "v0.5", "--set", "epoch=1", "-o", tmp_path / "a")
    assert result.exit_code == 2
    assert "leak" not in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("main", "--preset", "v0.9"), "v0.5"),
        (("main", "--preset", "v0.5", "--set", "epoch=1"), "'epochs'"),
        (("main", "--preset", "v1", "--set", "n_neighbor=1"), "'n_neighbors'"),
        (("main", "--set", "epochs"), "KEY=VALUE"),
        (("main", "--seeds", "4-0"), "Write 0-4"),
        (("main", "--dataset", "digits-image"), "digits-images"),
    ],
)
def test_mistakes_are_one_line(nearwise, tmp_path, arguments, hint):
    result = nearwise("experiment", *arguments, "-o", tmp_path / "runs", "-q")
    assert result.exit_code == 2
    assert hint in result.err
    assert result.err.count("\n") == 1


def test_a_report_needs_records(nearwise, tmp_path):
    result = nearwise("report", tmp_path)
    assert result.exit_code == 2
    assert "records.jsonl" in result.err


def test_settings_of_the_command_line_are_yaml():
    assert parse_settings("--set", ["a=1", "b=[1, 2]", "c=x=y", "a=2.5", "d=null"]) == {
        "a": 2.5, "b": [1, 2], "c": "x=y", "d": None,
    }  # fmt: skip
    assert parse_settings("--set", None) == {}
    given = {"field": {"lr": 1, "preset": "S"}}
    changed = change_settings(given, "--set", ["field.lr=2", "field.model.heads=3", "draws=1"])
    assert changed == {"field": {"lr": 2, "preset": "S", "model": {"heads": 3}}, "draws": 1}
    assert given == {"field": {"lr": 1, "preset": "S"}}
    with pytest.raises(ValueError, match="KEY=VALUE"):
        parse_settings("--set", ["=1"])
    with pytest.raises(ValueError, match="not a value"):
        parse_settings("--set", ["a=[1"])
