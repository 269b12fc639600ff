"""Measures of numbers, against their definitions."""

import numpy as np
import pytest
from scipy import stats

from nearwise.metrics import evaluate_numbers, interval_coverage, pinball_loss, pit_counts

RNG = np.random.default_rng(0)
Y = RNG.normal(3.0, 2.0, 400)
LEVELS = tuple((np.arange(200) + 0.5) / 200)


def test_what_was_given_is_measured_and_no_more():
    guess = Y + RNG.normal(size=400)
    found = evaluate_numbers(Y, guess)
    assert [*found] == ["rmse", "mae", "r2"]
    assert found["rmse"] ** 2 == pytest.approx(np.mean((Y - guess) ** 2))
    assert found["r2"] == pytest.approx(1 - found["rmse"] ** 2 / Y.var())
    ends = np.stack([guess - 1, guess + 1], axis=1)
    more = evaluate_numbers(Y, guess, crps=abs(Y), quantiles=ends, levels=(0.1, 0.9), interval=ends)
    assert [*more][3:] == ["crps", "pinball", "coverage", "width"]
    assert more["coverage"] == pytest.approx(np.mean(abs(Y - guess) <= 1))
    assert more["width"] == pytest.approx(2.0)


def test_twice_the_pinball_loss_nears_the_crps_of_a_normal_distribution():
    quantiles = np.tile(stats.norm(3.0, 2.0).ppf(LEVELS), (400, 1))
    z = (Y - 3.0) / 2.0
    crps = 2 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert 2 * pinball_loss(Y, quantiles, LEVELS) == pytest.approx(crps.mean(), rel=0.005)


def test_targets_at_the_ends_of_their_interval_are_in_it():
    found = interval_coverage([1.0, 2.0, 3.5], [[1, 2], [1, 2], [1, 3]])
    assert found == {"coverage": pytest.approx(2 / 3), "width": pytest.approx(4 / 3)}


def test_pit_counts_are_those_of_a_histogram_where_no_target_has_a_probability():
    p = stats.norm(3.0, 1.0).cdf(Y)
    np.testing.assert_allclose(pit_counts(p, p), np.histogram(p, 10, (0, 1))[0])


def test_a_target_with_a_probability_of_its_own_is_spread_over_it():
    # half of all targets are 0, which is predicted; the rest is uniform in (0, 1)
    y = np.where(np.arange(4000) % 2, 0.0, np.linspace(0, 1, 4000))
    below, up_to = np.where(y == 0, 0.0, 0.5 + y / 2), 0.5 + y / 2
    counts = pit_counts(below, up_to)
    np.testing.assert_allclose(counts, 400, rtol=0.02)
    assert counts.sum() == pytest.approx(4000)


@pytest.mark.parametrize("wrong", [[1.0, 2.0], [[1.0, 2.0]], [[np.nan, 1.0]] * 3])
def test_what_does_not_fit_is_refused(wrong):
    with pytest.raises(ValueError, match=r"inconsistent|NaN"):
        interval_coverage([1.0, 2.0, 3.0], wrong)
