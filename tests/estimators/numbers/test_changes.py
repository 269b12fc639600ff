"""Rows of a regressor come, go and get other targets; folders hold them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Lasso

from nearwise import AttnKNNClassifier, AttnKNNRegressor
from nearwise.estimators.fit import number_base, number_pipeline
from nearwise.memory import StoreError
from tests.estimators.numbers.cases import QUICK, fitted, fresh, table

LATER = slice(120, 150)


def later():
    X, y = table()
    return X[LATER], y[LATER]


def test_added_rows_are_found_and_calibrate():
    X, y = later()
    model = fresh()
    before = len(model.query(X).calibration_numbers().counts)
    ids = model.add(X, y)
    assert ids.tolist() == list(range(120, 150))
    assert model.memory_.columns["target"][-1] == y[-1]
    assert len(model.query(X).calibration_numbers().counts) == before + 30
    _, found = model.kneighbors(X, n_neighbors=1)
    assert found[:, 0].tolist() == ids.tolist()


def test_added_rows_change_predictions_near_them_alone():
    X, _ = later()
    model = fresh(estimator=None)
    far = X.copy()
    far[:, 0] += 100.0
    before = model.predict(X)
    model.add(far, np.full(30, 500.0))
    assert np.abs(model.predict(X) - before).max() < 0.5 * 500
    assert abs(model.predict(far).mean() - 500) < 100


def test_a_memory_that_changed_predicts_as_one_that_was_filled_so():
    X, y = table()
    changed = fresh(estimator=None)
    changed.add(X[LATER], y[LATER])
    changed.remove(range(10))
    again = AttnKNNRegressor(**QUICK, estimator=None).fit(
        np.r_[X[10:120], X[LATER]], np.r_[y[10:120], y[LATER]]
    )
    assert np.array_equal(changed.predict_interval(X), again.predict_interval(X))


def test_a_corrected_number_is_forgotten_exactly_without_a_base():
    X, y = table()
    model = fresh(estimator=None)
    model.relabel([3], [1e3])
    model.relabel([3], y[3:4])
    assert np.array_equal(model.predict_quantiles(X), fitted(estimator=None).predict_quantiles(X))


def test_bounds_follow_the_targets():
    X, y = table()
    model = AttnKNNRegressor(**QUICK).fit(X[:120], np.abs(y[:120]))
    assert model.report_.bounds[0] == 0.0
    ids = model.add(X[LATER], -np.abs(y[LATER]) - 5)
    assert model.report_.bounds[0] == -np.inf
    model.remove(ids)
    assert model.report_.bounds[0] == 0.0


def test_refused_changes_leave_the_model_as_it_is():
    X, y = later()
    model = fresh()
    held = model.fitted_
    for change, message in (
        (lambda: model.add(X, y[:5]), "30 rows but y has 5"),
        (lambda: model.add(X, np.full(30, np.nan)), "NaN"),
        (lambda: model.add(X[:, :2], y), "features"),
        (lambda: model.remove([999]), "999"),
        (lambda: model.remove(range(119)), "fewer than 2"),
        (lambda: model.relabel([999], [1.0]), "999"),
        (lambda: model.relabel([1], [np.inf]), "infinity"),
        (lambda: model.relabel([1, 2], [1.0]), "2 rows but y has 1"),
        (lambda: model.add(X, y, groups=np.arange(30)), "without groups"),
    ):
        with pytest.raises(ValueError, match=message):
            change()
    assert model.fitted_ is held


def test_a_full_memory_forgets_rows():
    X, y = later()
    model = fresh(settings={"capacity": 100})
    assert len(model.memory_) == 100
    model.add(X, y)
    assert len(model.memory_) == 100
    assert len(model.fitted_.evicted) == 30


def test_batches_are_learned_and_refresh_the_model_when_many_came():
    X, y = table()
    model = AttnKNNRegressor(**QUICK)
    for start in range(0, 150, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50])
    assert len(model.memory_) == 150
    assert model.fitted_.stream.refreshed_at == 150
    assert np.mean((model.predict(X[150:]) - y[150:]) ** 2) < 0.5 * y.var()


def test_refresh_is_a_fit_to_what_is_remembered():
    X, y = table()
    model = fresh()
    model.add(X[LATER], y[LATER])
    model.refresh()
    again = AttnKNNRegressor(**QUICK).fit(X[:150], y[:150])
    assert np.array_equal(model.predict_interval(X[150:]), again.predict_interval(X[150:]))


@pytest.mark.parametrize(
    "options",
    [{}, {"estimator": None}, {"preset": "default"}, {"preset": "default", "cv": 0.2}],
    ids=str,
)
def test_saved_models_predict_bit_for_bit_the_same(tmp_path, options):
    X, y = table()
    model = fresh(**options)
    model.add(X[LATER], y[LATER])
    model.save(tmp_path / "model")
    again = AttnKNNRegressor.load(tmp_path / "model")
    assert np.array_equal(again.predict_interval(X), model.predict_interval(X))
    assert np.array_equal(again.predict(None), model.predict(None))
    assert again.report_.choice == model.report_.choice
    assert again.get_params(deep=False).keys() == model.get_params(deep=False).keys()
    again.add(X[150:], y[150:])
    again.refresh()


def test_every_candidate_of_a_base_is_saved_and_keeps_to_the_targets(tmp_path, monkeypatch):
    monkeypatch.setattr(
        number_base, "lean_weights", lambda parts, *_: dict.fromkeys(parts, 1 / len(parts))
    )
    monkeypatch.setattr(number_pipeline, "_ENOUGH", 1)  # rows that are predicted as new: one fold's
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 4))).rename(columns="x{}".format)
    frame["kind"] = rng.choice(list("abc"), 80)
    y = np.exp(frame["x0"] + (frame["kind"] == "a") + 0.1 * rng.normal(size=80)).to_numpy()
    model = AttnKNNRegressor(random_state=0).fit(frame, y)
    assert len(model.report_.choice["base"]) == 8
    model.save(tmp_path / "model")
    again = AttnKNNRegressor.load(tmp_path / "model")
    frame["x0"] *= 1e6  # linear models and networks would go as far
    assert again.predict(frame).max() < 2 * y.max()
    assert np.array_equal(again.predict_quantiles(frame), model.predict_quantiles(frame))


def test_a_base_of_ones_own_is_saved(tmp_path):
    X, _ = later()
    model = fresh(preset="default", estimator=Lasso(alpha=0.01))
    model.save(tmp_path / "model")
    again = AttnKNNRegressor.load(tmp_path / "model")
    assert np.array_equal(again.predict(X), model.predict(X))


def test_the_folder_of_another_estimator_is_refused(tmp_path):
    X, y = table()
    fitted().save(tmp_path / "numbers")
    AttnKNNClassifier(**QUICK).fit(X, y > 0).save(tmp_path / "classes")
    by_regressor, by_classifier = "Open it by AttnKNNRegressor.load", "by AttnKNNClassifier.load"
    with pytest.raises(StoreError, match=f"regressor.*{by_regressor}"):
        AttnKNNClassifier.load(tmp_path / "numbers")
    with pytest.raises(StoreError, match=f"classifier.*{by_classifier}"):
        AttnKNNRegressor.load(tmp_path / "classes")
