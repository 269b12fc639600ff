"""Commands that a report prints can be run."""

import json

import pytest
from nearwise_lab.experiments import Record
from nearwise_lab.report.commands import (
    efficiency_command,
    experiment_command,
    readable_command,
)
from nearwise_lab.report.facts import record_facts


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("__main__.py experiment main -o runs/a", "nearwise experiment main -o runs/a"),
        ("/somewhere/cli/__main__.py compare iris", "nearwise compare iris"),
        ("nearwise compare iris", "nearwise compare iris"),
        ("my__main__.py", "my__main__.py"),
        ("study.py --x __main__.py", "study.py --x __main__.py"),
        ("", ""),
    ],
)
def test_a_recorded_module_is_shown_as_the_program(recorded, shown):
    assert readable_command(recorded) == shown


def test_facts_show_each_command_once():
    commands = ["__main__.py compare iris", "nearwise compare iris"]
    facts = dict(record_facts([Record("iris", "uniform", 0, command=c) for c in commands]))
    assert facts["Commands"] == "nearwise compare iris"


def records(command):
    return [Record("toys", "uniform", 0, experiment="main", preset="v1", command=command)]


def test_advice_says_where_to():
    assert experiment_command("theory", "toys", "v1", records("a script"), None) == (
        "nearwise experiment theory --dataset toys --preset v1 --out DIR"
    )
    assert efficiency_command(None) == "nearwise experiment efficiency --out DIR"


def test_advice_gives_data_and_settings_as_they_were_given():
    ran = "__main__.py experiment main -d 'my toys.csv:y' -p v1 --set=cv=2 --small -q -o a"
    assert experiment_command("theory", "toys", "v1", records(ran), None) == (
        "nearwise experiment theory --dataset 'my toys.csv:y' --set cv=2 --preset v1 "
        "--small --out DIR"
    )
    assert "my toys" not in experiment_command("theory", "toys", "v0.5", records(ran), None)
    assert experiment_command("main", "toys", "v1", records("a 'torn"), None).endswith("DIR")


def test_advice_is_small_where_the_folder_is(tmp_path):
    small = {"max_rows": 1200, "ablations": ["full"]}
    stored = {"presets": {"v1 on toys": small, "v0.5 on toys": {"max_rows": None}}}
    (tmp_path / "settings.json").write_text(json.dumps(stored))
    assert "--small" in experiment_command("theory", "toys", "v1", [], tmp_path)
    assert "--small" not in experiment_command("theory", "toys", "v0.5", [], tmp_path)
    assert "--small" in efficiency_command(tmp_path)
    (tmp_path / "settings.json").write_text("torn")
    assert "--small" not in efficiency_command(tmp_path)
