"""The lab's commands are in ``nearwise``, and say what they need."""

import sys

import pytest

COMMANDS = ("demo", "compare", "experiment", "report", "probe", "datasets", "field", "vit")


def test_help_lists_the_commands_of_the_lab(nearwise):
    result = nearwise("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f" {command} " in result.out


@pytest.mark.parametrize("command", COMMANDS[:-2])  # the others have commands of their own
def test_each_commands_help_shows_an_example_of_it(nearwise, command):
    result = nearwise(command, "--help")
    assert result.exit_code == 0
    assert f"nearwise {command}" in result.out.split("Examples")[1]


def test_wrong_usage_exits_2_and_says_so_on_standard_error(nearwise):
    result = nearwise("compare", "iris")
    assert (result.exit_code, result.out) == (2, "")
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "-o", "runs"),
        ("report", "runs"),
        ("field", "train", "-o", "runs"),
        ("vit", "train"),
    ],
    ids=" ".join,
)
def test_without_its_packages_the_extra_is_named(nearwise, monkeypatch, arguments):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = nearwise(*arguments)
    assert (result.exit_code, result.out) == (2, "")
    assert result.err == (
        'error: This command needs the extra "figures": pip install nearwise-lab[figures]\n'
    )
