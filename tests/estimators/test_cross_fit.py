"""A cross-fitted table: the pretrained head goes on learning, and classifiers join it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from nearwise import AttnKNNClassifier
from nearwise.estimators.fit import networks
from tests.estimators.cases import attn_knn, blobs, fit_once, reopened, same, sums_to_one


def cross_fitted(X, y, estimator="auto", **parameters):
    model = attn_knn(estimator=estimator, random_state=0, **parameters)
    return fit_once(model, X, y)


def scales(n=360, seed=0):
    """Weights and distances on both sides of a scale, and which side is heavier."""
    X = np.random.default_rng(seed).integers(1, 6, size=(n, 4)).astype(float)
    return X, np.sign(X[:, 0] * X[:, 1] - X[:, 2] * X[:, 3])


@pytest.mark.parametrize("preset", ["default", "instant"])
@pytest.mark.parametrize("base", ["auto", None])
def test_it_beats_k_nearest_neighbors(base, preset):
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    rows, new, labels, truth = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    proba = cross_fitted(rows, labels, base, preset=preset).predict_proba(new)
    votes = KNeighborsClassifier(16).fit(rows, labels).predict_proba(new)
    assert sums_to_one(proba)
    assert log_loss(truth, proba) < log_loss(truth, 0.999 * votes + 0.001 / 3)


def test_the_head_is_kept_as_it_came_where_training_brings_nothing():
    X, _ = blobs(150)
    y = np.random.default_rng(1).integers(2, size=150)
    plain, model = (
        AttnKNNClassifier(preset="instant", estimator=None, random_state=0),
        cross_fitted(X, y, None),
    )
    plain.fit(X, y)
    record = model.report_.choice["head"]
    assert record["nll_after"] > record["nll_before"] - 1 / 150
    heads = [one.fitted_.predictor.head.state_dict() for one in (plain, model)]
    assert all(same(heads[0][name], heads[1][name]) for name in heads[0])


def test_training_the_head_lowers_the_error_of_new_rows_where_it_was_accepted(tmp_path):
    X, y = scales()
    X_new, truth = scales(seed=1)
    model = cross_fitted(X, y, None)
    record = model.report_.choice["head"]
    assert record["nll_after"] < record["nll_before"]
    plain = AttnKNNClassifier(preset="instant", estimator=None, random_state=0).fit(X, y)
    after, before = (log_loss(truth, one.predict_proba(X_new)) for one in (model, plain))
    assert after < before
    opened = reopened(model, tmp_path / "m")
    assert same(opened.predict_proba(X_new), model.predict_proba(X_new))


def test_a_classifier_joins_that_sees_what_neighbors_and_forest_do_not():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 20))
    y = (X @ rng.normal(size=20) + 0.3 * rng.normal(size=400) > 0).astype(int)
    model = cross_fitted(X[:250], y[:250], cv=3)
    assert {*model.report_.choice["base"]} - {"extra-trees"}
    parts = model.query(X[250:]).parts
    whole, neighbors = (log_loss(y[250:], one) for one in (parts.proba, parts.neighbor_proba))
    assert whole < neighbors


def test_what_is_removed_is_found_no_more_and_refresh_fits_again():
    X, y = blobs(120)
    model = cross_fitted(X, y, None)
    model.remove(np.arange(0, 20))
    assert not {*range(20)} & {*model.kneighbors(X)[1].ravel().tolist()}
    model.refresh()
    fresh = cross_fitted(X[20:], y[20:], None)
    assert same(model.predict_proba(X), fresh.predict_proba(X))


@pytest.mark.parametrize(("rows", "base"), [(4, "auto"), (9, None), (20, None)])
def test_few_rows_are_enough(rows, base):
    X, y = blobs(rows, n_classes=2) if rows > 4 else (np.arange(8.0).reshape(4, 2), [0, 0, 1, 1])
    assert sums_to_one(cross_fitted(pd.DataFrame(X), y, base).predict_proba(X))


def test_nothing_is_learned_on_few_rows_unless_it_is_asked_for():
    X, y = blobs(30)
    plain = AttnKNNClassifier(preset="instant", random_state=0).fit(X, y)
    assert same(cross_fitted(X, y).predict_proba(X + 0.1), plain.predict_proba(X + 0.1))
    with_base = cross_fitted(X, y, estimator=KNeighborsClassifier(5))
    assert list(with_base.report_.choice["base"]) == ["KNeighborsClassifier"]
    assert "head" in cross_fitted(X, y, cv=2).report_.choice


def stripes(n=400, seed=0):
    """Stripes along one column tell the class; nine other columns tell nothing."""
    X = np.random.default_rng(seed).normal(size=(n, 10))
    return X, np.floor(1.2 * X[:, 0]) % 2


def test_a_trained_key_space_joins_where_it_predicts_other_rows_better(monkeypatch):
    monkeypatch.setattr(networks, "_LEAST_TRAINED", 400)
    X, y = stripes()
    X_new, truth = stripes(seed=1)
    plain, model = (cross_fitted(X, y, None, embedder=kind) for kind in ("identity", "auto"))
    assert model.report_.choice["embedder"] == "table"
    assert "trained" in model.memory_.keys
    after, before = (log_loss(truth, one.predict_proba(X_new)) for one in (model, plain))
    assert after < before


def test_a_trained_key_space_is_left_out_where_labels_follow_nothing(monkeypatch):
    monkeypatch.setattr(networks, "_LEAST_TRAINED", 200)
    X, _ = blobs(200)
    y = np.random.default_rng(1).integers(2, size=200)
    model = cross_fitted(X, y, None)
    assert model.report_.choice["embedder"] == "identity"
    assert set(model.memory_.keys) == {"features"}


def test_a_perceptron_finds_products_of_columns():
    X, y = scales(240)
    X_new, truth = scales(seed=1)
    model = cross_fitted(X, y, cv=2)
    assert "mlp" in model.report_.choice["base"]
    assert log_loss(truth, model.predict_proba(X_new)) < 0.2
