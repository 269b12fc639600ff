"""Facts beside the metrics."""

import json
import sys
import time

import numpy as np
import pytest

from nearwise.conditions import command_line, hardware, versions
from nearwise.lab.experiments import measure
from nearwise.lab.experiments.measure import PeakMemory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident size is read in /proc")
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "sampled"])
def test_a_passing_allocation_is_seen(kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr(measure, "_reset_high_water", lambda: False)
    with PeakMemory() as memory:
        block = np.ones(64 * 2**20, dtype=np.uint8)
        time.sleep(0.05)
        del block
    assert 60 < memory.mib < 130


def test_nothing_allocated_is_nearly_nothing():
    with PeakMemory() as memory:
        time.sleep(0.02)
    assert memory.mib < 8


def test_versions_and_hardware_are_json():
    facts = {"versions": versions(), "hardware": hardware()}
    assert json.loads(json.dumps(facts)) == facts
    assert {"nearwise", "python", "torch", "scikit-learn"} <= set(facts["versions"])
    assert facts["hardware"]["threads"] >= 1


def test_the_command_hides_the_folder_of_its_program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/some/where/bin/nearwise", "compare", "my file.csv"])
    assert command_line() == "nearwise compare 'my file.csv'"
