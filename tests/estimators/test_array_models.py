"""Array models give scikit-learn's probabilities to the last bit, and refuse forged arrays."""

import functools

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline

from nearwise.estimators.fit.as_arrays import as_arrays, round_down
from nearwise.estimators.model.array_regressors import from_arrays, kind_of
from tests.estimators.cases import same

MODELS = {
    "logistic": LogisticRegression(max_iter=30),
    "kernel-logistic": make_pipeline(
        Nystroem(gamma=1e-3, n_components=40, random_state=0), LogisticRegression(max_iter=30)
    ),
    "mlp": MLPClassifier((9, 7), max_iter=5, random_state=0),
    "extra-trees": ExtraTreesClassifier(20, random_state=0),
    "random-forest": RandomForestClassifier(20, min_samples_leaf=3, random_state=0),
    "leafy-forest": ExtraTreesClassifier(5, max_leaf_nodes=9, random_state=0),
    "boosting": HistGradientBoostingClassifier(max_iter=6, random_state=0),
}


def digits(n_classes):
    X, y = load_digits(return_X_y=True)
    X, y = X[y < n_classes][:200], y[y < n_classes][:200]
    far = np.random.default_rng(0).normal(size=X.shape) * 20
    return X, y, np.concatenate([X, far])


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("name", MODELS)
def test_probabilities_are_those_of_scikit_learn_to_the_last_bit(name, n_classes):
    X, y, queries = digits(n_classes)
    model = MODELS[name].fit(X[::2], y[::2])
    arrays = as_arrays(model)
    assert kind_of(arrays) is not None
    expected = model.predict_proba(queries)
    assert same(arrays.predict_proba(queries), expected)
    assert same(arrays.predict_proba(queries[5:6]), model.predict_proba(queries[5:6]))
    stored = from_arrays(kind_of(arrays), arrays.to_arrays())
    assert same(stored.predict_proba(queries), expected)
    assert same(stored.classes_, model.classes_)


@pytest.mark.parametrize("n_classes", [2, 10])
def test_naive_bayes_is_linear_in_the_logarithms(n_classes):
    X, y, _ = digits(n_classes)
    X = csr_matrix(X, dtype=np.float32)
    model = MultinomialNB(alpha=0.1).fit(X[::2], y[::2])
    arrays = as_arrays(model)
    assert kind_of(arrays) == "logistic"
    np.testing.assert_allclose(arrays.predict_proba(X), model.predict_proba(X), atol=1e-12)


@pytest.mark.parametrize("categorical", [None, [3, 4], [1], [0, 2, 4]], ids=str)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_boosting_with_gaps_and_categories_is_that_of_scikit_learn(categorical, n_classes):
    rng = np.random.default_rng(1)

    def draw(n, n_codes):
        X = rng.normal(size=(n, 5))
        for column in categorical or []:
            X[:, column] = rng.integers(0, n_codes, n)
        X[rng.random(X.shape) < 0.1] = np.nan
        return X

    X = draw(500, 30)
    y = (np.nan_to_num(X[:, 0]) > 0.5).astype(int) + (np.nan_to_num(X[:, 3]) % 3 > 1)
    y = np.minimum(y, n_classes - 1)
    model = HistGradientBoostingClassifier(
        categorical_features=categorical, max_iter=20, random_state=0
    ).fit(X, y)
    # Codes that training did not have, and gaps in columns that had none.
    queries = np.concatenate([X, draw(500, 256), np.full((1, 5), np.nan)])
    assert same(as_arrays(model).predict_proba(queries), model.predict_proba(queries))


def test_what_has_no_array_form_stays_as_it_is():
    X, y, _ = digits(3)
    model = GaussianNB().fit(X, y)
    assert as_arrays(model) is model
    codes = np.repeat([1000.0, 2000.0], 50)[:, None]
    boosting = HistGradientBoostingClassifier(categorical_features=[0], max_iter=2)
    assert as_arrays(boosting.fit(codes, np.arange(100) % 2)) is boosting


def test_rounding_down_never_moves_a_threshold_above_itself():
    values = np.random.default_rng(0).normal(size=10_000) * 10.0 ** np.arange(-20, 20).repeat(250)
    rounded = round_down(values)
    assert (rounded.astype(float) <= values).all()
    assert (np.nextafter(rounded, np.float32(np.inf)).astype(float) > values).all()


