"""Commands that a report prints can be run."""

import pytest
from nearwise_lab.experiments import Record
from nearwise_lab.report.commands import readable_command, record_facts


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
