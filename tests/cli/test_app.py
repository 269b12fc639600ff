"""The front door: help that teaches, a version, exit codes, a quick start."""

import pytest

import nearwise as package
from nearwise.cli import app

COMMANDS = ("fit", "predict", "embed", "evaluate", "add", "inspect", "verify", "clean")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_commands_help_shows_an_example_of_it(nearwise, command):
    result = nearwise(command, "--help")
    assert result.exit_code == 0
    assert f"nearwise {command}" in result.out.split("Examples")[1]
    assert f" {command} " in nearwise("--help").out
    shown = nearwise()
    assert f" {command} " in shown.out + shown.err


def test_version_is_the_packages(nearwise):
    result = nearwise("--version")
    assert (result.exit_code, result.out) == (0, f"nearwise {package.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("fitt",),
        ("fit",),
        ("fit", "a.csv", "--target", "y"),
        ("predict", "m", "d.csv", "--no-such-option"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_says_so_on_standard_error(nearwise, arguments):
    result = nearwise(*arguments)
    assert result.exit_code == 2
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith("error: ") and line.endswith(" --help")


@pytest.mark.parametrize(
    ("line", "said"),
    {
        "fitt": "No such command 'fitt'. Did you mean 'fit'? Help: nearwise --help",
        "fit a.csv --tagret y": "--tagret. Did you mean '--target'? Help: nearwise fit --help",
        "fit a.csv -o m --epochs two": "'--epochs': Input should be a valid integer. Help:",
        "fit a.csv --out": "Option '--out' requires an argument. Help: nearwise fit --help",
        "fit": "Missing argument 'DATA'. Help: nearwise fit --help",
        "vit trian": "No such command 'trian'. Did you mean 'train'? Help: nearwise vit --help",
    }.items(),
)
def test_wrong_usage_names_what_is_near_and_where_help_is(nearwise, line, said):
    assert said in nearwise(*line.split()).err


@pytest.mark.parametrize(
    "command",
    ["compare", "datasets", "demo", "experiment", "field", "probe", "report", "vit"],
)
def test_a_command_of_the_lab_says_how_to_install_it(nearwise, monkeypatch, command):
    own = [one for one in app.app.registered_commands if one.callback.__module__[:9] == "nearwise."]
    monkeypatch.setattr(app.app, "registered_commands", own)
    monkeypatch.setattr(app.app, "registered_groups", [])
    monkeypatch.setattr(app, "_add_plugins", lambda: None)
    result = nearwise(command, "--help")
    assert (result.exit_code, result.out) == (2, "")
    said = result.err
    assert f"'{command}' comes with the lab" in said
    assert "pip install 'nearwise-lab[figures,pdf]'" in said
    assert "Did you mean" not in said


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback_wherever_it_stands(nearwise, tmp_path, place):
    arguments = ["fit", tmp_path / "no.csv", "--target", "y", "--out", tmp_path / "m"]
    arguments.insert(0 if place == "before" else len(arguments), "--debug")
    result = nearwise(*arguments)
    assert result.exit_code == 2 and "Traceback" in result.err
