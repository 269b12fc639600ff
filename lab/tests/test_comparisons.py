"""Comparisons agree with scipy and say "none" when 0 is inside."""

import json

import numpy as np
import pytest
from nearwise_lab.comparisons import (
    FEW_ROWS,
    crossed_difference,
    holm,
    paired_bootstrap,
    paired_difference,
    rank_methods,
    with_score_interval,
)
from scipy import stats

from nearwise.metrics import brier, ece
from tests.metrics.cases import random_case


@pytest.mark.parametrize("n", [2, 5, 30])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_t_interval_is_that_of_the_paired_t_test(n, level, rng):
    a, b = rng.normal(0.3, 0.1, n), rng.normal(0.25, 0.1, n)
    ours = paired_difference(a, b, level=level)
    test = stats.ttest_rel(a, b)
    theirs = test.confidence_interval(level)
    assert ours.p_value == pytest.approx(test.pvalue)
    assert ours.n == n and ours.mean == pytest.approx(np.mean(a - b))
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_the_row_bootstrap_is_near_the_t_interval_on_many_rows(rng):
    a, b = rng.random(2000), rng.random(2000)
    t = paired_difference(a, b)
    bootstrap = paired_difference(a, b, method="bootstrap", n_resamples=2000)
    assert bootstrap.method == "bootstrap"
    assert (bootstrap.low, bootstrap.high) == pytest.approx((t.low, t.high), abs=0.002)


def differing(n, first, second):
    """Differences of n rows of which some are right by the one or the other alone."""
    return np.repeat([1.0, -1.0, 0.0], [first, second, n - first - second])


@pytest.mark.parametrize(("first", "second"), [(0, 0), (4, 0), (0, 3), (6, 5)])
def test_few_differing_rows_have_an_interval_of_wilsons_limits(first, second):
    rows = differing(100, first, second)
    found = with_score_interval(paired_difference(rows, 0 * rows, method="bootstrap"), rows)
    limits = [stats.binomtest(n, 100).proportion_ci(0.95, method="wilson") for n in (first, second)]
    p, q = first / 100, second / 100
    low = p - q - np.hypot(p - limits[0].low, limits[1].high - q)
    high = p - q + np.hypot(limits[0].high - p, q - limits[1].low)
    assert found.low <= low + 1e-12 and found.high >= high - 1e-12
    assert found.high - found.low > 0.03


def test_many_differing_rows_keep_their_interval():
    rows = differing(400, FEW_ROWS, 1)
    plain = paired_difference(rows, 0 * rows)
    assert with_score_interval(plain, rows) == plain


def test_the_score_interval_covers_where_the_spread_of_few_rows_does_not(rng):
    truth, plain, score = 0.02, 0, 0
    for _ in range(400):
        first, second, _ = rng.multinomial(60, [0.03, 0.01, 0.96])
        rows = differing(60, first, second)
        found = paired_difference(rows, 0 * rows)
        wider = with_score_interval(found, rows)
        plain += found.low <= truth <= found.high
        score += wider.low <= truth <= wider.high
    assert score / 400 >= 0.94 > 0.9 > plain / 400


def test_a_contrast_of_four_accuracies_is_scaled_to_its_largest_difference():
    rows = differing(100, 3, 0)
    one = with_score_interval(paired_difference(rows, 0 * rows), rows)
    two = with_score_interval(paired_difference(2 * rows, 0 * rows), 2 * rows, most=2.0)
    assert (two.low, two.high) == pytest.approx((2 * one.low, 2 * one.high))


def test_a_paired_bootstrap_of_a_mean_is_the_row_bootstrap_of_its_losses():
    y, a = random_case(0, n=300)
    b = np.full_like(a, 0.25)
    rows = np.arange(y.size)
    loss_a, loss_b = (((p - np.eye(4)[y]) ** 2).sum(axis=1) for p in (a, b))
    ours = paired_bootstrap(brier, y, a, b, n_resamples=100)
    expected = paired_difference(loss_a[rows], loss_b[rows], method="bootstrap", n_resamples=100)
    assert ours.n == expected.n == 300
    assert (ours.mean, ours.low, ours.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )


def test_the_verdict_is_none_exactly_when_the_interval_holds_zero():
    steady, b = np.array([0.30, 0.31, 0.29, 0.30]), np.array([0.2, 0.21, 0.2, 0.19])
    assert paired_difference(steady, b).verdict == "higher"
    assert paired_difference(b, steady).verdict == "lower"
    assert paired_difference(steady, steady[::-1]).verdict == "none"
    assert paired_difference(steady, steady).verdict == "none"
    y, proba = random_case(0, n=50)
    assert paired_bootstrap(ece, y, proba, proba, n_resamples=20).verdict == "none"


@pytest.mark.parametrize("method", ["t", "bootstrap"])
def test_one_pair_proves_nothing(method):
    difference = paired_difference([0.9], [0.1], method=method)
    assert difference.verdict == "none"
    assert difference.as_dict()["low"] is None
    json.dumps(difference.as_dict(), allow_nan=False)
    one_row = paired_bootstrap(brier, [0], [[0.9, 0.1]], [[0.1, 0.9]])
    assert one_row.verdict == "none" and one_row.n == 1


def test_a_difference_prints_with_its_interval_its_count_and_its_verdict():
    text = str(paired_difference([0.5, 0.6], [0.5, 0.6]))
    assert text == "+0 [+0, +0] (n=2, none)"


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ([1, 2], [1], {}, "pairs of one shape"),
        ([], [], {}, "a and b are empty"),
        ([1, np.nan], [1, 2], {}, "NaN or infinity in pair 1"),
        ([1, 2], [1, 2], {"method": "z"}, 'must be "t" or "bootstrap"'),
        ([1, 2], [1, 2], {"level": 95}, "For 95 % pass 0.95"),
        ([1, 2], [1, 2], {"method": "bootstrap", "n_resamples": 0}, "n_resamples must be"),
    ],
)
def test_malformed_pairs_and_options_are_refused(a, b, options, message):
    with pytest.raises(ValueError, match=message):
        paired_difference(a, b, **options)


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


def test_mean_ranks_share_ties_and_come_best_first():
    values = {
        "digits": {"ours": 0.1, "forest": 0.2, "k-NN": 0.3},
        "wine": {"k-NN": 0.5, "ours": 0.4, "forest": 0.4},
    }
    ranks = rank_methods(values)
    assert ranks == {"ours": 1.25, "forest": 1.75, "k-NN": 3.0}
    assert list(ranks) == ["ours", "forest", "k-NN"]
    flipped = rank_methods(values, higher_is_better=True)
    assert flipped == {"ours": 2.75, "forest": 2.25, "k-NN": 1.0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "at least one data set"),
        ({"digits": {}}, "at least one data set"),
        ({"digits": {"a": 1.0, "b": 2.0}, "wine": {"a": 1.0}}, "first 'b' on 'wine'"),
        ({"digits": {"a": float("nan")}}, "first 'a' on 'digits'"),
    ],
)
def test_ranks_over_a_table_with_holes_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        rank_methods(values)


def test_holm_multiplies_the_smallest_most_and_keeps_the_order():
    assert holm([0.04, 0.01, np.nan, 0.03]) == pytest.approx(
        [0.06, 0.03, np.nan, 0.06], nan_ok=True
    )
    assert holm([0.5, 0.9]).tolist() == [1.0, 1.0]
