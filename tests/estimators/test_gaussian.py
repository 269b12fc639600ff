"""Gaussian classes of ready embeddings: exact left-out predictions, exact forgetting, folders."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import log_loss

from nearwise import AttnKNNClassifier
from nearwise.estimators.fit import pipeline
from nearwise.estimators.fit.gaussian import fit_gaussian
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.array_models import Gaussian
from nearwise.estimators.model.array_regressors import from_arrays
from tests.estimators.cases import reopened, same


def embeddings(n=240, seed=0, n_classes=3):
    """Rows that look like ready embeddings: 70 numbers, each of which tells a little."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n)
    X = rng.normal(size=(n, 70)) + 0.35 * rng.normal(size=(n_classes, 70))[y]
    return (X @ rng.normal(size=(70, 70))).astype(np.float32), y


def instant(X, y, **parameters):
    return AttnKNNClassifier(preset="instant", random_state=0, **parameters).fit(X, y)


def scores(X, y, weight=None):
    encoder = TableEncoder()
    return fit_gaussian(encoder, encoder.fit(X), y, weight)


def naive(keys, labels, weight, row, n_total, ridge, lent):
    """Scores (C,) of a row by Gaussian classes of all rows but this one, in loops."""
    others = np.arange(len(keys)) != row
    classes, width = np.unique(labels), keys.shape[1]
    counts, means, scatters = [], [], []
    for one in classes:
        of_class = np.flatnonzero(others & (labels == one))
        w = weight[of_class]
        mean = (w[:, None] * keys[of_class]).sum(0) / w.sum()
        apart = keys[of_class] - mean
        counts.append(w.sum())
        means.append(mean)
        scatters.append((w[:, None] * apart).T @ apart)
    shared = sum(scatters) / n_total + ridge * np.eye(width)
    found = []
    for count, mean, scatter in zip(counts, means, scatters, strict=True):
        covariance = (scatter + lent * shared) / (count + lent) if lent else shared
        apart = keys[row] - mean
        size = 1.0
        squared = size * apart @ np.linalg.solve(covariance, apart)
        log_det = np.linalg.slogdet(covariance)[1]
        found.append(np.log(count / (n_total - weight[row])) - (squared + log_det) / 2)
    return np.array(found)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("most", [2**23, 0], ids=["own covariances", "one covariance"])
def test_left_out_scores_are_those_of_a_fit_without_the_row(monkeypatch, weighted, most):
    monkeypatch.setattr("nearwise.estimators.fit.gaussian._MOST", most)
    X, y = embeddings(90)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 90) if weighted else np.ones(90)
    arrays, left_out = scores(X, y, weight)
    encoder = TableEncoder()
    dense = encoder.dense(encoder.fit(X)).astype(float)
    keys = (dense - arrays["center"]) @ arrays["rotation"]
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    ridge, lent = 0.1 * keys.var(0).mean(), 16 * keys.shape[1] if most else 0
    for row in (0, 17, 89):
        slow = naive(keys, y, weight, row, weight.sum(), ridge, lent)
        assert np.allclose(left_out[row], slow, rtol=1e-8, atol=1e-8)


def test_rows_that_weigh_nothing_and_classes_of_one_row_are_left_out_too():
    X, y = embeddings()
    y[7] = 3
    weight = np.ones(len(y))
    weight[:5] = 0
    arrays, left_out = scores(X, y, weight)
    assert np.isfinite(left_out).all() and arrays["classes"].tolist() == [0, 1, 2, 3]
    assert log_softmax(left_out, axis=1)[7, 3] < -1e9
    assert np.isfinite(scores(np.zeros_like(X), y)[1]).all()  # constant columns
    moved = y.copy()
    moved[:5] = 0
    assert np.array_equal(left_out, scores(X, moved, weight)[1])


