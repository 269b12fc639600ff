"""Batches in turn, a bounded memory, and attention that is brought up to date."""

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone

from nearwise.estimators import AttnKNNClassifier
from nearwise.estimators.inputs.rows import Source
from nearwise.estimators.storage.journaling import apply, draft_add, pack_rows_to_add, replay
from nearwise.memory import EVICTION_NAMES
from tests.estimators.cases import (
    CHEAP,
    attn_knn,
    blobs,
    fitted,
    left_out_accuracy,
    logistic,
    reopened,
    same,
    sums_to_one,
)
from tests.store.folders import edited

X, Y = blobs(240, n_classes=4, spread=0.8)
FIRST = np.flatnonzero(Y[:120] < 2)  # two of four classes
LATER = np.setdiff1d(np.arange(240), FIRST)


def stream(model, rows=LATER, cut=45):
    for start in range(0, len(rows), cut):
        batch = rows[start : start + cut]
        model.partial_fit(X[batch], Y[batch])
    return model


def begun(**settings):
    """Take the first batch, which is fitted as by `fit`."""
    return fitted(X[FIRST], Y[FIRST], **settings)


@functools.cache
def _streamed(eviction):
    return stream(begun(capacity=60, eviction=eviction))


def streamed(eviction):
    """Take all batches into a memory of 60 rows; once, and give each test a copy."""
    return copy.deepcopy(_streamed(eviction))


@pytest.mark.parametrize("calibration", ["auto", "per-class"])
def test_the_first_batch_is_fitted_and_later_ones_are_added(calibration):
    model = attn_knn(**CHEAP, calibration=calibration).partial_fit(X[FIRST], Y[FIRST])
    assert same(model.predict_proba(X), begun(calibration=calibration).predict_proba(X))
    stream(model)  # brings two classes more, and rows enough for a refresh
    assert len(model.memory_) == 240 and model.classes_.tolist() == [0, 1, 2, 3]
    assert sums_to_one(model.predict_proba(X)) and left_out_accuracy(model) > 0.9
    assert left_out_accuracy(model.refresh()) > 0.9


def test_declared_classes_have_columns_before_their_first_row(tmp_path):
    with pytest.raises(ValueError, match=r"y holds \[1\]"):
        attn_knn(**CHEAP).partial_fit(X[FIRST], Y[FIRST], classes=[0, 2])
    model = attn_knn(**CHEAP).partial_fit(X[FIRST], Y[FIRST], classes=[0, 1, 2, 3])
    assert model.classes_.tolist() == [0, 1, 2, 3]
    proba = model.predict_proba(X)
    assert proba.shape == (240, 4) and sums_to_one(proba) and proba[:, 2:].max() < 0.05
    for one in (model, reopened(model, tmp_path / "m")):
        with pytest.raises(ValueError, match=r"y holds \[9\]"):
            one.partial_fit(X[:1], [9])


@pytest.mark.parametrize(
    ("labels", "message"),
    [([1, 1, 1], "must be one that can be fitted.*one class"), ([0, 2, 1], "only one of its")],
)
def test_a_first_batch_that_cannot_be_fitted_says_so(labels, message):
    model = attn_knn(**CHEAP)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X[:3], labels)
    assert not hasattr(model, "classes_")


@pytest.mark.parametrize("eviction", EVICTION_NAMES)
def test_a_full_memory_stays_full_and_says_who_went(eviction):
    model = begun(capacity=50, eviction=eviction)
    assert len(model.memory_) == 50 and len(model.fitted_.evicted) == 10
    before = set(model.memory_.ids.tolist())
    ids = model.add(X[LATER[:30]], Y[LATER[:30]])
    after = set(model.memory_.ids.tolist())
    assert len(after) == 50
    assert set(model.fitted_.evicted.tolist()) == (before | set(ids.tolist())) - after
    assert sums_to_one(model.predict_proba(X)) and sums_to_one(model.predict_proba(None))


