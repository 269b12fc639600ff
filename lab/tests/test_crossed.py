"""Intervals over seeds and rows."""

import numpy as np
import pytest
from nearwise_lab.comparisons import crossed_difference
from scipy import stats


def test_one_seed_gives_the_interval_over_rows():
    row = np.random.default_rng(0).integers(-1, 2, 200).astype(float)
    found = crossed_difference(row[None])
    low, high = stats.t.interval(0.95, 199, row.mean(), stats.sem(row))
    assert (found.mean, found.low, found.high) == pytest.approx((row.mean(), low, high))


def test_seeds_that_differ_widen_the_interval():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 300)) * 0.1 + 0.5
    offsets = np.array([[-1], [0], [1]])
    alike, apart = crossed_difference(rows), crossed_difference(rows + offsets)
    assert alike.verdict == "higher" and apart.verdict == "none"
    assert apart.mean == pytest.approx(alike.mean)


def test_the_interval_covers_at_least_its_level():
    """400 studies with effects of seeds, of rows and of chance; the truth is 0."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        d = rng.normal(size=(4, 1)) * 0.1 + rng.normal(size=(1, 60)) + rng.normal(size=(4, 60))
        found = crossed_difference(d)
        hits += found.low <= 0 <= found.high
    assert hits / 400 >= 0.93


def test_no_difference_anywhere_is_none():
    found = crossed_difference(np.zeros((3, 10)))
    assert (found.low, found.high, found.verdict) == (0.0, 0.0, "none")


@pytest.mark.parametrize("bad", [np.zeros(4), np.zeros((0, 4)), np.zeros((2, 1))])
def test_another_shape_is_refused(bad):
    with pytest.raises(ValueError, match="n_seeds, n_rows"):
        crossed_difference(bad)


def test_unfinished_seeds_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        crossed_difference([[0.0, np.nan]])
