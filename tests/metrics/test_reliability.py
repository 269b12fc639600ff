"""Bins of a reliability diagram add up to the calibration error and carry intervals."""

import numpy as np
import pytest
from scipy.stats import binomtest

from nearwise.metrics import ece, equal_mass_ece, reliability_bins
from tests.metrics.cases import EACH_CASE


@EACH_CASE
@pytest.mark.parametrize(
    ("strategy", "metric"),
    [("uniform", ece), ("quantile", equal_mass_ece)],
    ids=["uniform", "quantile"],
)
def test_bins_add_up_to_the_calibration_error(strategy, metric, y, proba):
    bins = reliability_bins(y, proba, strategy=strategy)
    full = bins.count > 0
    gap = np.abs(bins.confidence - bins.accuracy)[full]
    assert bins.count.sum() == y.size
    assert (bins.count[full] * gap).sum() / y.size == pytest.approx(metric(y, proba), abs=1e-12)


@EACH_CASE
@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_bins_hold_their_rows_between_their_ends(strategy, y, proba):
    bins = reliability_bins(y, proba, strategy=strategy, n_bins=7)
    full = bins.count > 0
    slack = 1e-12  # the mean of equal numbers may differ from them in the last digit
    assert (bins.lower[full] <= bins.confidence[full] + slack).all()
    assert (bins.confidence[full] <= bins.upper[full] + slack).all()


@EACH_CASE
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_intervals_are_wilsons(level, y, proba):
    bins = reliability_bins(y, proba, level=level)
    for i in np.flatnonzero(bins.count):
        hits = round(bins.accuracy[i] * bins.count[i])
        test = binomtest(hits, int(bins.count[i]))
        expected = test.proportion_ci(level, method="wilson")
        assert (bins.low[i], bins.high[i]) == pytest.approx(tuple(expected), abs=1e-9)


def test_an_empty_bin_has_no_accuracy_and_no_interval():
    bins = reliability_bins([0], [[0.95, 0.05]], n_bins=10)
    assert np.array_equal(bins.count, [0] * 9 + [1])
    for values in (bins.confidence, bins.accuracy, bins.low, bins.high):
        assert np.isnan(values[:9]).all() and np.isfinite(values[9])


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match='must be "uniform" or "quantile", got \'mass\''):
        reliability_bins([0], [[1.0]], strategy="mass")
