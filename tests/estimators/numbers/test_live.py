"""A saved regressor is changed while it answers; what is the same for classes: ../test_live.py."""

import shutil
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from nearwise import AttnKNNClassifier, AttnKNNRegressor, LiveModel, metrics
from nearwise.estimators import move_memory
from nearwise.estimators.live import ReusedKeyError
from nearwise.estimators.model.number_memory import TRUST
from nearwise.estimators.online import feedback
from nearwise.estimators.online.feedback import Yardstick
from nearwise.estimators.opening import load_any
from nearwise.memory import JOURNAL, Journal, StoreError
from tests.estimators.numbers.cases import QUICK, fitted, table

AWKWARD = [0.1, 1e-300, -0.0, 5e-324, 1 / 3, 2**53 + 2, 123456789.123456789]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live") / "m"
    fitted().save(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "m")


def later(n=20):
    X, y = table()
    return X[120 : 120 + n], y[120 : 120 + n]


def test_targets_come_back_from_the_journal_to_the_bit(folder):
    X, _ = later(len(AWKWARD))
    with LiveModel(folder) as live:
        ids = live.add(X, AWKWARD).ids
        live.relabel(ids[::-1], AWKWARD)
        live.undo(live.relabel(ids, np.arange(len(ids))).version)
        live.undo(live.remove(ids[:2]).version)
        (held,) = {live.model.memory_.columns["target"].numpy()[-len(ids) :].tobytes()}
        assert held == np.array([*AWKWARD[:-2][::-1], AWKWARD[-1], AWKWARD[-2]]).tobytes()
    for again in (AttnKNNRegressor.load(folder), LiveModel(folder).model):
        assert again.memory_.columns["target"].numpy()[-len(ids) :].tobytes() == held


@pytest.mark.parametrize(
    "y", [[5, 7], ["5", "7.0"], np.array([5, 7], np.uint8), [True, False]], ids=str
)
def test_whatever_writes_a_number_is_one(folder, y):
    X, _ = later(2)
    with LiveModel(folder) as live:
        live.add(X, y)
        live.relabel([0, 1], y)
        assert live.history()[1].details["labels"] == np.array(y, np.float64).tolist()
        targets = AttnKNNRegressor.load(folder).memory_.columns["target"].tolist()
        assert targets[:2] == targets[-2:] == np.array(y, np.float64).tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, "many", None], ids=str)
def test_what_is_no_number_is_refused_and_nothing_changes(folder, value):
    X, y = later(2)
    with LiveModel(folder) as live:
        held = live.now
        wrong = [y[0], value]
        for change in (live.add, live.feedback):
            with pytest.raises(ValueError, match="y holds"):
                change(X, wrong)
        with pytest.raises(ValueError, match="y holds"):
            live.relabel([0, 1], wrong)
        assert live.now is held and live.history() == [] and not (folder / JOURNAL).exists()


def test_what_only_classes_have_is_refused(folder):
    X, y = later(2)
    with LiveModel(folder) as live:
        for change, message in (
            (lambda: live.remove([0], forget_classes=True), "no classes to forget"),
            (lambda: live.relabel([0], [1.0], forget_classes=True), "no classes to forget"),
            (lambda: live.add(X, y, views=[X]), "means over 1 views of a row, and 2"),
            (lambda: live.relabel([0, 0], [1.0, 2.0]), "0 appears more than once"),
            (lambda: live.relabel([0, 1], [1.0]), "2 rows but y has 1"),
            (lambda: live.relabel([999], [1.0]), "999"),
        ):
            with pytest.raises(ValueError, match=message):
                change()
        assert live.history() == []


def test_a_request_is_the_same_however_its_number_is_written(folder):
    with LiveModel(folder) as live:
        made = live.relabel([3], [7], key="k")
        assert live.relabel([3], [7.0], key="k") == made
        with pytest.raises(ReusedKeyError):
            live.relabel([3], [7.5], key="k")
        assert live.version == 1


@pytest.mark.parametrize(
    "details",
    [
        {"labels": ["a"], "dtype": "<U1"},
        {"labels": [1], "dtype": "<M8[s]"},
        {"labels": [float("nan")]},
        {"labels": [1e300]},
        {"labels": [10**400]},
        {"labels": [1.0, 2.0]},
    ],
    ids=str,
)
def test_an_entry_that_no_regressor_writes_is_refused(folder, details):
    with LiveModel(folder) as live:
        change = live.relabel([3], [7.5])
        lineage = live.lineage
    with Journal(folder) as journal:
        journal.append(lineage, 0, replace(change, version=2, details=change.details | details))
    with pytest.raises(StoreError, match=r"Change 2 \(relabel\).*cannot be made again") as caught:
        AttnKNNRegressor.load(folder)
    assert caught.value.reason == "invalid"


