"""Bootstrap intervals agree with scipy."""

from functools import partial

import numpy as np
import pytest
from scipy import stats

from nearwise.metrics import accuracy, bootstrap_interval, brier, ece
from tests.metrics.cases import random_case


def test_a_bootstrap_interval_is_near_that_of_scipy():
    y, proba = random_case(0, n=400)
    ours = bootstrap_interval(accuracy, y, proba, n_resamples=2000)
    correct = proba.argmax(axis=1) == y
    theirs = stats.bootstrap(
        (correct,), np.mean, n_resamples=2000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours.estimate == accuracy(y, proba)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    y, proba = random_case(0, n=100)
    interval = partial(bootstrap_interval, partial(ece, n_bins=5), y, proba, n_resamples=50)
    assert interval(random_state=3) == interval(random_state=3)
    assert interval(random_state=3) != interval(random_state=4)


def test_a_lower_level_gives_a_narrower_interval():
    y, proba = random_case(0, n=100)
    wide = bootstrap_interval(brier, y, proba, level=0.99, n_resamples=200)
    narrow = bootstrap_interval(brier, y, proba, level=0.5, n_resamples=200)
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high


def test_one_row_has_an_interval_of_no_width():
    interval = bootstrap_interval(accuracy, [0], [[0.8, 0.2]], n_resamples=10)
    assert interval == (1.0, 1.0, 1.0)
