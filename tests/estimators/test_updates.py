"""Rows that come, go or change their label after fitting."""

import copy
import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from nearwise.estimators.model.memory_views import MemoryViews
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

SETTINGS = [{}, {"estimator": logistic()}, {"estimator": "auto"}]
HELD = {"cv": 0.3, "train": {"epochs": 1}}


def island(n=8, at=40.0, seed=3):
    """Rows far from all others."""
    return np.random.default_rng(seed).normal(size=(n, 4)) * 0.1 + at


INSTANT = {"preset": "instant", "cv": "auto", "head": {}}


@pytest.mark.parametrize("settings", [*SETTINGS, INSTANT, INSTANT | {"estimator": "auto"}], ids=str)
def test_a_new_class_is_known_at_once(settings):
    model = fitted(**settings)
    model.add(island(), [7] * 8)
    assert model.classes_.tolist() == [0, 1, 2, 7]
    proba = model.predict_proba(island(3, seed=4))
    assert proba.shape == (3, 4) and sums_to_one(proba)
    assert (proba.argmax(axis=1) == 3).all()
    left_out = model.predict_proba(None)
    assert sums_to_one(left_out) and len(left_out) == 98
    if "preset" in settings:  # it is calibrated at once
        assert (proba[:, 3] > 0.6).all() and (left_out[-8:, 3] > 0.6).all()


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


def test_rows_of_weight_zero_are_remembered_and_never_asked():
    model = fitted()
    X = island(4)
    model.add(X, [0, 0, 1, 1], sample_weight=[0, 0, 1, 1])
    (explanation,) = model.explain(X[:1], n_neighbors=None)
    weights = {neighbor.id: neighbor.weight for neighbor in explanation.neighbors}
    assert weights.get(90, 0) == weights.get(91, 0) == 0 < weights[92]


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


def test_a_prediction_does_not_depend_on_the_rows_asked_with_it():
    X, y = blobs(150)
    model = fitted(X[:100], y[:100], estimator=logistic())
    model.add(X[100:103] + 4, ["late"] * 3 if y.dtype.kind == "U" else [9] * 3)
    rows = np.concatenate([X[103:], X[100:102] + 4])
    together = model.predict_proba(rows)
    alone = np.concatenate([model.predict_proba(row[None]) for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-6)


@pytest.mark.parametrize("labels", [["Yes", "no"], ["yes ", "no"], ["yes", "no", "NO"]], ids=str)
def test_classes_that_differ_only_in_case_or_blanks_are_named(labels):
    X, y = blobs(40, 2)
    known = np.array(["no", "yes"])[y]
    with pytest.warns(UserWarning, match="differ only in case or blanks"):
        attn_knn(preset="instant", estimator=None).fit(X, np.where(np.arange(40) < 4, "No", known))
    model = attn_knn(preset="instant", estimator=None).fit(X, known)
    with pytest.warns(UserWarning, match="differ only in case or blanks"):
        model.add(X[: len(labels)], labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.add(X[:2], ["yes", "no"])
