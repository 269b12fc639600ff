"""Neighborhood measures equal their slow versions and keep what they promise."""

import numpy as np
import pytest
import torch
from nearwise_lab.geometry.neighborhoods import (
    hubness,
    neighbor_overlap,
    purity_curve,
    silhouette,
    trustworthiness,
)
from scipy.stats import skew

from lab.tests.geometry.cases import CASES
from lab.tests.reference import geometry as slow

DISTANCES = {"cosine": slow.cosine_distance, "euclidean": slow.euclidean}


def purity(X, y, n_neighbors=20, metric="cosine"):
    return float(purity_curve(X, y, [n_neighbors], metric)[0])


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize("case", CASES)
def test_purity_equals_its_loop_for_every_k(case, metric):
    X, y = CASES[case]
    sizes = [1, 3, len(X) - 1]
    wanted = [slow.purity(X, y, k, DISTANCES[metric]) for k in sizes]
    if case != "lattice" or metric == "euclidean":  # cosine ties of a lattice hang on rounding
        np.testing.assert_allclose(purity_curve(X, y, sizes, metric), wanted, atol=1e-12)
    assert purity(X, y, len(X) - 1, metric) == pytest.approx(wanted[-1])


def test_copies_of_a_row_do_not_make_it_its_own_neighbor():
    """A row's own label cannot raise its purity: of two copies each sees the other only."""
    X = np.repeat(np.random.default_rng(0).normal(size=(10, 3)), 2, axis=0)
    assert purity(X, np.tile([0, 1], 10), 1) == 0.0
    assert purity(X, np.zeros(20, dtype=int), 1) == 1.0


def test_the_order_of_the_sizes_is_kept():
    X, y = CASES["smooth"]
    up, down = purity_curve(X, y, [1, 5, 9]), purity_curve(X, y, [9, 5, 1])
    np.testing.assert_array_equal(up, down[::-1])


@pytest.mark.parametrize("case", ["smooth", "duplicates"])
def test_hubness_counts_the_lists_a_row_occurs_in(case):
    X, _ = CASES[case]
    counts = slow.hub_counts(X, 4, slow.euclidean)
    found = hubness(X, 4, "euclidean")
    assert found.skewness == pytest.approx(skew(counts), abs=1e-9)
    assert found.antihubs == pytest.approx(np.mean(counts == 0))


def test_a_ring_has_no_hubs():
    angles = np.arange(12) * np.pi / 6
    ring = np.column_stack([np.cos(angles), np.sin(angles)])
    found = hubness(ring + 1e-4 * ring, 11, "euclidean")
    assert found.skewness == 0.0 and found.antihubs == 0.0


@pytest.mark.parametrize("case", ["smooth", "duplicates"])
def test_overlap_equals_its_loop(case):
    X, _ = CASES[case]
    Y = X[:, :3]
    wanted = slow.overlap(X, Y, 5, slow.euclidean)
    assert neighbor_overlap(X, Y, 5, "euclidean") == pytest.approx(wanted)


def test_overlap_of_a_space_with_itself_is_one_and_with_noise_about_chance():
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(300, 5)), rng.normal(size=(300, 5))
    assert neighbor_overlap(X, 3 * X, 10) == 1.0
    assert neighbor_overlap(X, noise, 10) == pytest.approx(10 / 299, abs=0.02)


def test_trustworthiness_is_one_on_a_faithful_map_and_lower_on_a_shuffled_one():
    X, _ = CASES["smooth"]
    assert trustworthiness(X, 2 * X, 5) == 1.0
    assert trustworthiness(X, np.random.default_rng(0).permutation(X), 5) < 0.7


def test_silhouette_tells_far_classes_from_mixed_ones():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = rng.normal(scale=0.05, size=(60, 2)) + np.eye(2)[y]
    assert silhouette(X, y) > 0.8
    assert abs(silhouette(X, rng.permutation(y))) < 0.1


def test_tensors_give_what_arrays_give():
    X, y = CASES["smooth"]
    assert purity(torch.from_numpy(X), torch.from_numpy(y), 5) == purity(X, y, 5)
    assert purity(torch.from_numpy(X).requires_grad_(), y, 5) == purity(X, y, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: purity(X, y[:-1]), "40 rows and y has 39"),
        (lambda X, y: purity(X, y, 40), "n_neighbors=40"),
        (lambda X, y: purity(X, y, 0), "at least 1"),
        (lambda X, y: purity(X[:, None], y), "pool or flatten"),
        (lambda X, y: purity(np.where(np.arange(40)[:, None] % 9 == 4, np.nan, X), y),
         "rows 4, 13, 22, 31"),
        (lambda X, y: purity(X.astype(str), y), "must be numeric"),
        (lambda X, y: hubness(X[:1]), "1 rows; at least 2"),
        (lambda X, y: neighbor_overlap(X, X[1:]), "X has 40 rows and Y has 39"),
        (lambda X, y: trustworthiness(X, X, 20), "below half the 40"),
        (lambda X, y: silhouette(X, np.zeros(40, dtype=int)), "at least two classes"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_what_was_seen(call, message):
    with pytest.raises(ValueError, match=message):
        call(*CASES["smooth"])
