"""What numbers were made under."""

import json
import sys

import pytest

from nearwise.conditions import command_line, hardware, readable_command, versions


def test_versions_and_hardware_are_json():
    facts = {"versions": versions(), "hardware": hardware()}
    assert json.loads(json.dumps(facts)) == facts
    assert {"nearwise", "python", "torch", "scikit-learn"} <= set(facts["versions"])
    assert facts["hardware"]["threads"] >= 1


def test_the_command_hides_the_folder_of_its_program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/some/where/bin/nearwise", "compare", "my file.csv"])
    assert command_line() == "nearwise compare 'my file.csv'"


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