@functools.cache
def fitted_arrays(name):
    X, y, _ = digits(3)
    return as_arrays(clone(MODELS[name]).fit(X, y))


def forged(name, **changes):
    model = fitted_arrays(name)
    arrays = model.to_arrays()
    for part, change in changes.items():
        if change is None:
            del arrays[part]
        else:
            arrays[part] = change(arrays[part].copy())
    return kind_of(model), arrays


def put(value, at=0):
    def change(array):
        array.reshape(-1)[at] = value
        return array

    return change


FORGERIES = {
    "child beyond the end": ("extra-trees", {"left": put(5_000_000)}, "later node"),
    "child far below": ("extra-trees", {"right": put(-(2**31))}, "later node"),
    "child is its parent": ("extra-trees", {"left": put(0)}, "later node"),
    "child of another tree": ("extra-trees", {"right": lambda a: put(len(a) - 1)(a)}, "later node"),
    "leaf without values": (
        "extra-trees", {"right": lambda a: put(10**6, -1)(a)}, "a leaf is none",
    ),
    "column out of range": ("extra-trees", {"feature": put(2**30)}, "splits by a column"),
    "column below zero": ("extra-trees", {"feature": put(-5)}, "splits by a column"),
    "fewer columns": ("extra-trees", {"n_features": put(3)}, "splits by a column"),
    "roots do not ascend": ("extra-trees", {"roots": put(0, 1)}, "ascend"),
    "root beyond the end": ("extra-trees", {"roots": put(10**9, -1)}, "ascend"),
    "no trees": ("extra-trees", {"roots": lambda a: a[:0]}, "ascend"),
    "cut nodes": ("extra-trees", {"left": lambda a: a[:-1]}, "differ in length|ascend"),
    "NaN threshold": ("extra-trees", {"threshold": put(np.nan)}, "NaN"),
    "wide threshold": ("extra-trees", {"threshold": lambda a: a.astype(float)}, "float32"),
    "class out of range": ("extra-trees", {"leaf_class": put(7)}, "class that is not there"),
    "negative share": ("extra-trees", {"leaf_share": put(-1.0)}, "negative share"),
    "NaN share": ("extra-trees", {"leaf_share": put(np.nan)}, "NaN or infinity"),
    "leaf beyond the shares": ("extra-trees", {"leaf_start": put(10**9, -1)}, "ascend"),
    "part is missing": ("extra-trees", {"leaf_start": None}, "'leaf_start' is missing"),
    "boosting, child loops": ("boosting", {"left": put(0)}, "later node"),
    "boosting, column": ("boosting", {"feature": put(2**30)}, "splits by a column"),
    "boosting, codes": ("boosting", {"code_split": put(9)}, "no codes"),
    "boosting, value": ("boosting", {"leaf_value": put(np.inf)}, "NaN or infinity"),
    "boosting, a tree less": ("boosting", {"roots": lambda a: a[:-1]}, "trees for 3 classes"),
    "classes descend": ("logistic", {"classes": lambda a: a[::-1].copy()}, "ascending"),
    "coefficients cut": ("logistic", {"coef": lambda a: a[:2]}, "shape"),
    "coefficients of integers": ("logistic", {"coef": lambda a: a.astype(int)}, "has type int64"),
    "infinite intercept": ("logistic", {"intercept": put(np.inf)}, "NaN or infinity"),
    "gamma zero": ("kernel-logistic", {"gamma": lambda a: np.array(0.0)}, "not positive"),
    "layers that do not follow": ("mlp", {"coef_1": lambda a: a[:-1]}, "shape"),
    "a layer is missing": ("mlp", {"coef_2": None}, "outputs for 3 classes"),
    "no layer": ("mlp", {"coef_0": None}, "'coef_0' is missing"),
    "NaN in a layer": ("mlp", {"intercept_1": put(np.nan)}, "NaN or infinity"),
    "components cut": ("kernel-logistic", {"components": lambda a: a[:-1]}, "shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_arrays_are_refused_before_they_are_used(name):
    model, changes, message = FORGERIES[name]
    kind, arrays = forged(model, **changes)
    with pytest.raises(ValueError, match=message):
        from_arrays(kind, arrays)
