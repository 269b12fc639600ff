"""Inputs on which every metric is compared with its reference."""

import numpy as np
import pytest


def random_case(seed, n=500, n_classes=4, sharpness=0.5):
    """Draw smooth random probabilities with labels that roughly follow them."""
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.full(n_classes, sharpness), size=n)
    tilted = proba**0.7 / (proba**0.7).sum(axis=1, keepdims=True)
    y = np.array([rng.choice(n_classes, p=row) for row in tilted])
    return y, proba


def vote_case(seed, n=200, n_classes=3, k=5):
    """Draw votes of k neighbors: many ties, exact 0 and exact 1."""
    rng = np.random.default_rng(seed)
    proba = rng.multinomial(k, np.full(n_classes, 1 / n_classes), size=n) / k
    proba[: n // 5] = np.eye(n_classes)[rng.integers(0, n_classes, n // 5)]
    return rng.integers(0, n_classes, n), proba


def _edges():
    """Put the confidence on every bin edge from 1/2 to 1, for 15 and for 10 bins."""
    top = np.array([*np.arange(8, 16) / 15, *np.arange(5, 11) / 10])
    return np.arange(top.size) % 2, np.column_stack([top, 1 - top])


def _class_missing():
    y, proba = random_case(5, n_classes=5)
    return np.where(y == 2, 0, y), proba


def _never_predicted():
    y, proba = vote_case(6)
    proba[:, 2] = 0.0
    proba[proba.sum(axis=1) == 0, 0] = 1.0
    return np.minimum(y, 1), proba / proba.sum(axis=1, keepdims=True)


CASES = {
    "random": random_case(0),
    "random-two-classes": random_case(1, n_classes=2),
    "random-26-classes": random_case(2, n_classes=26, sharpness=0.1),
    "votes": vote_case(3),
    "votes-of-two": vote_case(4, k=2),
    "edges": _edges(),
    "class-missing": _class_missing(),
    "class-never-seen": _never_predicted(),
    "all-sure": (np.array([0, 1, 1, 0]), np.eye(2)[[0, 1, 0, 0]]),
    "all-sure-all-right": (np.array([0, 1, 2]), np.eye(3)),
    "all-sure-all-wrong": (np.array([1, 2, 0]), np.eye(3)),
    "all-tied": (np.array([0, 1, 2, 0, 1]), np.full((5, 3), 1 / 3)),
    "one-row": (np.array([1]), np.array([[0.3, 0.7]])),
    "one-sure-row": (np.array([0]), np.array([[0.0, 1.0]])),
    "one-class": (np.array([0, 0]), np.array([[1.0], [1.0]])),
}
EACH_CASE = pytest.mark.parametrize(("y", "proba"), CASES.values(), ids=CASES.keys())
