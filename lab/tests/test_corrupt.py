"""Promises of label noise and long tails."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearwise_lab.corrupt import label_noise, long_tail

Y = np.repeat(np.arange(10), 200)
WORDS = np.array(["ant", "beetle", "cat", "ant"] * 30)


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=40).filter(lambda v: len(set(v)) > 1),
    rate=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["symmetric", "asymmetric"]),
)
@settings(max_examples=60, deadline=None)
def test_noise_changes_the_rounded_number_of_rows_to_known_classes(labels, rate, seed, kind):
    noisy = label_noise(labels, rate, kind, seed)
    assert (noisy != np.array(labels)).sum() == int(np.floor(rate * len(labels) + 0.5))
    assert set(noisy.tolist()) <= set(labels) and noisy.dtype == np.array(labels).dtype


def test_symmetric_noise_spreads_evenly_over_the_other_classes():
    y = np.zeros(40_000, dtype=int)
    counts = np.bincount(label_noise(y, 1.0, seed=0, classes=range(5)), minlength=5)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / len(y), 0.25, atol=0.01)


def test_asymmetric_noise_gives_the_next_class_and_the_first_after_the_last():
    noisy = label_noise(WORDS, 1.0, "asymmetric")
    following = {"ant": "beetle", "beetle": "cat", "cat": "ant"}
    assert noisy.tolist() == [following[word] for word in WORDS]


def test_a_larger_rate_adds_to_a_smaller_one():
    small, large = (label_noise(Y, rate, seed=5) for rate in (0.1, 0.3))
    changed = small != Y
    np.testing.assert_array_equal(large[changed], small[changed])


def test_the_seed_decides_and_the_input_is_untouched():
    before = Y.copy()
    first, again, other = (label_noise(Y, 0.3, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(Y, before)


def test_these_rows_stay_the_same_in_every_release():
    # drawn once and pinned: published noisy results must stay repeatable
    noisy = label_noise([0, 1, 2] * 4, 0.5, seed=0)
    assert noisy.tolist() == [0, 1, 1, 0, 2, 1, 0, 2, 2, 2, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 1.1}, "not a share"),
        ({"rate": float("nan")}, "not a share"),
        ({"rate": 0.1, "kind": "random"}, "not one of symmetric"),
        ({"rate": 0.1, "classes": []}, "pass shape"),
        ({"rate": 0.1, "classes": [0, 1]}, r"not among them: \[2, 3"),
        ({"rate": 0.1, "classes": [*range(10), 0]}, "must be distinct"),
    ],
)
def test_arguments_that_do_not_fit_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        label_noise(Y, **arguments)


def test_one_class_offers_no_other_label():
    with pytest.raises(ValueError, match="the one class"):
        label_noise([1, 1], 0.5)
    assert label_noise([1, 1], 0.0).tolist() == [1, 1]


@pytest.mark.parametrize("ratio", [1, 0.1, 0.01])
def test_class_sizes_fall_exponentially(ratio):
    kept = long_tail(Y, ratio, seed=0)
    expected = [max(1, int(np.floor(200 * ratio ** (c / 9) + 1e-9))) for c in range(10)]
    assert np.bincount(Y[kept]).tolist() == expected
    assert expected[0] == 200
    assert expected[-1] == max(1, round(200 * ratio))
    assert (np.diff(kept) > 0).all()


def test_floating_point_does_not_cost_the_last_row():
    assert 100 * 0.29 < 29  # the trap
    assert np.bincount(np.repeat([0, 1], 100)[long_tail(np.repeat([0, 1], 100), 0.29)])[1] == 29


def test_a_small_class_keeps_what_it_has_and_none_vanishes():
    y = np.array(["a"] * 100 + ["b"] * 3 + ["c"] * 50)
    kept = y[long_tail(y, 0.001)]
    assert {label: int((kept == label).sum()) for label in "abc"} == {"a": 100, "b": 3, "c": 1}


def test_a_smaller_ratio_keeps_a_part_of_a_larger_and_the_seed_decides():
    assert set(long_tail(Y, 0.01, seed=2)) < set(long_tail(Y, 0.1, seed=2))
    np.testing.assert_array_equal(long_tail(Y, 0.1, seed=2), long_tail(Y, 0.1, seed=2))
    assert set(long_tail(Y, 0.1, seed=2)) != set(long_tail(Y, 0.1, seed=3))


def test_one_class_is_kept_whole_and_the_order_of_classes_can_be_given():
    assert long_tail([1, 1, 1], 0.1).tolist() == [0, 1, 2]
    y = np.repeat([0, 1], 10)
    assert np.bincount(y[long_tail(y, 0.1, classes=[1, 0])]).tolist() == [1, 10]


@pytest.mark.parametrize("ratio", [0, -1, 1.5, float("nan")])
def test_a_ratio_outside_zero_and_one_is_refused(ratio):
    with pytest.raises(ValueError, match="is not in"):
        long_tail(Y, ratio)


def test_empty_labels_are_refused():
    with pytest.raises(ValueError, match="at least one label"):
        long_tail([], 0.5)


def test_a_long_tail_keeps_as_many_of_each_class_as_asked():
    y = np.repeat([0, 1, 2], [50, 50, 1])
    assert np.bincount(y[long_tail(y, 0.01, least=2)]).tolist() == [50, 5, 1]
    y = np.repeat([0, 1, 2], 50)
    assert np.bincount(y[long_tail(y, 0.01, least=2)]).tolist() == [50, 5, 2]
