"""Explanations name who was asked, how much they weighed, and what they changed."""

import numpy as np
import pandas as pd
import pytest

from tests.estimators.cases import (
    CHEAP,
    attn_knn,
    blobs,
    fitted,
    logistic,
    same,
    sums_to_one,
    table,
)

HELD = {"cv": 0.3, "train": {"epochs": 1}}
SETTINGS = [
    {},
    {"estimator": logistic()},
    {"estimator": "auto"},
    {"n_neighbors": 1},
    {"estimator": "auto", **HELD},
    {"embedder": "table", "train": {"epochs": 1}},
    {"preset": "instant", "cv": "auto", "head": {}},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("queries", ["new", None])
def test_weights_and_the_null_share_all_the_attention(settings, queries):
    model = fitted(**settings)
    X = None if queries is None else blobs(12, seed=1)[0]
    explanations = model.explain(X, n_neighbors=None)
    parts = model.query(X).parts
    assert len(explanations) == len(parts.proba)
    for row, explanation in enumerate(explanations):
        weights = [neighbor.weight for neighbor in explanation.neighbors]
        assert sum(weights) + explanation.null_mass == pytest.approx(1, abs=1e-5)
        assert weights == sorted(weights, reverse=True)
        ids = [neighbor.id for neighbor in explanation.neighbors]
        assert len(set(ids)) == len(ids) and (queries or row not in ids)
        assert same(explanation.proba, parts.proba[row])
        assert same(explanation.base_proba, parts.base_proba[row])
        assert same(explanation.neighbor_proba, parts.neighbor_proba[row])
        assert explanation.label == model.classes_[parts.proba[row].argmax()]
        assert all(sums_to_one(neighbor.proba_without) for neighbor in explanation.neighbors)


def test_the_rows_shown_are_the_training_rows():
    X, y = blobs()
    model = fitted(X, y)
    for neighbor in model.explain(X[:1])[0].neighbors:
        assert list(neighbor.row.values()) == X[neighbor.id].tolist()
        assert list(neighbor.row) == ["x0", "x1", "x2", "x3"]
        assert neighbor.label == y[neighbor.id]
    distances, ids = model.kneighbors(X[:1])
    known = dict(zip(ids[0].tolist(), distances[0].tolist(), strict=True))
    for neighbor in model.explain(X[:1])[0].neighbors:
        assert neighbor.distance == pytest.approx(known[neighbor.id], abs=1e-3)


def test_the_rows_shown_of_a_table_keep_text_and_gaps():
    frame, y = table()
    model = attn_knn(**CHEAP).fit(frame, y)
    for neighbor in model.explain(frame[:2], n_neighbors=5)[1].neighbors:
        row = frame.iloc[neighbor.id]
        assert list(neighbor.row) == list(frame.columns)
        assert neighbor.row["age"] == row["age"] and neighbor.label == y[neighbor.id]
        assert neighbor.row["mixed"] == row["mixed"]


def test_gaps_of_rows_shown_are_none_whatever_the_type_of_the_column():
    frame, y = table()
    n = len(frame)
    frame["when"] = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(n) % 9, unit="D")
    frame["vip"] = pd.Series([True, None] * (n // 2), dtype=object)
    frame["paid"] = pd.array([False, None] * (n // 2), dtype="boolean")
    frame["length"] = pd.to_timedelta(np.arange(n) % 5, unit="h")
    frame.loc[1::2, ["when", "length"]] = None
    columns = ["when", "vip", "paid", "length"]
    model = attn_knn(**CHEAP).fit(frame, y)
    for neighbor in model.explain(frame[:2], n_neighbors=20)[0].neighbors:
        gaps = [neighbor.row[name] is None for name in columns]
        assert gaps == [neighbor.id % 2 == 1] * 4, neighbor.row
        again, given = pd.DataFrame([neighbor.row]), frame.loc[[neighbor.id]]
        assert same(model.predict_proba(again), model.predict_proba(given))


def test_as_many_neighbors_as_asked_for():
    model = fitted()
    X, _ = blobs(2, seed=1)
    assert [len(e.neighbors) for e in model.explain(X, n_neighbors=3)] == [3, 3]
    assert [len(e.neighbors) for e in model.explain(X)] == [10, 10]
    assert [len(e.neighbors) for e in model.explain(X, n_neighbors=None)] == [32, 32]


def test_rows_added_and_removed_are_shown_under_their_ids():
    X, y = blobs()
    model = fitted(X, y)
    model.remove([0, 1])
    far = np.full((1, 4), 50.0)
    (added,) = model.add(far, [2]).tolist()
    first = model.explain(far, n_neighbors=1)[0].neighbors[0]
    assert first.id == added == 90 and list(first.row.values()) == far[0].tolist()
    for neighbor in model.explain(X[2:3])[0].neighbors:
        if neighbor.id < 90:
            assert list(neighbor.row.values()) == X[neighbor.id].tolist()


@pytest.mark.slow
def test_more_rows_than_one_group_keep_their_order():
    X, y = blobs(300)
    model = fitted(X, y)
    for queries in (X, None):
        explained = np.array([e.proba for e in model.explain(queries, n_neighbors=1)])
        assert same(explained, model.predict_proba(queries))


@pytest.mark.parametrize("k", [0, -1, 2.5])
def test_a_number_of_neighbors_that_is_none_is_refused(k):
    model = fitted()
    with pytest.raises(ValueError, match=r"n_neighbors=.* must be a whole number of at least 1"):
        model.explain(blobs()[0][:2], n_neighbors=k)
