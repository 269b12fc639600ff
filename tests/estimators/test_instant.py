"""preset="instant": nothing is trained, changes count at once, and what is removed is forgotten."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

from nearwise import AttnKNNClassifier
from tests.estimators.cases import blobs, fit_once, reopened, same, table
from tests.estimators.test_updates import island

BASES = ["auto", None]


def instant(X, y, estimator=None, **parameters):
    model = AttnKNNClassifier(preset="instant", estimator=estimator, random_state=0, **parameters)
    return fit_once(model, X, y)


# --- forgetting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numbers", "mixed columns"])
def test_what_is_removed_is_forgotten_to_the_bit(kind):
    X, y = blobs(120) if kind == "numbers" else table(120)
    gone, kept = np.arange(0, 120, 9), np.setdiff1d(np.arange(120), np.arange(0, 120, 9))
    X = pd.DataFrame(X)
    model = instant(X, y)
    model.remove(gone)
    fresh = instant(X.iloc[kept], np.asarray(y)[kept])
    assert same(model.predict_proba(X), fresh.predict_proba(X))
    assert same(model.predict_proba(None), fresh.predict_proba(None))
    assert same(model.predict_set(X, 0.8), fresh.predict_set(X, 0.8))
    assert model.report_.temperature == fresh.report_.temperature
    assert model.memory_.ids.tolist() == kept.tolist()


def test_rows_that_were_added_and_removed_leave_nothing_behind(tmp_path):
    X, y = blobs(90)
    model, before = instant(X, y), instant(X, y).predict_proba(X)
    ids = model.add(island(), [7] * 8)
    model.remove(ids[:4])
    model = reopened(model, tmp_path / "m")
    model.remove(ids[4:], forget_classes=True)
    proba = model.predict_proba(X)
    assert model.classes_.tolist() == [0, 1, 2, 7]
    assert (proba[:, 3] < 0.02).all() and np.abs(proba[:, :3] - before).max() < 0.02
    again = model.add(island(1), [7])
    assert int(again[0]) > int(ids[-1])  # an id names its row for good


def test_a_corrected_label_is_as_if_it_had_always_been_so():
    X, y = blobs(90)
    wrong = y.copy()
    wrong[:5] = (y[:5] + 1) % 3
    model = instant(X, wrong)
    model.relabel(np.arange(5), y[:5])
    assert same(model.predict_proba(X), instant(X, y).predict_proba(X))


def test_columns_that_the_fit_left_out_stay_left_out():
    X, y = blobs(90)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(row=np.arange(90))
    with pytest.warns(UserWarning, match="row"):
        model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0).fit(frame, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.remove([5, 7])
        proba = model.predict_proba(frame.drop(columns="row"))
    assert model.report_.columns["row"] == "left out"
    kept = np.setdiff1d(np.arange(90), [5, 7])
    fresh = instant(frame.drop(columns="row").iloc[kept], y[kept])
    assert same(proba, fresh.predict_proba(frame.drop(columns="row")))


def test_with_weights_forgetting_is_exact_up_to_rounding():
    X, y = blobs(90)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 90)
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0).fit(X, y, weight)
    model.remove([1, 2, 3])
    kept = np.setdiff1d(np.arange(90), [1, 2, 3])
    fresh = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    fresh.fit(X[kept], y[kept], weight[kept])
    assert np.abs(model.predict_proba(X) - fresh.predict_proba(X)).max() < 1e-5


# --- what a row's own label may tell ------------------------------------------------------------


def test_without_a_base_a_row_is_predicted_as_if_its_label_were_unknown():
    X, y = blobs(150)
    other = y.copy()
    other[10] = (y[10] + 1) % 3
    settings = {"calibration": None}
    models = [instant(X, labels, settings=settings) for labels in (y, other)]
    assert models[0].report_.choice["features"] == models[1].report_.choice["features"]
    left_out = [model.predict_proba(None)[10] for model in models]
    assert np.abs(left_out[0] - left_out[1]).max() < 1e-6
    assert (
        np.abs(models[0].predict_proba(X[10:11]) - models[1].predict_proba(X[10:11])).max() > 0.01
    )


# --- changes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
def test_rows_that_come_and_go_keep_every_rows_own_neighbors(base):
    X, y = blobs(265)
    model = instant(X[:200], y[:200], base)
    ids = model.add(X[200:260], y[200:260])
    model.remove(ids[::3])
    model.add(X[260:265], y[260:265])
    bank, seen = model.memory_, 17
    keys = bank.keys["features"].double().numpy()
    distances = np.linalg.norm(keys[:, None] - keys[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, :seen]
    own = bank.columns["own.features"].numpy()
    shared = [len({*a} & {*b}) for a, b in zip(bank.ids.numpy()[order], own, strict=True)]
    assert np.mean(shared) > seen - 0.01  # but for distances that differ by their rounding


@pytest.mark.parametrize("base", BASES)
def test_a_tiny_memory_grows(base):
    X, y = blobs(150, n_classes=2)
    truth, model = y[60:], instant(X[:4], y[:4], base)
    few = log_loss(truth, model.predict_proba(X[60:]))
    for row in range(4, 40):
        model.add(X[row : row + 1], y[row : row + 1])
    grown, at_once = (
        model.predict_proba(X[60:]),
        instant(X[:40], y[:40], base).predict_proba(X[60:]),
    )
    assert log_loss(truth, grown) < few - 0.1
    assert log_loss(truth, grown) < log_loss(truth, at_once) + 0.2  # the map is that of 4 rows
    model.refresh()
    assert log_loss(truth, model.predict_proba(X[60:])) < log_loss(truth, at_once) + 0.02


@pytest.mark.parametrize("base", BASES)
def test_a_stream_is_learned_within_its_capacity(base):
    X, y = blobs(300)
    settings = {"capacity": 80, "eviction": "age"}
    model = AttnKNNClassifier(preset="instant", estimator=base, random_state=0, settings=settings)
    for start in range(0, 240, 60):
        model.partial_fit(X[start : start + 60], y[start : start + 60])
    assert len(model.memory_) == 80
    assert log_loss(y[240:], model.predict_proba(X[240:])) < 0.6


def test_refresh_brings_the_forest_up_to_date():
    X, y = blobs(200)
    model = instant(X[:60], y[:60], "auto")
    model.add(X[60:], y[60:])
    model.refresh()
    assert same(model.predict_proba(X), instant(X, y, "auto").predict_proba(X))


# --- what else a classifier does ----------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
def test_a_saved_model_predicts_the_same_after_changes(base, tmp_path):
    X, y = table(150)
    model = instant(X[:120], y[:120], base)
    ids = model.add(X[120:], y[120:])
    if base == "auto":
        model.remove(ids[:3])
    read = reopened(model, tmp_path / "m")
    assert same(read.predict_proba(X), model.predict_proba(X))
    assert same(read.predict_proba(None), model.predict_proba(None))
    for one in (read, model):
        one.add(X[:2], y[:2])
    assert same(read.predict_proba(X), model.predict_proba(X))


def test_prediction_sets_hold_their_coverage_with_a_forest():
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    y = np.where(rng.random(len(y)) < 0.1, rng.integers(10, size=len(y)), y)
    order = rng.permutation(len(y))
    rows, new = order[:700], order[700:]
    model = instant(X[rows], y[rows], "auto")
    held = model.predict_set(X[new], 0.9)[np.arange(len(new)), y[new]].mean()
    assert 0.87 < held < 0.94


@pytest.mark.parametrize(
    ("base", "told"), [("auto", "trees that saw its label"), (None, "itself.")]
)
def test_a_risk_bound_says_what_its_rows_are(base, told):
    X, y = blobs(120)
    chosen = instant(X, y, base).predict_selective(X[:5] + 0.01, coverage=0.8)
    assert "each predicted without itself" in chosen.guarantee and told in chosen.guarantee
    assert "leave-one-out" in instant(X, y, base).report_.calibration_source


def test_it_fits_many_classes_and_two_rows():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(70), 3)
    X = rng.normal(size=(70, 6))[y] * 3 + rng.normal(size=(210, 6)) * 0.3
    assert (instant(X, y, "auto").predict(X) == y).mean() > 0.9
    two = instant(np.array([[0.0], [0.1], [5.0], [5.1]]), [0, 0, 1, 1])
    assert two.predict([[0.05], [5.05]]).tolist() == [0, 1]


def test_the_class_prior_is_changed_as_in_other_presets():
    X, y = blobs(200, n_classes=2)
    rare = np.flatnonzero((y == 0) | (np.arange(200) % 5 == 0))
    shares = instant(X[rare], y[rare]).predict_proba(X).mean(0)
    even = instant(X[rare], y[rare], class_prior="uniform").predict_proba(X).mean(0)
    assert abs(even[1] - 0.5) < abs(shares[1] - 0.5)