def test_it_predicts_ready_embeddings_better_than_a_forest_or_votes():
    X, y = embeddings(700)
    model = instant(X[:400], y[:400])
    choice = model.report_.choice
    assert [*choice["base"]] == ["gaussian"]
    assert choice["base_nll"]["gaussian"] < min(choice["feature_nll"].values())
    forest = ExtraTreesClassifier(200, random_state=0).fit(X[:400], y[:400])
    ours, theirs = (log_loss(y[400:], m.predict_proba(X[400:])) for m in (model, forest))
    assert ours < theirs


def test_a_forest_begun_to_compare_with_grows_into_the_one_that_is_fitted_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    wave = rng.uniform(-6, 6, 200)
    X, y = wave[:, None] + 0.1 * rng.normal(size=(200, 64)), np.sin(2 * wave) > 0
    grown = instant(X, y)
    assert [*grown.report_.choice["base"]] == ["extra-trees"]  # which predicts these better
    monkeypatch.setattr(pipeline, "_may_be_gaussian", lambda *_: False)
    assert same(grown.predict_proba(X), instant(X, y).predict_proba(X))
    assert same(grown.predict_proba(None), instant(X, y).predict_proba(None))


# --- forgetting ---------------------------------------------------------------------------------


def test_removed_and_relabelled_rows_leave_nothing_behind():
    X, y = embeddings()
    gone, kept = np.arange(0, 240, 11), np.setdiff1d(np.arange(240), np.arange(0, 240, 11))
    wrong = y.copy()
    wrong[1:4] = (y[1:4] + 1) % 3
    model = instant(X, wrong)
    assert model.predict_proba(X).shape == (240, 3)
    model.relabel([1, 2, 3], y[1:4])
    assert same(model.predict_proba(X), instant(X, y).predict_proba(X))
    model.remove(gone)
    fresh = instant(X[kept], y[kept])
    assert same(model.predict_proba(X), fresh.predict_proba(X))
    assert same(model.predict_proba(None), fresh.predict_proba(None))


def test_rows_that_are_added_and_removed_leave_the_former_predictions():
    X, y = embeddings()
    model = instant(X[:200], y[:200])
    before, left_out = model.predict_proba(X), model.predict_proba(None)
    ids = model.add(X[200:230], y[200:230])
    assert not same(model.predict_proba(X), before)
    model.remove(ids)
    assert same(model.predict_proba(X), before)
    assert same(model.predict_proba(None), left_out)


def test_rows_of_a_new_class_are_predicted_before_the_base_knows_it():
    X, y = embeddings()
    far = X[:9] * 0.1 + 60
    model = instant(X, y)
    model.add(far[:6], [7] * 6)
    assert (model.predict_proba(far[6:])[:, 3] > 0.5).all()
    model.remove(model.memory_.ids[:3])  # fits again: the base then knows the class
    assert model.report_.choice["base_nll"]["gaussian"] < 1
    assert (model.predict_proba(far[6:])[:, 3] > 0.5).all()


# --- folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["instant", "default"])
def test_a_folder_keeps_every_bit(tmp_path, preset):
    X, y = embeddings()
    model = AttnKNNClassifier(preset=preset, random_state=0).fit(X[:200], y[:200])
    assert "gaussian" in model.report_.choice["base"]
    loaded = reopened(model, tmp_path / "m")
    assert same(model.predict_proba(X), loaded.predict_proba(X))
    assert same(model.predict_proba(None), loaded.predict_proba(None))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("factor", lambda a: a[:2], "matrices for 3 classes"),
        ("factor", lambda a: a[:, :-1], "factor has shape"),
        ("offset", lambda a: a * np.nan, "offset holds NaN"),
        ("bias", lambda a: a[:1], "bias has shape"),
        ("center", lambda a: a[:-1], "center has shape"),
        ("rotation", lambda a: a.astype(int), "rotation has type"),
    ],
)
def test_forged_arrays_are_refused(name, change, message):
    arrays, _ = scores(*embeddings(60))
    assert isinstance(from_arrays("gaussian", arrays), Gaussian)
    with pytest.raises(ValueError, match=message):
        from_arrays("gaussian", arrays | {name: change(arrays[name])})
    with pytest.raises(ValueError, match="is missing"):
        from_arrays("gaussian", {k: v for k, v in arrays.items() if k != name})
