"""Smooth ECE agrees with relplot and with direct quadrature."""

import numpy as np
import pytest

from nearwise.metrics import smooth_ece
from tests.metrics.cases import CASES, random_case, vote_case
from tests.reference import metrics_oracles as slow

EACH_CASE = pytest.mark.parametrize(("y", "proba"), CASES.values(), ids=CASES.keys())
# relplot bisects the width to 1/1024, from 0.001 up, and integrates on 200 points.
RELPLOT_PRECISION = 0.0025
# relplot reflects a row at exactly 1.0 onto itself once, not twice, so that it counts half;
# 0.001 further in it counts whole. It also cuts the kernel at a distance of 0.5, which is felt
# where the error passes about 0.2 and has both signs: the case "edges" (0.270 for 0.263).
# Both are held to the definition by quadrature below.
RELPLOT_LARGEST = 0.999


def top_arrays(y, proba):
    confidence, correct = slow.top_label(y, proba)
    return np.array(confidence), np.array(correct, dtype=float)


def relplot_value(y, proba):
    import relplot  # here, for it imports seaborn, which every process that collects would pay

    confidence, correct = top_arrays(y, proba)
    return float(relplot.smECE(np.minimum(confidence, RELPLOT_LARGEST), correct))


@pytest.mark.parametrize("seed", range(5))
def test_smooth_ece_is_that_of_relplot_on_many_rows(seed):
    y, proba = random_case(seed, n=5000, n_classes=3) if seed % 2 else vote_case(seed, n=5000, k=8)
    expected = relplot_value(y, proba)
    assert smooth_ece(y, proba) == pytest.approx(expected, abs=RELPLOT_PRECISION)


@EACH_CASE
def test_smooth_ece_is_the_fixed_point_of_its_definition(y, proba):
    rows = slice(0, 100)
    expected = slow.smooth_ece(*top_arrays(y[rows], proba[rows]))
    assert smooth_ece(y[rows], proba[rows]) == pytest.approx(expected, abs=2e-4)
