"""``nearwise experiment`` and ``nearwise report``."""

import pytest

from nearwise.cli.parsing import parse_settings
from nearwise.experiments import read_records

QUICK = (
    "--set", "backbone=mlp", "--set", "epochs=1", "--set", "cnn_epochs=1",
    "--set", "max_rows=200", "--set", "max_test_rows=100", "--device", "cpu",
)  # fmt: skip


def test_a_replay_is_run_told_with_its_defects_and_reported(nearwise, tmp_path):
    out = tmp_path / "runs"
    result = nearwise("experiment", "main", "-p", "v0.5", "--small", *QUICK, "-o", out)
    assert result.exit_code == 0, result.err
    assert "leak: A training row finds itself" in result.err
    assert "attention+k-ensemble" in result.out
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


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("main", "--preset", "v0.9"), "v0.5"),
        (("main", "--preset", "v0.5", "--set", "epoch=1"), "'epochs'"),
        (("main", "--preset", "v1", "--set", "num_head=1"), "'num_heads'"),
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


def test_help_has_examples(nearwise):
    for command in ("experiment", "report"):
        result = nearwise(command, "--help")
        assert result.exit_code == 0
        assert f"nearwise {command}" in result.out


def test_settings_of_the_command_line_are_yaml():
    assert parse_settings("--set", ["a=1", "b=[1, 2]", "c=x=y", "a=2.5", "d=null"]) == {
        "a": 2.5, "b": [1, 2], "c": "x=y", "d": None,
    }  # fmt: skip
    assert parse_settings("--set", None) == {}
    with pytest.raises(ValueError, match="KEY=VALUE"):
        parse_settings("--set", ["=1"])
    with pytest.raises(ValueError, match="not a value"):
        parse_settings("--set", ["a=[1"])
