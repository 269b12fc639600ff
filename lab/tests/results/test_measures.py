"""Means, words for differences, and differences over rows, against scipy and plain loops."""

import dataclasses

import numpy as np
import pytest
from nearwise_lab.comparisons import paired_difference
from nearwise_lab.results.measures import (
    MEASURES,
    Measure,
    Predictions,
    better,
    difference_over_rows,
    difference_over_seeds_and_rows,
    mean_with_interval,
)
from scipy import stats

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


def of_skill(skill, seed, n=400, rows_seed=0):
    """Predictions of a method on test rows; `rows_seed` stands for the split."""
    rng = np.random.default_rng([rows_seed, 7])
    y, index = rng.integers(0, 3, n), rng.permutation(10 * n)[:n]
    logits = np.random.default_rng(seed).normal(size=(n, 3))
    logits[np.arange(n), y] += skill
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return Predictions(y, proba, index, ["a", "b", "c"])


@pytest.mark.parametrize("key", ["accuracy", "nll", "ece", "aurc"])
def test_the_difference_over_seeds_and_rows_is_the_mean_of_the_seeds(key):
    pairs = [(of_skill(2.0, s), of_skill(1.0, 10 + s)) for s in range(3)]
    found = difference_over_seeds_and_rows(key, pairs)
    each = [difference_over_rows(key, a, b).mean for a, b in pairs]
    assert found.mean == pytest.approx(np.mean(each))
    assert found.low < found.mean < found.high
    assert found.n == 3
    assert difference_over_seeds_and_rows(key, pairs).low == found.low


def test_one_seed_gives_the_interval_over_its_rows():
    pair = of_skill(2.0, 0), of_skill(1.7, 1)
    found = difference_over_seeds_and_rows("nll", [pair])
    alone = difference_over_rows("nll", *pair)
    width = alone.high - alone.low
    assert found.low == pytest.approx(alone.low, abs=0.1 * width)
    assert found.high == pytest.approx(alone.high, abs=0.1 * width)


def test_seeds_that_disagree_widen_the_interval():
    alike = [(of_skill(1.5, s), of_skill(1.0, 20 + s)) for s in range(3)]
    apart = [(of_skill(0.5 + s, s), of_skill(1.0, 20 + s)) for s in range(3)]

    def width(pairs):
        found = difference_over_seeds_and_rows("nll", pairs)
        return found.high - found.low

    assert width(apart) > 2 * width(alike)


def test_seeds_with_rows_of_their_own_have_students_interval():
    others = [(of_skill(1.5, s, rows_seed=s), of_skill(1.0, 9, rows_seed=s)) for s in (3, 4, 5)]
    found = difference_over_seeds_and_rows("nll", others)
    each = [difference_over_rows("nll", a, b).mean for a, b in others]
    expected = paired_difference(each, np.zeros(3))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("of_seeds", "of_rows"), [(1.0, 0.0), (0.05, 1.0), (0.0, 1.0)])
def test_the_interval_holds_new_seeds_and_rows_as_often_as_it_says(of_seeds, of_rows):
    """Three seeds: a bootstrap over these holds the true difference in 72 % of such draws."""
    rng, n, held = np.random.default_rng(0), 60, 0
    for _ in range(400):
        rows, pairs = of_rows * rng.normal(size=n), []
        for seed in of_seeds * rng.normal(size=3):
            # in a class of two, the NLL of the first method minus that of the second is `losses`
            losses = 0.02 * (rows + seed + 0.1 * rng.normal(size=n))
            first, second = np.exp(-0.7 - losses), np.full(n, np.exp(-0.7))
            proba = [np.stack([p, 1 - p], axis=1) for p in (first, second)]
            kept = [Predictions(np.zeros(n, int), p, np.arange(n), ["a", "b"]) for p in proba]
            pairs.append(tuple(kept))
        found = difference_over_seeds_and_rows("nll", pairs)
        held += found.low <= 0 <= found.high
    assert 0.92 <= held / 400 <= 0.99


def test_predictions_of_other_rows_are_not_paired():
    pair = of_skill(2.0, 0), of_skill(1.0, 1, rows_seed=1)
    assert difference_over_seeds_and_rows("nll", [pair]) is None
    assert difference_over_seeds_and_rows("nll", []) is None
    assert difference_over_seeds_and_rows("macro_f1", [(pair[0], pair[0])]) is None
