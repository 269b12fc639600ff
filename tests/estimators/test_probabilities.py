"""Probabilities are probabilities, whatever the settings and the input."""

import numpy as np
import pandas as pd
import pytest
import torch

from tests.estimators.cases import (
    CHEAP,
    attn_knn,
    blobs,
    fitted,
    left_out_accuracy,
    logistic,
    same,
    sums_to_one,
    table,
)

HELD = {"cv": 0.4, "train": {"epochs": 1}}
SETTINGS = [
    {},
    {"n_neighbors": 1},
    {"n_neighbors": 59},
    {"n_neighbors": 1, **HELD},
    {"metric": "sqeuclidean"},
    {"metric": "cosine"},
    {"metric": "inner_product"},
    {"calibration": None},
    {"cv": 5},
    {"estimator": logistic()},
    {"estimator": "auto", **HELD},
    {"embedder": "table", **HELD},
    {"estimator": "auto", "embedder": "deep", "train": {"epochs": 1}},
    {"index": "faiss-flat-l2"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_rows_sum_to_one_everywhere(settings):
    if "faiss" in settings.get("index", ""):
        pytest.importorskip("faiss")
    X, y = blobs(60)
    X[40:] = X[:20]  # duplicates and ties
    model = attn_knn(**{**CHEAP, **settings}).fit(X, y)
    far = np.full((1, 4), 1e6)
    for queries in (X, None, far, np.zeros((1, 4))):
        parts = model.query(queries).parts
        assert all(sums_to_one(part) for part in parts[:3])
        assert ((parts.null_mass >= 0) & (parts.null_mass <= 1 + 1e-6)).all()
        assert same(parts.proba, model.predict_proba(queries))
        assert same(model.predict(queries), model.classes_[parts.proba.argmax(axis=1)])


@pytest.mark.parametrize("zeroed", ["a class", "most rows", "all but one"])
def test_weights_of_zero_leave_no_gaps(zeroed):
    X, y = blobs(60)
    weight = np.ones(60)
    weight[
        {"a class": y == 0, "most rows": np.arange(60) > 5, "all but one": np.arange(60) > 0}[
            zeroed
        ]
    ] = 0
    model = attn_knn(**CHEAP, n_neighbors=5)
    model.fit(X, y, sample_weight=weight)
    assert sums_to_one(model.predict_proba(X)) and sums_to_one(model.predict_proba(None))
    for explanation in model.explain(X[:5], n_neighbors=None):
        for neighbor in explanation.neighbors:
            assert weight[neighbor.id] > 0 or neighbor.weight == 0


def test_every_kind_of_input_predicts_the_same():
    X, y = blobs()
    X = X.astype(np.float32)
    model = fitted(X.astype(np.float64), y)
    expected = model.predict_proba(X.astype(np.float64))
    kinds = [
        X,
        np.asfortranarray(X),
        X.tolist(),
        torch.from_numpy(X),
        torch.from_numpy(X).double().requires_grad_(),
        pd.DataFrame(X),
    ]
    assert all(same(model.predict_proba(queries), expected) for queries in kinds)


def test_every_kind_of_training_input_learns_the_same():
    X, y = blobs()
    X = X.astype(np.float32)
    expected = fitted(X.astype(np.float64), y).predict_proba(X)
    pairs = [(X, y), (torch.from_numpy(X), torch.from_numpy(y)), (X.tolist(), y.tolist())]
    pairs.append((pd.DataFrame(X), pd.Series(y)))
    for rows, labels in pairs:
        assert same(fitted(rows, labels).predict_proba(X), expected)
    half = torch.from_numpy(X).bfloat16()
    assert same(fitted(half, y).predict_proba(X), fitted(half.double(), y).predict_proba(X))


def test_probabilities_are_floored_so_that_no_row_costs_infinity():
    X, y = blobs(spread=0.01)
    proba = fitted(X, y).predict_proba(X)
    assert proba.min() > 1e-7 and sums_to_one(proba)


FRAME, WORDS = table()
BLOBS, CODES = blobs()
CONTENTS = {
    "text, gaps and intervals": (FRAME, WORDS, 0.8),
    "text alone": (FRAME[["town", "mixed"]], WORDS, 0.6),
    "one column": (*blobs(n_features=1), 0.4),
    "constant columns": (np.column_stack([BLOBS, np.full(90, 3.0), np.zeros(90)]), CODES, 0.7),
    "nothing but constant columns": (np.ones((20, 2)), np.tile([0, 1], 10), 0.0),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_tables_of_any_content_get_probabilities(case):
    X, y, least = CONTENTS[case]
    model = fitted(X, y)
    assert sums_to_one(model.predict_proba(X)) and left_out_accuracy(model) >= least
    if isinstance(X, pd.DataFrame):
        assert sums_to_one(model.predict_proba(X[:1].assign(town=None)))


@pytest.mark.parametrize(
    "settings", [{}, {"estimator": "auto"}, {"index": "faiss-flat-l2"}], ids=str
)
def test_a_table_of_copies_that_is_sorted_by_class_is_no_worse(settings):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (1_500, 2)).astype(float)
    chance = np.array([[0.2, 0.4], [0.6, 0.8]])[tuple(X.astype(int).T)]
    y = (rng.random(len(X)) < chance).astype(int)
    order = np.argsort(y, kind="stable")  # each row has hundreds of copies, a class at a time
    model = attn_knn(preset="instant", random_state=0, **{"estimator": None, **settings})
    found = model.fit(X[order], y[order]).predict_proba(X)[:, 1]
    assert np.abs(found - chance).max() < 0.2
    model.add([[0.0, 0.0]] * 300, [1] * 300)
    assert model.predict_proba([[0.0, 0.0]])[0, 1] > found[(X == 0).all(1)][0] + 0.15


def test_categories_beyond_what_boosting_takes():
    n = 600
    frame = pd.DataFrame({"code": [f"c{i % 300}" for i in range(n)], "x": np.arange(n) % 7})
    y = (frame["x"] > 3).to_numpy()
    from nearwise.estimators.inputs.table import TableEncoder, category_places

    encoder = TableEncoder()
    encoder.fit(frame)
    assert list(category_places(encoder)) == []
    assert sums_to_one(attn_knn(**CHEAP).fit(frame, y).predict_proba(frame))


def test_kneighbors_gives_distances_in_the_metrics_unit():
    X, y = blobs()
    model = fitted(X, y)
    distances, ids = model.kneighbors(X[:3], 4)
    keys = model.memory_.keys["features"]
    assert (ids[:, 0] == [0, 1, 2]).all()
    assert np.allclose(distances[:, 0], 0, atol=1e-3)
    expected = torch.linalg.norm(keys[:3, None] - keys[torch.from_numpy(ids)], dim=2)
    assert np.allclose(distances[:, 1:], expected[:, 1:], atol=1e-4)
    assert model.kneighbors(X[:3], return_distance=False).shape == (3, 32)
    with pytest.raises(ValueError, match="must lie between 1 and the 89"):
        model.kneighbors(None, 90)
