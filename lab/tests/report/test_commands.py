"""Commands that a report prints can be run."""

import pytest
from nearwise_lab.experiments import Record
from nearwise_lab.report.commands import experiment_command, readable_command, record_facts


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
    assert experiment_command("theory", "toys", "v1", records("a script")) == (
        "nearwise experiment theory --dataset toys --preset v1 --out DIR"
    )
    assert experiment_command("main", "toys", "v1", records("a 'torn")).endswith("DIR")


def test_advice_gives_data_and_settings_as_they_were_given():
    ran = "__main__.py experiment main -d 'my toys.csv:y' -p v1 --set=cv=2 --small -q -o a"
    assert experiment_command("theory", "toys", "v1", records(ran)) == (
        "nearwise experiment theory -d 'my toys.csv:y' -p v1 --set=cv=2 --small --out DIR"
    )
    assert "my toys" not in experiment_command("theory", "toys", "v0.5", records(ran))
