"""Small tables with numbers as targets, and models fitted to them once."""

from functools import cache

import numpy as np

from nearwise import AttnKNNRegressor

QUICK = {"preset": "instant", "random_state": 0, "n_jobs": 1}


@cache
def table(n=160, *, seed=0, noise=0.3):
    """Rows and targets: a smooth function, with noise that grows along the second column."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    y = 2 * X[:, 0] + np.sin(3 * X[:, 1]) + noise * (1.2 + X[:, 1]) * rng.normal(size=n)
    return X, y


@cache
def fitted(**options):
    """Give a model fitted to the first 120 rows; not to be changed."""
    X, y = table()
    return AttnKNNRegressor(**QUICK | options).fit(X[:120], y[:120])


def fresh(**options):
    """Fit a model that a test may change."""
    X, y = table()
    return AttnKNNRegressor(**QUICK | options).fit(X[:120], y[:120])
