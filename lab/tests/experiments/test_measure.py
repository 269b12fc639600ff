"""Peak memory."""

import sys
import time

import numpy as np
import pytest
from nearwise_lab.experiments import measure
from nearwise_lab.experiments.measure import PeakMemory


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
