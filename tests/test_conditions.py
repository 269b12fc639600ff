"""What numbers were made under."""

import json
import subprocess
import sys

from nearwise import conditions
from nearwise.conditions import command_line, hardware, versions


def test_versions_and_hardware_are_json():
    facts = {"versions": versions(), "hardware": hardware()}
    assert json.loads(json.dumps(facts)) == facts
    assert {"nearwise", "python", "torch", "scikit-learn"} <= set(facts["versions"])
    assert facts["hardware"]["threads"] >= 1


def test_the_command_hides_the_folder_of_its_program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/some/where/bin/nearwise", "compare", "my file.csv"])
    assert command_line() == "nearwise compare 'my file.csv'"


def test_from_a_checkout_the_commit_is_named(monkeypatch, tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    package = tmp_path / "src" / "nearwise"
    package.mkdir(parents=True)
    (package / "conditions.py").write_text("a = 1\n")
    monkeypatch.setattr(conditions, "__file__", str(package / "conditions.py"))
    assert conditions._commit.__wrapped__() is None
    for arguments in (("init",), ("add", "."), ("commit", "-m", "One")):
        git(*arguments)
    commit = git("rev-parse", "--short=10", "HEAD")
    assert conditions._commit.__wrapped__() == commit
    (package / "conditions.py").write_text("a = 2\n")
    assert conditions._commit.__wrapped__() == commit + "+"