def test_a_number_that_was_altered_in_the_file_is_noticed(folder):
    with LiveModel(folder) as live:
        live.relabel([3], [7.5])
    with sqlite3.connect(folder / JOURNAL) as connection:
        connection.execute("UPDATE changes SET details = replace(details, '7.5', '7.6')")
    with pytest.raises(StoreError, match="does not match its checksum"):
        LiveModel(folder)


def test_either_folder_is_opened_by_what_it_is(folder, tmp_path):
    X, y = table()
    AttnKNNClassifier(**QUICK).fit(X, y > 0).save(tmp_path / "classes")
    assert type(load_any(folder)) is AttnKNNRegressor
    assert type(load_any(tmp_path / "classes")) is AttnKNNClassifier
    with pytest.raises(StoreError, match="nothing at"):
        load_any(tmp_path / "none")
    with pytest.raises(ValueError, match="is in its own folder"):
        load_any(folder, trusted_store="elsewhere")


def test_a_regressor_stays_in_its_folder(folder, tmp_path):
    with pytest.raises(ValueError, match=r"predicts numbers.*Keep its memory in its own folder"):
        move_memory(load_any(folder), tmp_path / "moved")
    assert not (tmp_path / "moved").exists()


def test_what_a_version_would_be_is_told_and_not_made(folder):
    X, _ = later()
    with LiveModel(folder) as live:
        before = live.model.predict(X)
        told = live.now.if_changed([0], {1: 50.0, 2: -50.0})
        proposed = told.query([told.encoded(X)]).predict()
        assert np.array_equal(live.model.predict(X), before) and live.version == 0
        live.relabel([1, 2], [50.0, -50.0])
        live.remove([0])
        assert np.array_equal(live.model.predict(X), proposed)
        with pytest.raises(ValueError, match="y holds inf"):
            told.if_changed(labels={1: float("inf")})


def test_requests_are_answered_together_as_one_by_one(folder):
    X, _ = later()
    now = LiveModel(folder).now
    whole = now.query([now.encoded(X[:5]), now.encoded(X[5:])])
    assert np.array_equal(whole.interval(0.9), fitted().predict_interval(X))


def test_a_refreshed_model_is_saved(folder):
    X, y = later()
    with LiveModel(folder) as live:
        live.add(X, y)
        assert live.refresh().kind == "refresh"
        whole = AttnKNNRegressor(**QUICK).fit(table()[0][:140], table()[1][:140])
        assert np.array_equal(AttnKNNRegressor.load(folder).predict(X), whole.predict(X))
        live.add(X[:1], y[:1])
        assert [change.kind for change in LiveModel(folder).history()] == ["add", "refresh", "add"]
        with pytest.raises(ValueError, match="the model as it was before is gone"):
            live.undo(2)


def test_trust_in_targets_comes_back_from_the_journal(tmp_path):
    X, y = table()
    model = AttnKNNRegressor(**QUICK, label_noise=0.1).fit(X[:60], np.r_[y[:59], 90.0])
    model.save(tmp_path / "m")
    with LiveModel(tmp_path / "m") as live:
        ids = live.add(X[60:70], np.r_[y[60:69], -90.0]).ids
        live.relabel([59], y[59:60])
        trust = live.model.memory_.columns[TRUST]
        assert trust[-1] < 0.5 < trust[59] == 1.0 and len(trust) == 60 + len(ids)
        again = AttnKNNRegressor.load(tmp_path / "m")
        assert again.memory_.columns[TRUST].tolist() == trust.tolist()
        assert np.array_equal(again.predict_interval(X), live.model.predict_interval(X))


# --- feedback -----------------------------------------------------------------------------------