@pytest.mark.parametrize("eviction", EVICTION_NAMES)
@pytest.mark.parametrize("capacity", [30, 50])
def test_rows_that_are_never_found_go_first(eviction, capacity):
    model = begun(capacity=capacity, eviction=eviction, max_per_class=20)  # 40 of 60 are found
    bank = model.memory_
    assert len(bank) == capacity and int(bank.columns["findable"].sum()) == min(capacity, 40)
    model.add(X[LATER[:30]], Y[LATER[:30]])
    bank = model.memory_
    assert len(bank) == int(bank.columns["findable"].sum()) == capacity
    assert sums_to_one(model.predict_proba(X)) and sums_to_one(model.predict_proba(None))


@pytest.mark.parametrize("eviction", EVICTION_NAMES)
def test_a_stream_that_was_saved_and_loaded_goes_on_as_if_it_had_not_been(eviction, tmp_path):
    whole = streamed(eviction)
    broken = stream(begun(capacity=60, eviction=eviction), LATER[:90])
    broken = stream(reopened(broken, tmp_path / "half"), LATER[90:])
    assert broken.memory_ == whole.memory_
    assert same(broken.predict_proba(X), whole.predict_proba(X))
    assert whole._fitted.stream == broken._fitted.stream


@pytest.mark.parametrize("former", ["class-balanced", "importance"])
def test_models_of_a_former_eviction_open_and_go_on_at_random(former, tmp_path):
    model = begun()
    model.save(tmp_path / "model")
    edited(
        tmp_path / "model",
        tmp_path / "former",
        meta=lambda meta: meta["params"].update(eviction=former),
    )
    with pytest.warns(UserWarning, match=f"eviction='{former}', which nearwise no longer has"):
        loaded = AttnKNNClassifier.load(tmp_path / "former")
    assert loaded.settings.eviction == "reservoir"
    assert same(loaded.predict_proba(X), model.predict_proba(X))
    loaded.add(X[:2], Y[:2])


def test_journals_of_a_former_eviction_are_made_again():
    model, now = begun(capacity=70), begun(capacity=70)
    parts = pack_rows_to_add(Source(X[LATER[:20]], Y[LATER[:20]], None), None, None)
    changed, made = apply(model, model._fitted, draft_add(model, parts))
    former = replace(made, details=made.details | {"eviction": "importance"})
    with pytest.warns(UserWarning, match="no longer has"):
        again = replay(now, now.fitted_, [former])
    assert again.bank == changed.bank and len(again.bank) == 70
    assert now.settings.eviction == "reservoir"


def test_votes_fade_as_the_last_change_left_it_in_a_saved_copy_too(tmp_path):
    model = streamed("age")
    before = model.predict_proba(X)
    model.set_params(settings__eviction="reservoir")  # for the next change
    model.save(tmp_path / "model")
    assert same(model.predict_proba(X), before)
    assert same(AttnKNNClassifier.load(tmp_path / "model").predict_proba(X), before)


def test_the_same_seed_and_batches_give_the_same_memory_and_another_seed_another():
    memories = [
        stream(begun(capacity=60, random_state=seed)).memory_.ids.tolist() for seed in (0, 0, 1)
    ]
    assert memories[0] == memories[1] != memories[2]


def test_old_rows_fade_with_age_and_stay_in_a_reservoir():
    old = {}
    for eviction in ("age", "reservoir"):
        model = streamed(eviction)
        old[eviction] = float((model.memory_.ids < 120).float().mean())
    assert old["age"] < old["reservoir"] - 0.2


