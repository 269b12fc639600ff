"""Small data sets and cheap settings for the estimator's tests."""

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import joblib
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from nearwise.estimators import AttnKNNClassifier, Settings

QUICK = {"head": {"epochs": 1}, "random_state": 0}
CHEAP = {"estimator": None, "cv": 2, **QUICK}


def blobs(n=90, n_classes=3, n_features=4, seed=0, spread=1.2):
    """Overlapping clusters, so that probabilities are not all 0 or 1."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    centers = rng.normal(size=(n_classes, n_features)) * 2
    return centers[y] + spread * rng.normal(size=(n, n_features)), y


def table(n=120, seed=0):
    """Numbers, gaps, text, categories, truth values and a mixed column, with text labels."""
    rng = np.random.default_rng(seed)
    X, y = blobs(n, 2, 2, seed)
    frame = pd.DataFrame(
        {
            "age": X[:, 0],
            "income": np.where(rng.random(n) < 0.2, np.nan, X[:, 1]),
            "town": np.where(y == 1, rng.choice(["Rome", "Oslo"], n), "Lima"),
            "grade": pd.cut(X[:, 1], 3),
            "mixed": [i % 3 if i % 2 else "none" for i in range(n)],
            "member": rng.random(n) < 0.5,
        }
    )
    frame.loc[::7, "town"] = None
    return frame, np.array(["no", "yes"])[y]


def wrong_labels(y, rate, seed=0):
    """Give a share of the rows another label, each other one equally likely."""
    classes, codes = np.unique(y, return_inverse=True)
    rng = np.random.default_rng(seed)
    changed = rng.permutation(len(codes))[: int(rate * len(codes) + 0.5)]
    steps = rng.integers(1, len(classes), size=len(codes))
    codes[changed] = (codes[changed] + steps[changed]) % len(classes)
    return classes[codes]


def drawn_labels(y, transition):
    """Draw every row's label from its class's row of `transition`."""
    classes, codes = np.unique(y, return_inverse=True)
    draws = np.random.default_rng(0).random(len(codes))
    return classes[(draws[:, None] >= np.cumsum(transition, axis=1)[codes, :-1]).sum(axis=1)]


def attn_knn(*args, **parameters):
    """Make the classifier from parameters and settings in one list."""
    names = [name for name in parameters if name in Settings.model_fields]
    settings = {name: parameters.pop(name) for name in names}
    return AttnKNNClassifier(*args, **parameters, **({"settings": settings} if settings else {}))


_FITTED: dict[str, AttnKNNClassifier] = {}


def fit_once(model, X, y, **options):
    """Fit, or copy what was fitted in this process to the same rows by the same parameters.

    Not for tests of the fit itself: that it repeats, warns, or calls what a test has replaced.
    """
    key = joblib.hash((type(model), model.get_params(deep=False), X, y, options))
    if key not in _FITTED:
        _FITTED[key] = model.fit(X, y, **options)
    return copy.deepcopy(_FITTED[key])


def fitted(X=None, y=None, **settings):
    """Fit the cheapest classifier, with some settings changed; once (see `fit_once`)."""
    if X is None:
        X, y = blobs()
    return fit_once(attn_knn(**{**CHEAP, **settings}), X, y)


def reopened(model, folder):
    """Save a model, and load it again."""
    model.save(folder)
    return type(model).load(folder)


def logistic():
    return LogisticRegression(max_iter=200)


def left_out_accuracy(model):
    """Share of the remembered rows that are predicted rightly, each left out."""
    return np.mean(model.predict_proba(None).argmax(1) == model.memory_.labels.numpy())


def sums_to_one(proba):
    proba = np.asarray(proba)
    return bool(
        np.isfinite(proba).all()
        and (proba >= 0).all()
        and np.abs(proba.sum(axis=-1) - 1).max() < 1e-9
    )


def same(first, second):
    """Equal bit for bit."""
    return np.array_equal(np.asarray(first), np.asarray(second))


@contextmanager
def quietly():
    """Silence warnings that a test is not about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def together(*works):
    """Do works in threads of their own, and raise what goes wrong in any."""
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


class OwnLogistic(LogisticRegression):
    """A base whose type scikit-learn does not know."""
