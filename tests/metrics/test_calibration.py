"""Calibration errors agree with slow loops, torchmetrics and scikit-learn."""

import numpy as np
import pytest
import torch

from nearwise.metrics import (
    classwise_ece,
    ece,
    equal_mass_ece,
    reliability_bins,
    signed_gap,
)
from nearwise.metrics.calibration import equal_mass_bins, equal_width_bins
from tests.metrics.cases import CASES, random_case
from tests.reference import metrics_oracles as slow

EACH_CASE = pytest.mark.parametrize(("y", "proba"), CASES.values(), ids=CASES.keys())
BINNED = {
    ece: slow.ece,
    equal_mass_ece: slow.equal_mass_ece,
    classwise_ece: slow.classwise_ece,
}


@EACH_CASE
@pytest.mark.parametrize("n_bins", [1, 10, 15, 40])
@pytest.mark.parametrize("metric", BINNED, ids=lambda metric: metric.__name__)
def test_binned_errors_follow_their_definition(metric, n_bins, y, proba):
    expected = BINNED[metric](y, proba, n_bins)
    assert metric(y, proba, n_bins=n_bins) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n_bins", [1, 10, 15])
@pytest.mark.parametrize("name", ["random", "random-two-classes", "random-26-classes"])
def test_ece_is_that_of_torchmetrics_below_confidence_one(name, n_bins):
    # Here, for it imports transformers, which every process that only collects tests would pay.
    from torchmetrics.functional.classification import multiclass_calibration_error

    y, proba = CASES[name]
    assert proba.max() < 1.0
    expected = multiclass_calibration_error(
        torch.tensor(proba), torch.tensor(y), proba.shape[1], n_bins=n_bins
    )
    assert ece(y, proba, n_bins=n_bins) == pytest.approx(float(expected), abs=1e-6)


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


def test_equal_mass_bins_without_ties_are_even_slices_of_the_sorted_rows(rng):
    values = rng.random(150)
    bins = equal_mass_bins(values, 15)
    for position, rows in enumerate(np.split(np.argsort(values), 15)):
        assert (bins[rows] == position).all()


def test_equal_mass_bins_never_split_a_tie(rng):
    values = rng.integers(0, 7, 1000) / 7
    bins = equal_mass_bins(values, 15)
    for value in np.unique(values):
        assert np.unique(bins[values == value]).size == 1


def test_equal_mass_bins_ascend_with_the_value(rng):
    values = np.sort(rng.integers(0, 40, 300) / 40)
    bins = equal_mass_bins(values, 15)
    assert (np.diff(bins) >= 0).all()
    assert bins.min() >= 0 and bins.max() <= 14


@EACH_CASE
def test_signed_gap_is_confidence_minus_accuracy(y, proba):
    confidence, correct = slow.top_label(y, proba)
    assert signed_gap(y, proba) == pytest.approx(np.mean(confidence) - np.mean(correct))


@EACH_CASE
def test_one_bin_gives_the_absolute_signed_gap(y, proba):
    gap = abs(signed_gap(y, proba))
    assert ece(y, proba, n_bins=1) == pytest.approx(gap, abs=1e-12)
    assert equal_mass_ece(y, proba, n_bins=1) == pytest.approx(gap, abs=1e-12)


def test_true_probabilities_have_a_small_error_and_sharpened_ones_a_large_one():
    rng = np.random.default_rng(1)
    proba = rng.dirichlet(np.ones(3), size=50_000)
    y = (rng.random((50_000, 1)) > proba.cumsum(axis=1)).sum(axis=1).clip(max=2)
    sharp = proba**3 / (proba**3).sum(axis=1, keepdims=True)
    for metric in BINNED:
        assert metric(y, proba) < 0.01
        assert metric(y, sharp) > 0.1
    assert signed_gap(y, sharp) > 0.1


@pytest.mark.parametrize("n_bins", [0, -1, 1.5, True])
@pytest.mark.parametrize("metric", [*BINNED, reliability_bins], ids=lambda m: m.__name__)
def test_a_bin_count_that_is_none_is_refused(metric, n_bins):
    with pytest.raises(ValueError, match="n_bins must be an integer of at least 1"):
        metric(*random_case(0, n=5), n_bins=n_bins)