@pytest.mark.parametrize("settings", [{}, {"estimator": logistic()}], ids=["no base", "base"])
def test_refresh_makes_new_classes_full_classes(settings, tmp_path):
    model = begun(**settings)
    model.add(X[LATER], Y[LATER])
    model.refresh()
    assert len(model._predictor.prior) == 4
    assert model._predictor.prior.sum() == pytest.approx(1)
    proba = model.predict_proba(X)
    assert proba.shape == (240, 4) and sums_to_one(proba)
    assert sums_to_one(model.query(X).parts.base_proba)
    assert left_out_accuracy(model) > 0.85
    left_out = model.predict_proba(None)
    again = reopened(model, tmp_path / "m")
    assert same(again.predict_proba(X), proba) and same(again.predict_proba(None), left_out)


def test_refresh_repeats_itself_bit_for_bit():
    probas = []
    for _ in range(2):
        model = begun()
        model.add(X[LATER], Y[LATER])
        probas.append(model.refresh().predict_proba(X))
    assert same(*probas)


def test_partial_fit_refreshes_when_a_new_class_has_come():
    model = begun()
    stream(model, LATER[:60], cut=20)
    assert int((model.memory_.columns["fold"] >= 0).sum()) > len(FIRST)


@pytest.mark.parametrize("prior", ["uniform", (0.2, 0.8)], ids=str)
def test_wanted_shares_are_set_against_those_of_the_memory_at_a_refresh(prior, tmp_path):
    given, plain = begun(class_prior=prior), begun()
    for model in (given, plain):
        model.add(X[LATER[:30]], Y[LATER[:30]])  # brings two classes more
        model.refresh()
    there = given._predictor.prior.double().numpy()
    assert there.min() < 0.2 < there.max()
    before, after = plain.predict_proba(X), given.predict_proba(X)
    wanted = np.full(4, 0.25) if prior == "uniform" else np.array(prior)
    listed = slice(0, len(wanted))
    moved = before[:, listed] * wanted / there[listed]
    moved *= before[:, listed].sum(1, keepdims=True) / moved.sum(1, keepdims=True)
    np.testing.assert_allclose(after[:, listed], moved, atol=1e-4)
    np.testing.assert_allclose(after[:, len(wanted) :], before[:, len(wanted) :], atol=1e-4)
    for model in (given, reopened(given, tmp_path / "m")):
        model.partial_fit(X[LATER[30:]], Y[LATER[30:]])
        assert sums_to_one(model.predict_proba(X))
    assert same(given.predict_proba(X), model.predict_proba(X))


def test_refresh_asks_all_there_are_where_there_are_fewer_than_neighbors():
    model = begun(n_neighbors=45)
    model.remove(model.memory_.ids[:20])
    model.refresh()
    assert model._predictor.views.specs[0].n_neighbors == len(model.memory_) - 1 == 39


def test_a_setting_that_is_none_is_refused_before_the_batch_is_added():
    model = begun().set_params(settings={"calibration": "both"})
    with pytest.raises(ValueError, match=r"calibration: Input should be .*got 'both'"):
        model.partial_fit(X[LATER], Y[LATER])
    assert len(model.memory_) == len(FIRST)


def test_rows_held_out_once_stream_and_are_refreshed():
    model = begun(cv=0.4)
    stream(model)
    model.refresh()
    assert left_out_accuracy(model) > 0.8


def test_a_memory_may_be_small():
    model = begun(estimator=logistic(), capacity=4)
    stream(model, LATER[:20], cut=1)
    assert len(model.memory_) == 4 and model.classes_.tolist() == [0, 1, 2, 3]
    assert sums_to_one(model.predict_proba(X)) and sums_to_one(model.predict_proba(None))


def test_more_classes_than_places_change_nothing():
    model = begun(capacity=3)
    before = model.memory_.ids.clone()
    with pytest.raises(ValueError, match="capacity=3 is too small for 4 classes"):
        model.add(X[LATER], Y[LATER])
    assert torch.equal(model.memory_.ids, before) and len(model.classes_) == 2


def test_a_clone_starts_a_stream_of_its_own():
    model = streamed("reservoir")
    fresh = clone(model)
    assert fresh._bound.capacity == 60 and not hasattr(fresh, "fitted_")
