"""Calibration errors agree with slow loops, the smooth one with direct quadrature."""

import numpy as np
import pytest

from nearwise.metrics import (
    classwise_ece,
    ece,
    equal_mass_ece,
    reliability_bins,
    signed_gap,
    smooth_ece,
)
from nearwise.metrics.calibration import equal_width_bins
from tests.metrics.cases import EACH_CASE, random_case
from tests.reference import metrics_oracles as slow

BINNED = {ece: slow.ece, equal_mass_ece: slow.equal_mass_ece, classwise_ece: slow.classwise_ece}


@EACH_CASE
@pytest.mark.parametrize("n_bins", [1, 10, 15, 40])
@pytest.mark.parametrize("metric", BINNED, ids=lambda metric: metric.__name__)
def test_binned_errors_follow_their_definition(metric, n_bins, y, proba):
    expected = BINNED[metric](y, proba, n_bins)
    assert metric(y, proba, n_bins=n_bins) == pytest.approx(expected, abs=1e-12)


def test_a_confidence_of_one_lies_in_the_last_bin_and_in_no_bin_of_its_own():
    # One row of exactly 1.0 that is wrong and one of 0.95 that is right share the last bin:
    # |0.975 - 0.5| = 0.475. torchmetrics 1.9 keeps 1.0 apart and says 0.525.
    y, proba = np.array([1, 0]), np.array([[1.0, 0.0], [0.95, 0.05]])
    assert ece(y, proba) == pytest.approx(0.475)
    assert reliability_bins(y, proba).count[-1] == 2


@pytest.mark.parametrize("n_bins", [1, 2, 3, 7, 10, 15, 49, 100])
def test_an_edge_belongs_to_the_bin_above_it_and_one_to_the_last(n_bins):
    edges = np.arange(n_bins + 1) / n_bins
    assert np.array_equal(equal_width_bins(edges, n_bins), [*range(n_bins), n_bins - 1])
    below = np.nextafter(edges[1:], 0)
    assert np.array_equal(equal_width_bins(below, n_bins), range(n_bins))


@EACH_CASE
def test_signed_gap_is_confidence_minus_accuracy(y, proba):
    confidence, correct = slow.top_label(y, proba)
    assert signed_gap(y, proba) == pytest.approx(np.mean(confidence) - np.mean(correct))


@pytest.mark.parametrize("n_bins", [0, -1, 1.5, True])
@pytest.mark.parametrize("metric", [*BINNED, reliability_bins], ids=lambda m: m.__name__)
def test_a_bin_count_that_is_none_is_refused(metric, n_bins):
    with pytest.raises(ValueError, match="n_bins must be an integer of at least 1"):
        metric(*random_case(0, n=5), n_bins=n_bins)


@EACH_CASE
def test_smooth_ece_is_the_fixed_point_of_its_definition(y, proba):
    confidence, correct = slow.top_label(y[:100], proba[:100])
    expected = slow.smooth_ece(np.array(confidence), np.array(correct, dtype=float))
    assert smooth_ece(y[:100], proba[:100]) == pytest.approx(expected, abs=2e-4)
