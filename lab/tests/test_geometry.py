"""Purity of neighborhoods equals its slow version and keeps what it promises."""

import numpy as np
import pytest
import torch
from nearwise_lab.geometry import purity_curve


def slow_purity(X, y, k):
    """Mean over rows of their k nearest other rows; the lowest position wins a tie."""
    shares = []
    for i, row in enumerate(X):
        far = [1 - float(row @ b) / np.sqrt(float(row @ row) * float(b @ b)) for b in X]
        others = sorted((j for j in range(len(X)) if j != i), key=lambda j: (np.float32(far[j]), j))
        shares.append(np.mean([y[j] == y[i] for j in others[:k]]))
    return np.mean(shares)


def smooth():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 40)
    return rng.normal(size=(40, 6)) + 2 * np.eye(3, 6)[y], y


def lattice():
    """Points of a grid: many ties, no row of zeros."""
    return np.array([(a, b, 1.0) for a in range(5) for b in range(6)]), np.arange(30) % 4


def duplicates():
    X = np.repeat(np.random.default_rng(1).normal(size=(8, 4)), 4, axis=0)
    return X, np.arange(32) % 5  # labels of copies differ


def class_missing():
    X, y = smooth()
    return X, np.where(y == 1, 3, y)


CASES = {f.__name__: f() for f in (smooth, lattice, duplicates, class_missing)}


@pytest.mark.parametrize("case", CASES)
def test_purity_equals_its_loop_for_every_k_in_any_order(case):
    X, y = CASES[case]
    # cosine ties of a lattice hang on rounding: with all other rows there is none
    sizes = [len(X) - 1] if case == "lattice" else [len(X) - 1, 1, 3]
    wanted = [slow_purity(X, y, k) for k in sizes]
    np.testing.assert_allclose(purity_curve(X, y, sizes), wanted, atol=1e-12)


def test_copies_of_a_row_do_not_make_it_its_own_neighbor():
    """A row's own label cannot raise its purity: of two copies each sees the other only."""
    X = np.repeat(np.random.default_rng(0).normal(size=(10, 3)), 2, axis=0)
    assert purity_curve(X, np.tile([0, 1], 10), [1]) == 0.0
    assert purity_curve(X, np.zeros(20, dtype=int), [1]) == 1.0


def test_tensors_give_what_arrays_give():
    X, y = CASES["smooth"]
    given = torch.from_numpy(X).requires_grad_(), torch.from_numpy(y)
    assert purity_curve(*given, [5]) == purity_curve(X, y, [5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: purity_curve(X, y[:-1], [5]), "40 rows and y has 39"),
        (lambda X, y: purity_curve(X, y, [40]), "n_neighbors=40"),
        (lambda X, y: purity_curve(X, y, [0]), "at least 1"),
        (lambda X, y: purity_curve(X[:, None], y, [5]), "pool or flatten"),
        (lambda X, y: purity_curve(np.where(np.arange(40)[:, None] % 9 == 4, np.nan, X), y, [5]),
         "rows 4, 13, 22, 31"),
        (lambda X, y: purity_curve(X.astype(str), y, [5]), "must be numeric"),
        (lambda X, y: purity_curve(X[:1], y[:1], [1]), "1 rows; at least 2"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_what_was_seen(call, message):
    with pytest.raises(ValueError, match=message):
        call(*CASES["smooth"])
