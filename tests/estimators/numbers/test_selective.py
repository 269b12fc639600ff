"""Abstention: rows with the widest intervals are not answered."""

import numpy as np
import pytest

from nearwise import AttnKNNRegressor
from tests.estimators.numbers.cases import QUICK, fitted, table


def many_rows():
    X, y = table(600, seed=1)
    return X, y


def test_rows_with_the_narrowest_intervals_are_answered_and_are_nearer_to_the_truth():
    X, y = many_rows()
    found = fitted().predict_selective(X, coverage=0.5)
    assert np.array_equal(found.interval, fitted().predict_interval(X, 0.9))
    assert np.array_equal(found.predictions, fitted().predict(X))
    assert np.array_equal(found.accepted, found.width <= found.threshold)
    assert found.coverage == pytest.approx(0.5, abs=0.01)
    assert found.accepted.mean() == pytest.approx(0.5, abs=0.1)
    away = np.abs(found.predictions - y)
    assert away[found.accepted].mean() < 0.85 * away.mean()
    assert found.expected_error < 0.92 * found.error_of_all
    assert found.expected_error == pytest.approx(away[found.accepted].mean(), rel=0.25)


def test_a_largest_width_is_kept_and_all_rows_are_answered_at_coverage_1():
    X, _ = many_rows()
    width = float(np.median(fitted().predict_selective(X, coverage=1.0).width))
    found = fitted().predict_selective(X, max_width=width)
    assert found.threshold == width and found.width[found.accepted].max() <= width
    assert 0 < found.n_accepted < found.n_calibration == 120
    every = fitted().predict_selective(X, coverage=1.0)
    assert every.coverage == 1.0 and every.expected_error == pytest.approx(every.error_of_all)
    nothing = fitted().predict_selective(X, max_width=1e-9)
    assert not nothing.accepted.any() and nothing.coverage == 0.0
    assert np.isnan(nothing.expected_error) and np.isnan(nothing.interval_coverage)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, "neither was given"),
        ({"coverage": 0.5, "max_width": 1.0}, "both were given"),
        ({"coverage": 0.0}, r"coverage=0.0 must lie in \(0, 1\]"),
        ({"coverage": True}, "coverage"),
        ({"coverage": float("nan")}, "coverage"),
        ({"max_width": -1.0}, "must be a positive number"),
        ({"max_width": float("inf")}, "must be a positive number"),
        ({"max_width": "wide"}, "max_width"),
        ({"coverage": 0.5, "confidence": 0.999}, "calibration rows"),
    ],
)
def test_what_is_out_of_range_is_refused(request_, said):
    with pytest.raises(ValueError, match=said):
        fitted().predict_selective(many_rows()[0][:3], **request_)


def test_new_rows_are_compared_with_left_out_ones_of_the_same_width():
    """The distributions of these are narrower than those of left-out rows."""
    X, y = table(400, noise=0.02)
    model = AttnKNNRegressor(**QUICK).fit(X, y)
    rows, _ = table(900, seed=3, noise=0.02)
    assert model.predict_selective(rows, coverage=0.5).accepted.mean() == pytest.approx(
        0.5, abs=0.1
    )
    assert np.mean(model.novelty_p_value(rows) < 0.2) == pytest.approx(0.2, abs=0.08)
