"""Means, words for differences, and differences over rows, against scipy and plain loops."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from nearwise.lab.comparisons import paired_difference
from nearwise.lab.results.measures import (
    MEASURES,
    Measure,
    Predictions,
    better,
    difference_over_rows,
    mean_with_interval,
)
from nearwise.metrics import aurc, evaluate_probabilities

NLL = next(m for m in MEASURES if m.key == "nll")
ACCURACY = next(m for m in MEASURES if m.key == "accuracy")


def test_the_interval_is_students():
    values = [0.1, 0.4, 0.25, 0.3]
    mean = mean_with_interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (mean.low, mean.high) == pytest.approx((low, high))
    assert mean.n == 4


def test_one_seed_has_no_interval():
    mean = mean_with_interval([0.5])
    assert (mean.mean, mean.low, mean.high) == (0.5, None, None)


def test_a_difference_inside_its_interval_is_none():
    noise = paired_difference([1.0, 2.0, 3.0], [1.1, 1.9, 3.05])
    clear = paired_difference([1.0, 2.0, 3.0], [2.0, 3.1, 4.05])
    assert better(noise, NLL) == "none"
    assert better(clear, NLL) == "better"
    assert better(clear, ACCURACY) == "worse"
    assert better(clear, Measure("fit_seconds", "fit s", 1, None)) == "none"


def predictions(rng, y, sharpness):
    proba = rng.dirichlet(np.ones(3), size=len(y)) + sharpness * np.eye(3)[y]
    proba /= proba.sum(axis=1, keepdims=True)
    return Predictions(y, proba, np.arange(len(y)), list("abc"))


@pytest.mark.parametrize("key", ["accuracy", "nll", "brier", "ece", "aurc"])
def test_on_one_split_the_difference_is_that_of_the_metrics(key):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    a, b = predictions(rng, y, 0.2), predictions(rng, y, 0.5)
    found = difference_over_rows(key, a, b)
    expected = [evaluate_probabilities(p.y, p.proba)[key] for p in (a, b)]
    assert found.mean == pytest.approx(expected[0] - expected[1], abs=1e-12)
    assert found.low < found.mean < found.high or key == "ece"
    assert found.n == 200


def test_other_test_rows_are_not_compared():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 20)
    a = predictions(rng, y, 0.2)
    moved = dataclasses.replace(a, test_index=a.test_index + 1)
    assert difference_over_rows("nll", a, moved) is None
    assert difference_over_rows("augrc", a, a) is None


def test_aurc_is_shown_in_thousandths():
    shown = next(m for m in MEASURES if m.key == "aurc")
    assert shown.scale * aurc([0, 1], [[0.9, 0.1], [0.8, 0.2]]) == pytest.approx(250)
