"""A change of many rows is judged again: temperatures, share and class correction follow it."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from nearwise.estimators import AttnKNNClassifier, LiveModel
from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.online import judging
from nearwise.estimators.uncertainty.calibration_rows import calibration_rows
from tests.estimators.cases import attn_knn, blobs, fitted, logistic, same

X, Y = blobs(600)
TRAIN, NEW = slice(None, 240), slice(240, None)
HELD = {"cv": 0.3, "train": {"epochs": 2}, "embedder": "deep"}


def based(y=Y[TRAIN], **settings):
    """A classifier with a base, fitted once."""
    return fitted(X[TRAIN], y, **{"estimator": logistic(), **settings})


def wrong_third():
    """Ids of a third of the rows, drawn at random, and wrong labels for them."""
    ids = np.random.default_rng(1).permutation(240)[:80]
    return ids, (Y[ids] + 1) % 3


def state(model):
    """Predictions of new rows, and what they are calibrated by."""
    predictor = model._predictor
    return model.predict_proba(X[NEW]), predictor.acceptance, predictor.part_temperatures


def same_state(one, other):
    return same(one[0], other[0]) and one[1:] == other[1:]


def nll_of(model, proba=None):
    return log_loss(Y[NEW], model.predict_proba(X[NEW]) if proba is None else proba)


@pytest.mark.parametrize("settings", [{}, HELD], ids=["cross-fit", "held out"])
def test_wrong_labels_in_the_memory_give_way_to_a_base_that_did_not_see_them(settings):
    model = based(**({"estimator": "auto"} | settings if settings else {}))
    ids, labels = wrong_third()
    remembered = np.isin(ids, model.memory_.ids.numpy())
    model.relabel(ids[remembered], labels[remembered])
    parts = model.query(X[NEW]).parts
    assert nll_of(model, parts.proba) < nll_of(model, parts.base_proba) + 0.03
    noted = model.report_.choice["judged"]
    assert noted["nll"] <= noted["nll_before"] + 1 / noted["rows"]
    assert "after changes" in model.report_.calibration_source
    assert model.report_.oof_nll == noted["nll"]


def test_a_class_that_gets_another_name_is_taken_from_the_neighbors():
    model = based()
    share = model._predictor.acceptance.share
    ids = np.flatnonzero(Y[TRAIN] == 2)
    model.relabel(ids, np.ones(len(ids), dtype=int), forget_classes=True)
    assert model._predictor.acceptance.share > share or share == 1
    right = np.minimum(Y[NEW], 1)
    before = based().predict_proba(X[NEW])
    assert log_loss(right, model.predict_proba(X[NEW]), labels=[0, 1, 2]) < log_loss(
        right, before, labels=[0, 1, 2]
    )


@pytest.mark.parametrize("base", [None, "logistic"])
def test_classes_that_come_one_by_one_end_near_a_fit_to_all(base):
    X, y = blobs(700, n_classes=5, seed=4)
    train, new = np.arange(700) < 400, np.arange(700) >= 400
    base = base and logistic()
    model = fitted(X[train & (y < 2)], y[train & (y < 2)], estimator=base)
    for label in (2, 3, 4):
        model.add(X[train & (y == label)], y[train & (y == label)])
    refitted = fitted(X[train], y[train], estimator=base)
    ends = [log_loss(y[new], one.predict_proba(X[new])) for one in (model, refitted)]
    assert ends[0] < ends[1] + 0.15
    assert model.report_.choice["judged"]["changed"] == int((train & (y > 1)).sum())


def test_few_changes_leave_everything_but_the_memory_as_it_was():
    model = based()
    before = model._predictor
    ids, labels = wrong_third()
    model.relabel(ids[:10], labels[:10])
    model.remove([200])
    after = model._predictor
    assert after.acceptance is before.acceptance and after.classes is before.classes
    assert after.part_temperatures == before.part_temperatures
    assert after.of_fit is None and "judged" not in after.choice
    model.relabel(ids[10:11], labels[10:11])  # the 12th of 239 rows
    assert model._predictor.acceptance != before.acceptance and model.report_.choice["judged"]


def test_changes_that_are_taken_back_restore_the_fit_to_the_bit():
    model = based()
    before, noted = state(model), dict(model.report_.choice)
    ids, labels = wrong_third()
    model.relabel(ids, labels)
    assert not same_state(state(model), before)
    model.relabel(ids, Y[ids])
    assert same_state(state(model), before) and model.report_.choice == noted
    added = model.add(X[NEW][:60], Y[NEW][:60])
    model.remove(added)
    assert same_state(state(model), before) and model.report_.choice == noted


def test_one_call_and_many_give_the_same():
    ids, labels = wrong_third()
    at_once, bit_by_bit = based(), based()
    at_once.relabel(ids, labels)
    for part in np.array_split(np.arange(80), 4):
        bit_by_bit.relabel(ids[part], labels[part])
    assert same_state(state(bit_by_bit), state(at_once))


@pytest.mark.parametrize("settings", [{}, HELD], ids=["cross-fit", "held out"])
def test_what_was_judged_is_the_same_from_journal_and_folder(settings, tmp_path):
    model = based(**({"estimator": "auto"} | settings if settings else {}))
    model.save(tmp_path / "m")
    live = LiveModel(tmp_path / "m")
    ids, labels = wrong_third()
    there = np.isin(ids, model.memory_.ids.numpy())
    ids, labels = ids[there], labels[there]
    live.relabel(ids[:30], labels[:30])
    live.add(X[NEW][:40], Y[NEW][:40])
    live.relabel(ids[30:], labels[30:])
    now = state(live.model)
    assert live.model._predictor.of_fit is not None
    assert same_state(state(AttnKNNClassifier.load(tmp_path / "m")), now)
    live.compact()
    stored = AttnKNNClassifier.load(tmp_path / "m")
    assert same_state(state(stored), now) and stored.report_.choice == live.model.report_.choice
    for one in (stored, live):  # and goes on alike
        one.remove(np.arange(0, 30) if settings == {} else model.memory_.ids.numpy()[:30])
    assert same_state(state(stored), state(live.model))


def test_a_judgement_that_fails_publishes_nothing(monkeypatch):
    model = based()
    before = model.fitted_

    def broken(*args, **options):
        raise RuntimeError("no space left")

    monkeypatch.setattr(judging, "accept_head", broken)
    with pytest.raises(RuntimeError, match="no space"):
        model.relabel(*wrong_third())
    assert model.fitted_ is before


def test_at_most_two_thousand_rows_are_judged_and_their_draw_repeats(monkeypatch):
    X, y = blobs(2_300, n_classes=2)
    model = attn_knn(preset="instant", estimator=None, random_state=0).fit(X[:100], y[:100])
    drawn = []
    original = ClassPredictor.predict_left_out

    def noting(self, n_classes, positions=None):
        drawn.append(self.views.bank.ids[positions])
        return original(self, n_classes, positions)

    monkeypatch.setattr(ClassPredictor, "predict_left_out", noting)
    model.add(X[100:], y[100:])
    assert len(drawn[-1]) == 2_000
    model.add(X[:200] + 0.1, y[:200])
    kept = np.isin(drawn[-1].numpy(), drawn[-2].numpy()).mean()
    assert len(drawn) == 2 and kept > 0.85


def test_sets_and_trust_are_those_of_the_judged_predictions():
    model = based()
    model.predict_set(X[NEW][:5])  # makes the calibration rows of the fit
    model.relabel(*wrong_third())
    rows = calibration_rows(model._predictor, 3, 1)
    assert same(rows.parts.proba, model.predict_proba(None))


def test_class_prior_and_its_correction_follow_the_memory():
    model = based(class_prior="uniform")
    gone = np.flatnonzero(Y[TRAIN] == 0)[:60]
    model.remove(gone)
    shares = torch.log(model._predictor.prior.double())
    wanted = np.log(1 / 3) - shares.numpy()
    assert np.allclose(model._predictor.classes.shift, wanted)
    assert nll_of(model) < 1.05 * nll_of(based(class_prior="uniform")) + 0.05


@pytest.mark.parametrize("wanted", ["train", "uniform"])
def test_new_classes_are_judged_where_rows_were_held_out(wanted):
    model = based(**{**HELD, "estimator": "auto", "class_prior": wanted})
    far = np.random.default_rng(3).normal(size=(120, 4)) * 0.1 + 9.0
    model.add(far[:80], [7] * 80)
    assert model.report_.choice["judged"]["rows"] > 72  # those held out, and new ones
    assert model.predict_proba(far[80:])[:, 3].min() > 0.5
    assert model.score(X[NEW], Y[NEW]) > 0.6


def test_views_are_judged_too():
    rng = np.random.default_rng(0)
    more = X + 0.1 * rng.normal(size=X.shape)
    model = attn_knn(random_state=0, train={"epochs": 1}, head={"epochs": 1})
    model.fit(X[TRAIN], Y[TRAIN], views=[more[TRAIN]])
    before = model._predictor.of_views
    there = model.memory_.ids.numpy()
    ids = there[np.random.default_rng(2).permutation(len(there))[:70]]
    model.relabel(ids, (Y[ids] + 1) % 3)
    assert model._predictor.of_views != before
    merged = model.predict_proba(X[NEW], views=[more[NEW]])
    base = model.query(X[NEW], [more[NEW]]).parts.base_proba
    assert log_loss(Y[NEW], merged) < log_loss(Y[NEW], base) + 0.05
