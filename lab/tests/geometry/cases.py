"""Features on which every measure is compared with its slow version."""

import numpy as np


def smooth():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 40)
    return rng.normal(size=(40, 6)) + 2 * np.eye(3, 6)[y], y


def lattice():
    """Points of a grid: many ties, no row of zeros."""
    X = np.array([(a, b, 1.0) for a in range(5) for b in range(6)])
    return X, np.arange(30) % 4


def duplicates():
    rng = np.random.default_rng(1)
    X = np.repeat(rng.normal(size=(8, 4)), 4, axis=0)
    return X, np.arange(32) % 5  # labels of copies differ; class 4 is there, and none is missing


def class_missing():
    X, y = smooth()
    return X, np.where(y == 1, 3, y)


CASES = {f.__name__: f() for f in (smooth, lattice, duplicates, class_missing)}
