"""Rows that come, go or change their label after fitting."""

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import log_loss

from nearwise.classifier.model.memory_views import MemoryViews
from tests.classifier.cases import (
    CHEAP,
    attn_knn,
    blobs,
    fitted,
    logistic,
    same,
    sums_to_one,
    table,
)

SETTINGS = [{}, {"estimator": logistic()}, {"estimator": "auto"}]
HELD = {"cv": 0.3, "train": {"epochs": 1}}


def island(n=8, at=40.0, seed=3):
    """Rows far from all others."""
    return np.random.default_rng(seed).normal(size=(n, 4)) * 0.1 + at


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_new_class_is_known_at_once(settings):
    model = fitted(**settings)
    model.add(island(), [7] * 8)
    assert model.classes_.tolist() == [0, 1, 2, 7]
    proba = model.predict_proba(island(3, seed=4))
    assert proba.shape == (3, 4) and sums_to_one(proba)
    assert (proba.argmax(axis=1) == 3).all()
    assert sums_to_one(model.predict_proba(None)) and len(model.predict_proba(None)) == 98


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_add_then_remove_restores_every_prediction_exactly(settings):
    X, _ = blobs(20, seed=5)
    model = fitted(**settings)
    before = model.predict_proba(X), model.predict_proba(None), model.kneighbors(X)
    ids = model.add(X, np.zeros(20, dtype=int))
    assert not same(model.predict_proba(X), before[0])
    model.remove(ids)
    assert same(model.predict_proba(X), before[0])
    assert same(model.predict_proba(None), before[1])
    assert all(same(a, b) for a, b in zip(model.kneighbors(X), before[2], strict=True))


def test_relabel_back_restores_every_prediction_exactly():
    X, y = blobs()
    model = fitted(X, y, estimator=logistic())
    before = model.predict_proba(X)
    model.relabel([3, 4, 5], [0, 0, 0])
    assert not same(model.predict_proba(X), before)
    assert model.memory_.labels[3:6].tolist() == [0, 0, 0]
    model.relabel([3, 4, 5], y[3:6])
    assert same(model.predict_proba(X), before)


@pytest.fixture(
    scope="module", params=[*SETTINGS, HELD, {"label_noise": 0.2}, {"max_per_class": 9}]
)
def with_added_rows(request):
    model = fitted(**request.param)
    model.add(island(), [0, 1] * 4)
    return model


@pytest.mark.parametrize("warm", [False, True], ids=["nothing searched before", "neighbors known"])
def test_relabel_gives_what_searching_for_all_rows_gives(with_added_rows, warm):
    X, _ = blobs()
    fast, slow = copy.deepcopy(with_added_rows), copy.deepcopy(with_added_rows)
    if warm:
        fast.kneighbors(None)
        fast.predict_proba(X)
    ids = fast.memory_.ids[[3, -7, 40, -3, 4]].numpy()
    labels = (fast.memory_.labels[[3, -7, 40, -3, 4]] + 1) % 3
    fast.relabel(ids, labels.numpy())
    slow.relabel(ids, labels.numpy())
    slow._predictor.views.forget()  # everything that was derived
    assert fast.memory_ == slow.memory_
    assert fast.memory_ != with_added_rows.memory_
    assert same(fast.predict_proba(X), slow.predict_proba(X))


def test_relabel_searches_for_no_other_row(with_added_rows, monkeypatch):
    model = copy.deepcopy(with_added_rows)
    asked = []
    search = MemoryViews.search

    def counted(views, spec, query, *rest):
        asked.append(len(query))
        return search(views, spec, query, *rest)

    monkeypatch.setattr(MemoryViews, "search", counted)
    model.relabel(model.memory_.ids[[3, -7]].numpy(), [0, 0])
    assert max(asked, default=0) <= 2


def test_add_leaves_what_was_remembered_as_it_was():
    model = fitted(estimator=logistic())
    before = copy.deepcopy(model.memory_)
    model.add(island(), [0] * 8)
    bank = model.memory_
    assert all(torch.equal(bank.keys[name][:90], keys) for name, keys in before.keys.items())
    assert torch.equal(bank.labels[:90], before.labels)
    assert torch.equal(bank.ids[:90], before.ids)


def test_an_id_is_never_given_twice():
    model = fitted()
    assert model.add(island(2), [0, 1]).tolist() == [90, 91]
    model.remove([91])
    assert model.add(island(1), [0]).tolist() == [92]
    assert model.memory_.ids.tolist() == [*range(91), 92]


def test_a_class_with_a_single_row_is_taken():
    model = fitted()
    model.add(island(1), [3])
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert model.predict_proba(island(1))[0, 3] > model.predict_proba(blobs()[0])[:, 3].max()


def test_rows_of_weight_zero_are_remembered_and_never_asked():
    model = fitted()
    X = island(4)
    model.add(X, [0, 0, 1, 1], sample_weight=[0, 0, 1, 1])
    (explanation,) = model.explain(X[:1], n_neighbors=None)
    weights = {neighbor.id: neighbor.weight for neighbor in explanation.neighbors}
    assert weights.get(90, 0) == weights.get(91, 0) == 0 < weights[92]


def test_a_copy_learns_alone():
    X, _ = blobs()
    model = fitted()
    before = model.predict_proba(X)
    twin = copy.deepcopy(model)
    twin.add(island(), [0] * 8)
    twin.relabel([0], [2])
    assert same(model.predict_proba(X), before) and len(model.memory_) == 90


