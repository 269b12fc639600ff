"""Accuracy by the number of a class's training rows."""

import numpy as np
import pytest

from nearwise.metrics.shots import shot_breakdown, shot_groups, uneven


def names(train_counts, **settings):
    groups, _ = shot_groups(train_counts, **settings)
    assert (np.sum(list(groups.values()), axis=0) == 1).all()
    return [next(name for name in groups if groups[name][c]) for c in range(len(train_counts))]


def test_thresholds_are_exclusive_at_their_ends():
    counts = [101, 100, 20, 19, 0]
    assert names(counts) == ["many", "medium", "medium", "few", "few"]
    assert names(counts, thresholds=(1, 19)) == ["many", "many", "many", "medium", "few"]


def test_thirds_where_the_thresholds_tell_nothing_apart():
    assert names([5000, 400, 3000, 200, 300, 900]) == [
        "many", "medium", "many", "few", "few", "medium",
    ]  # fmt: skip
    assert shot_groups([500, 400, 300])[1] == "thirds of the classes by size"
    assert names([7, 7]) == ["many", "medium"]


def test_breakdown_equals_counting_by_hand():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 60)
    y[y == 4] = 3  # no test row of class 4
    proba = rng.dirichlet(np.ones(5), 60)
    counts = [500, 200, 50, 10, 5]
    found = shot_breakdown(y, proba, counts)
    right = proba.argmax(1) == y
    for name, classes in {"many": (0, 1), "medium": (2,), "few": (3, 4)}.items():
        rows = [r for label, r in zip(y, right, strict=True) if label in classes]
        assert found[name] == pytest.approx(sum(rows) / len(rows))
    assert found["balanced"] == pytest.approx(np.mean([right[y == c].mean() for c in range(4)]))
    assert found["classes"] == {"many": 2, "medium": 1, "few": 2}
    assert found["rule"] == "more than 100, 20 to 100, fewer than 20 training rows"


def test_a_group_without_test_rows_has_no_accuracy():
    found = shot_breakdown([0, 0], [[0.9, 0.1], [0.2, 0.8]], [500, 3])
    assert (found["many"], found["medium"], found["few"]) == (0.5, None, None)


@pytest.mark.parametrize(
    ("counts", "settings", "message"),
    [
        ([[1, 2]], {}, "give one whole number of training rows per class"),
        ([1.5, 2.0], {}, "give one whole number"),
        ([-1, 2], {}, "give one whole number"),
        ([1, 2], {"thresholds": (100, 20)}, r"thresholds=\(100, 20\) must ascend"),
        ([1, 2, 3], {}, "names 3 classes but proba has 2 columns"),
    ],
    ids=str,
)
def test_mistakes_are_named(counts, settings, message):
    with pytest.raises(ValueError, match=message):
        shot_breakdown([0, 1], [[0.9, 0.1], [0.2, 0.8]], counts, **settings)


@pytest.mark.parametrize(
    ("counts", "expected"), [([10, 10], False), ([19, 10], False), ([20, 10], True), ([5], False)]
)
def test_sizes_are_uneven_from_twice_on(counts, expected):
    assert uneven(counts) is expected
