"""Help is readable at 80 columns: options in panels, and room for their texts."""

import re

import pytest
import typer

from nearwise.cli import app
from nearwise.cli.help import OPTIONS

LEAST = 35  # characters for a text
COMMANDS = typer.main.get_command(app.app).commands
PANELS = {
    "fit": ["Arguments", "Data", "Images", "Model", "Output", "Run"],
    "predict": ["Arguments", "Data", "Images", "Model", "Output", "Trust", "Run"],
    "evaluate": ["Arguments", "Data", "Images", "Model", "Output", "Trust", "Run"],
    "clean": ["Arguments", "Data", "Images", "Model", "Output", "Run"],
    "add": ["Arguments", "Data", "Images", "Model", "Output", "Run"],
    "serve": ["Arguments", "Model", "Address", "Access", "Limits", "Run"],
}


def options_of(name):
    return [one for one in COMMANDS[name].params if one.param_type_name == "option"]


@pytest.fixture
def narrow(nearwise, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *words: nearwise(*words, "--help").out


@pytest.mark.parametrize("name", PANELS)
def test_options_stand_in_panels(narrow, name):
    titles = [line for line in narrow(name).splitlines() if re.fullmatch("[A-Z][a-z]+", line)]
    assert [title for title in titles if title != "Examples"] == PANELS[name]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_fits_80_columns(narrow, name):
    lines = narrow(name).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert all(line == line.rstrip() for line in lines)
    indents = [len(re.match(r"( +(?:-\S+(?: \S+)*?|[A-Z]+)  +)\S", line)[1])
               for line in lines if re.match(r"  (-|[A-Z]+  )\S*.*  \S", line)]  # fmt: skip
    assert indents and 80 - max(indents) >= LEAST


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_has_a_panel_and_a_text(name):
    for option in options_of(name):
        assert option.help, option.name
        named = option.name in " ".join(OPTIONS.values()).split()
        assert named or option.rich_help_panel, option.name


def test_examples_fit_80_columns():
    examples = [
        line
        for command in COMMANDS.values()
        for line in command.help.splitlines()
        if line.startswith("  nearwise")
    ]
    assert len(examples) > 40
    assert [line for line in examples if len(line) > 80] == []


def test_the_first_page_lists_commands_before_options(narrow):
    said = narrow()
    assert said.index("With a table of your own") < said.index("--version")
    assert "│" not in said and all(len(line) <= 80 for line in said.splitlines())