def test_tables_take_new_rows_with_new_categories():
    frame, y = table()
    model = attn_knn(**CHEAP).fit(frame, y)
    new = frame.iloc[:2].assign(town="Quito")
    with pytest.warns(UserWarning, match=r"town \(2\)"):
        model.add(new, y[:2])
    shown = model.explain(frame.iloc[:1], n_neighbors=None)[0].neighbors
    assert {neighbor.id for neighbor in shown} & {120, 121}
    assert sums_to_one(model.predict_proba(frame))


def test_columns_that_are_no_longer_in_sorted_order_are_told_of():
    X, y = blobs()
    names = np.array(["s", "v", "g"])[y]
    old = y < 2
    model = fitted(X[old], names[old])
    with pytest.warns(UserWarning, match=r"no longer sorted: \['g'\] came later"):
        model.add(X[~old], names[~old])
    proba = model.predict_proba(X)
    right = log_loss(names, proba[:, np.argsort(model.classes_)])
    assert right < 1 < log_loss(names, proba)  # which says nothing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.add(island(2), ["z"] * 2)  # told once


def test_text_classes_grow_by_longer_names():
    X, y = blobs()
    model = fitted(X, np.array(["a", "b", "c"])[y])
    model.add(island(2), ["a much longer name"] * 2)
    assert model.predict(island(1)).tolist() == ["a much longer name"]


BAD = {
    "infinity": (lambda X: np.where(X[0, 0] == X, np.inf, X), [0, 0], "contains infinity"),
    "width": (lambda X: X[:, :3], [0, 0], "3 features"),
    "labels": (lambda X: X, [0], "2 rows but y has 1 labels"),
    "missing label": (lambda X: X, [0, np.nan], "NaN or missing labels in 1 of 2"),
    "other kind": (lambda X: X, ["new", "new"], "are text .* but the classes are numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_added_changes_nothing(case):
    spoil, labels, message = BAD[case]
    model = fitted()
    before = model.predict_proba(blobs()[0])
    with pytest.raises(ValueError, match=message):
        model.add(spoil(island(2)), labels)
    assert len(model.memory_) == 90 and model.classes_.tolist() == [0, 1, 2]
    assert same(model.predict_proba(blobs()[0]), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.remove([1000]), "not among the 90 rows"),
        (lambda model: model.remove(range(89)), "leaves"),
        (lambda model: model.relabel([0], [9]), "not among the classes"),
        (lambda model: model.relabel([0, 1], [1]), "labels have shape"),
        (lambda model: model.relabel([1000], [1]), "not among the 90 rows"),
    ],
    ids=["unknown id", "too many", "unknown label", "too few labels", "unknown id to relabel"],
)
def test_impossible_changes_are_refused_and_change_nothing(change, message):
    model = fitted(estimator=logistic())
    before = model.predict_proba(blobs()[0])
    with pytest.raises(ValueError, match=message):
        change(model)
    assert len(model.memory_) == 90
    assert same(model.predict_proba(blobs()[0]), before)


@pytest.mark.parametrize(
    ("ids", "seen"),
    [
        (["a"], r"not \['a'\]"),
        (np.array(["r1", "r2"]), r"not array\(\['r1', 'r2'\]"),
        ([None], r"not \[None\]"),
        ([0.5], r"dtype torch\.float32 \(\[0\.5\]\)"),
    ],
    ids=["text", "array of text", "gap", "float"],
)
def test_ids_that_are_no_whole_numbers_are_shown(ids, seen):
    model = fitted()
    for change in (lambda: model.remove(ids), lambda: model.relabel(ids, [0] * len(ids))):
        with pytest.raises(ValueError, match=f"ids .*{seen}.*int64"):
            change()
    assert len(model.memory_) == 90


def test_a_class_may_be_forgotten_altogether():
    X, y = blobs()
    model = fitted(X, y)
    with pytest.raises(ValueError, match="no row of the class 2"):
        model.remove(np.flatnonzero(y == 2))
    model.remove(np.flatnonzero(y == 2), forget_classes=True)
    proba = model.predict_proba(X)
    assert sums_to_one(proba) and proba.shape == (90, 3)
    assert (proba[y == 2, 2] < 0.5).all()


def test_a_class_keeps_a_row_that_votes_where_not_all_do():
    model = fitted(max_per_class=3)
    bank = model.memory_
    voters = bank.ids[(bank.labels == 2) & bank.columns["findable"]]
    assert len(voters) == 3 < int((bank.labels == 2).sum())
    with pytest.raises(ValueError, match="no row of the class 2 that may be found"):
        model.remove(voters)
    with pytest.raises(ValueError, match="no row of the class 2 that may be found"):
        model.relabel(voters, [0, 0, 1])
    model.remove(bank.ids[(bank.labels == 2) & ~bank.columns["findable"]])
    model.remove(voters[:2])
    assert sums_to_one(model.predict_proba(blobs()[0]))


def test_series_and_tensors_of_ids_are_taken():
    model = fitted()
    model.remove(torch.tensor([0]))
    model.remove(np.array([1]))
    model.relabel(pd.Series([2]).to_numpy(), pd.Series([0]))
    assert len(model.memory_) == 88 and model.memory_.labels[0] == 0


def test_a_prediction_does_not_depend_on_the_rows_asked_with_it():
    X, y = blobs(150)
    model = fitted(X[:100], y[:100], estimator=logistic())
    model.add(X[100:103] + 4, ["late"] * 3 if y.dtype.kind == "U" else [9] * 3)
    rows = np.concatenate([X[103:], X[100:102] + 4])
    together = model.predict_proba(rows)
    alone = np.concatenate([model.predict_proba(row[None]) for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-6)
