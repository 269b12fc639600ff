"""What numbers were made under."""

import json
import os
import subprocess
import sys

import pytest

from nearwise import conditions
from nearwise.conditions import available_threads, command_line, hardware, versions


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


def machine_with(monkeypatch, tmp_path, cores, groups, quotas):
    """Pretend to have cores, control groups of this process, and files that limit these."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("\n".join(groups) + "\n")
    for path, words in quotas.items():
        file = tmp_path / "cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(words + "\n")
    monkeypatch.setattr(conditions, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(conditions, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setattr(conditions, "_cpu_quota", conditions._cpu_quota.__wrapped__)


V1 = "cpu,cpuacct/docker/a/cpu.cfs_{}_us"


@pytest.mark.parametrize(
    ("groups", "quotas", "threads"),
    [
        (["0::/"], {"cpu.max": "150000 100000"}, 2),
        (["0::/"], {"cpu.max": "max 100000"}, 64),
        (["0::/"], {}, 64),
        # A container that sees the names of its host, and a service in a slice that has a limit.
        (["0::/docker/a"], {"cpu.max": "50000 100000"}, 1),
        (["0::/a.slice/b"], {"a.slice/cpu.max": "300000 100000", "a.slice/b/cpu.max": "max 1"}, 3),
        (
            ["3:cpu,cpuacct:/docker/a"],
            {V1.format("quota"): "400000", V1.format("period"): "100000"},
            4,
        ),
        (["3:cpu:/"], {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        (["3:memory:/a"], {"cpu.max": "100000 100000"}, 64),  # not a group of processors
    ],
    ids=str,
)
def test_a_share_of_a_machine_counts_as_that_many_processors(
    monkeypatch, tmp_path, groups, quotas, threads
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    machine_with(monkeypatch, tmp_path, 64, groups, quotas)
    assert available_threads() == threads


@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("16", 8), ("2,1", 2), ("0", 8), ("", 8)])
def test_threads_that_the_user_sets_are_the_most(monkeypatch, tmp_path, given, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    machine_with(monkeypatch, tmp_path, 8, ["0::/"], {})
    assert available_threads() == threads
