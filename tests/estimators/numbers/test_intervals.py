"""Conformal intervals: levels by the size of the prediction."""

import numpy as np
import pytest

from nearwise.estimators.model.mixture import Mixture
from nearwise.estimators.uncertainty.intervals import CalibrationNumbers


def rows(n, *, seed, sizes=10):
    """Mixtures of one width, and targets whose spread grows with the mean, to three times it."""
    rng = np.random.default_rng(seed)
    means = rng.integers(sizes * 100, size=n) / 100
    mixture = Mixture(means[:, None], np.ones((n, 1)), np.ones(n))
    return mixture, means + (1 + 2 * means / 10) * rng.logistic(size=n)


def calibration(n, counts=None, **options):
    mixture, y = rows(n, seed=0, **options)
    counts = np.ones(n) if counts is None else counts
    known = mixture, mixture, y, mixture.cdf(y), np.zeros(n), np.zeros(n), counts
    return CalibrationNumbers(*known)


def covered(known, confidence=0.9):
    """Share of new targets in their intervals, in five parts by the size of the prediction."""
    mixture, y = rows(20_000, seed=1)
    low, high = mixture.quantiles(known.levels(confidence, mixture.mean())).T
    inside = (low <= y) & (y <= high)
    return [inside[at].mean() for at in np.array_split(np.argsort(mixture.mean()), 5)]


def test_small_and_large_predictions_are_covered_alike():
    np.testing.assert_allclose(covered(calibration(3000)), 0.9, atol=0.05)
    np.testing.assert_allclose(covered(calibration(6000), 0.99), 0.99, atol=0.015)


@pytest.mark.parametrize(
    "few",
    [
        {"n": 380},  # two bands would have less than 200 rows each
        {"n": 3000, "counts": np.full(3000, 0.1)},  # groups of ten rows, each of which counts once
    ],
    ids=["rows", "groups"],
)
def test_few_rows_make_one_band_that_is_right_on_average(few):
    found = covered(calibration(**few))
    assert found[0] > 0.95 > 0.85 > found[4]
    assert np.mean(found) == pytest.approx(0.9, abs=0.04)


def test_equal_predictions_are_of_one_band():
    known = calibration(3000, sizes=0.01)
    assert (known.levels(0.9, np.array([0.0, 5.0])) == known.levels(0.9, np.zeros(1))).all()
    assert np.diff(known.levels(0.9, np.zeros(1)))[0, 0] > 0.8