def test_feedback_is_judged_by_what_was_known_before_it_and_then_remembered(folder):
    X, y = table()
    before = AttnKNNRegressor.load(folder)
    with LiveModel(folder) as live:
        for rows in (slice(120, 140), slice(140, 150), slice(150, 160)):
            model = live.model
            mean, crps = model.predict(X[rows]), model.crps(X[rows], y[rows])
            judged = live.feedback(X[rows], y[rows]).details["judged"]
            assert judged["target"] == y[rows].tolist()
            assert judged["predicted"] == mean.tolist() and judged["crps"] == crps.tolist()
        assert len(live.model.memory_) == len(before.memory_) + 40
        live.undo(3)
        live.undo(2)
        first = live.history()[0].details["judged"]
        summary, newest = live.feedback_summary(), live.feedback_summary(last=5)
    X, y = X[120:140], y[120:140]
    low, high = before.predict_interval(X, 0.9).T
    assert first["in_interval"] == ((low <= y) & (y <= high)).tolist()
    assert first["level"] == before.predict_cdf(X, y).tolist()
    p = before.novelty_p_value(X)
    assert first["novelty_p"] == p.tolist() and first["n_known"] == 120
    error = before.predict(X) - y
    assert summary.pop("rows") == 20
    n_known = len(before.memory_)  # and each row is known to those behind it
    among_all = [
        (p[i] * (n_known + 1) + (p[:i] <= p[i]).sum()) / (n_known + 1 + i) for i in range(20)
    ]
    assert summary == pytest.approx(
        {
            "rmse": np.sqrt(np.mean(error**2)),
            "mae": np.abs(error).mean(),
            "crps": before.crps(X, y).mean(),
            "coverage": np.mean((low <= y) & (y <= high)),
            "drift_evidence": metrics.drift_evidence(among_all)[-1],
        }
    )
    assert newest["rows"] == 5 and newest["mae"] == pytest.approx(np.abs(error[-5:]).mean())


def test_a_drift_is_seen_in_the_feedback(folder):
    X, y = later(40)
    with LiveModel(folder) as live:
        assert set(live.feedback_summary().values()) == {0, None}
        live.feedback(X[:10], y[:10])
        assert live.feedback_summary()["drift_evidence"] < 2
        live.feedback(X[10:] + 4, y[10:])
        assert live.feedback_summary()["drift_evidence"] > 10


def test_with_few_calibration_rows_feedback_judges_predictions_alone(tmp_path):
    X, y = table()
    AttnKNNRegressor(**QUICK).fit(X[:15], y[:15]).save(tmp_path / "few")
    with LiveModel(tmp_path / "few") as live:
        judged = live.feedback(X[20:23], y[20:23]).details["judged"]
        assert judged["in_interval"] is judged["novelty_p"] is judged["n_known"] is None
        assert len(judged["crps"]) == len(judged["level"]) == 3
        summary = live.feedback_summary()
        assert summary["coverage"] is summary["drift_evidence"] is None and summary["rmse"] > 0


def test_without_calibration_rows_feedback_judges_predictions_alone(tmp_path):
    X, y = table()
    model = AttnKNNRegressor(random_state=0, cv=0.2).fit(X[:60], y[:60])
    model.remove(model.memory_.ids[model._predictor.judged])
    model.save(tmp_path / "none")
    with LiveModel(tmp_path / "none") as live:
        judged = live.feedback(X[60:63], y[60:63]).details["judged"]
        assert judged["in_interval"] is None and len(judged["crps"]) == 3
        with pytest.raises(ValueError, match="need 19 calibration rows"):
            AttnKNNRegressor.load(tmp_path / "none").predict_interval(X[:1])


def test_feedback_is_made_again_on_loading(folder):
    X, y = later()
    with LiveModel(folder) as live:
        made = live.feedback(X, y, key="once")
        assert live.feedback(X, y, key="once") == made
        there = AttnKNNRegressor.load(folder)
        assert np.array_equal(there.predict_interval(X), live.model.predict_interval(X))
        with pytest.raises(ReusedKeyError, match="another request"):
            live.add(X, y, key="once")


def test_rows_are_judged_by_calibration_rows_that_are_nearly_up_to_date(folder, monkeypatch):
    X, y = later()
    monkeypatch.setattr(feedback, "_CHANGED", 0.01)  # one row of 120, and not two
    first = Yardstick.of(AttnKNNRegressor.load(folder)._fitted)
    with LiveModel(folder) as live:
        live.relabel([3], [y[3] + 0.1])
        assert first.fits(live.now.fitted)
        live.relabel([4], [y[4] + 0.1])
        assert not first.fits(live.now.fitted)
        second = Yardstick.of(live.now.fitted)
        live.add(X[:1], y[:1])
        assert second.fits(live.now.fitted)
        live.add(X[1:2], y[1:2])
        assert not second.fits(live.now.fitted)
