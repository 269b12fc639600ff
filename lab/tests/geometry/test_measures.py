"""Directions, dimension and likeness equal their slow versions and known truths."""

import numpy as np
import pytest
from nearwise_lab.geometry.describe import describe_geometry
from nearwise_lab.geometry.directions import (
    alignment,
    anisotropy,
    cka,
    class_alignment,
    effective_rank,
    uniformity,
)
from nearwise_lab.geometry.neighborhoods import intrinsic_dimension

from lab.tests.geometry.cases import CASES
from lab.tests.reference import geometry as slow


@pytest.mark.parametrize("case", CASES)
def test_directions_equal_their_loops(case):
    X, y = CASES[case]
    assert class_alignment(X, y) == pytest.approx(slow.class_alignment(X, y), abs=1e-9)
    assert uniformity(X) == pytest.approx(slow.uniformity(X, 2.0), abs=1e-9)
    assert anisotropy(X) == pytest.approx(slow.anisotropy(X), abs=1e-9)


def test_one_direction_is_aligned_not_uniform_and_anisotropic():
    X = np.outer(np.arange(1, 9), [3.0, 4.0])
    assert class_alignment(X, np.arange(8) % 2) == pytest.approx(0.0, abs=1e-9)
    assert uniformity(X) == pytest.approx(0.0, abs=1e-9)
    assert anisotropy(X) == pytest.approx(1.0)


def test_alignment_is_the_distance_of_views_row_by_row():
    X, _ = CASES["smooth"]
    assert alignment(X, 7 * X) == pytest.approx(0.0, abs=1e-12)
    assert alignment(X, -X) == pytest.approx(4.0)
    other = np.random.default_rng(3).normal(size=X.shape)
    wanted = np.mean(((slow.unit(X) - slow.unit(other)) ** 2).sum(axis=1))
    assert alignment(X, other) == pytest.approx(wanted)


def test_effective_rank_counts_directions_of_equal_variance():
    X = np.vstack([np.eye(5, 9), -np.eye(5, 9)]) + 3.0
    assert effective_rank(X) == pytest.approx(5.0)
    assert effective_rank(X.T @ X) <= 5.0 + 1e-6
    assert effective_rank(np.full((6, 3), 0.1)) == 0.0


@pytest.mark.parametrize("n_dimensions", [1, 2, 5])
def test_dimension_is_that_of_the_flat_the_rows_lie_on(n_dimensions):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(2000, n_dimensions)) @ rng.normal(size=(n_dimensions, 20))
    assert intrinsic_dimension(X) == pytest.approx(n_dimensions, rel=0.15)


def test_copies_of_rows_do_not_change_the_dimension():
    X = np.random.default_rng(0).uniform(size=(200, 3))
    doubled = np.vstack([X, X[:50], X[:50]])
    assert intrinsic_dimension(doubled) == pytest.approx(intrinsic_dimension(X))


@pytest.mark.parametrize("case", CASES)
def test_cka_equals_its_definition(case):
    X, _ = CASES[case]
    rng = np.random.default_rng(2)
    for Y in (rng.normal(size=(len(X), 3)), rng.normal(size=(len(X), 90)), X[:, :2]):
        assert cka(X, Y) == pytest.approx(slow.debiased_cka(X, Y), abs=1e-9)


def test_cka_does_not_see_rotation_scale_and_shift():
    X, _ = CASES["smooth"]
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))
    assert cka(X, 3 * X @ turn + 5) == pytest.approx(1.0)


def test_debiased_cka_of_unrelated_wide_features_is_about_zero():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(60, 500)), rng.normal(size=(60, 500))
    assert slow.plain_cka(X, Y) > 0.8  # the reason for the debiased form
    assert abs(cka(X, Y)) < 0.1


def test_description_holds_every_measure_and_a_sample_is_the_same_each_time():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 300)
    X = rng.normal(size=(300, 8)) + 3 * np.eye(4, 8)[y]
    whole = describe_geometry(X, y)
    assert whole["n"] == 300 and list(whole["purity_curve"]) == [1, 2, 5, 10, 20, 50, 100, 200]
    assert whole["purity"] == whole["purity_curve"][20]
    assert all(np.isfinite(v) for k, v in whole.items() if k != "purity_curve")
    sample = describe_geometry(X, y, max_rows=100)
    assert sample["n"] == 100 and sample == describe_geometry(X, y, max_rows=100)
    assert sample != describe_geometry(X, y, max_rows=100, random_state=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: alignment(X, X[:, :2]), "6 features and Y has 2"),
        (lambda X, y: class_alignment(X, np.arange(40)), "No class has two rows"),
        (lambda X, y: uniformity(X * (np.arange(40) != 7)[:, None]), "Row 7 is all zeros"),
        (lambda X, y: intrinsic_dimension(X[[0] * 9]), "1 distinct rows"),
        (lambda X, y: intrinsic_dimension(np.eye(6)), "hold no dimension"),
        (lambda X, y: cka(X, np.ones((40, 3))), "Y does not vary"),
        (lambda X, y: cka(X[:3], X[:3]), "3 rows; at least 4"),
        (lambda X, y: describe_geometry(X, y, n_neighbors=40), "39 other rows"),
    ],
)
def test_bad_input_is_refused_with_what_was_seen(call, message):
    with pytest.raises(ValueError, match=message):
        call(*CASES["smooth"])
