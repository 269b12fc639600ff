"""Feedback, kept labels and refreshes: changes of a saved model beside adding and removing."""

import shutil

import numpy as np
import pytest
from sklearn.metrics import log_loss

from nearwise import metrics
from nearwise.estimators import AttnKNNClassifier, LiveModel
from nearwise.estimators.online import feedback
from nearwise.estimators.online.feedback import Yardstick
from nearwise.memory import Journal
from tests.estimators.cases import blobs, same
from tests.store.folders import plain_model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feedback") / "m"
    plain_model().save(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "m")


def test_feedback_is_judged_by_what_was_known_before_it_and_then_remembered(folder):
    X, y = blobs(60, seed=7)
    before = AttnKNNClassifier.load(folder)
    with LiveModel(folder) as live:
        for start in (0, 20, 40):
            rows = slice(start, start + 20)
            proba = live.model.predict_proba(X[rows])
            judged = live.feedback(X[rows], y[rows]).details["judged"]
            assert judged["proba_true"] == proba[np.arange(20), y[rows]].tolist()
            assert judged["predicted"] == proba.argmax(axis=1).tolist()
        assert len(live.model.memory_) == len(before.memory_) + 60
        # of the first 20 rows alone the model is the one that was loaded
        first = before.predict_proba(X[:20])
        live.undo(3)
        live.undo(2)
        summary = live.feedback_summary()
    assert summary["rows"] == 20
    assert summary["accuracy"] == metrics.accuracy(y[:20], first.argmax(axis=1))
    assert summary["nll"] == pytest.approx(log_loss(y[:20], first, labels=[0, 1, 2]))
    assert summary["ece"] == pytest.approx(metrics.ece(y[:20], first))
    assert summary["coverage"] == before.predict_set(X[:20])[np.arange(20), y[:20]].mean()
    p = before.novelty_p_value(X[:20])
    n_known = len(before.memory_)  # and each row is known to those behind it
    among_all = [
        (p[i] * (n_known + 1) + (p[:i] <= p[i]).sum()) / (n_known + 1 + i) for i in range(20)
    ]
    assert summary["drift_evidence"] == pytest.approx(metrics.drift_evidence(among_all)[-1])


def test_feedback_of_a_class_that_was_new_counts_as_an_error_without_a_likelihood(folder):
    X, y = blobs(6, seed=7)
    with LiveModel(folder) as live:
        live.feedback(X, [*y[:5], 9])
        live.feedback(X, [*y[:5], 9])  # now it is known
        assert live.feedback_summary(last=6)["new_classes"] == 0
        summary = live.feedback_summary()
    assert (summary["rows"], summary["new_classes"]) == (12, 1)
    assert np.isfinite(summary["nll"])


def test_rows_are_judged_by_calibration_rows_that_are_nearly_up_to_date(folder, monkeypatch):
    X, y = blobs(6, seed=7)
    monkeypatch.setattr(feedback, "_CHANGED", 0.02)  # one row of 90, and not two
    first = Yardstick.of(AttnKNNClassifier.load(folder)._fitted)
    with LiveModel(folder) as live:
        live.add(X[:1], y[:1])
        assert first.fits(live.now.fitted)
        live.remove([0])
        assert not first.fits(live.now.fitted)  # one came and one went
        before = live.model.novelty_p_value(X[2:3])
        judged = live.feedback(X[2:3], y[2:3]).details["judged"]
        assert judged["novelty_p"] == before.tolist()
    with LiveModel(folder) as live:
        live.undo(3)
        relabelled = Yardstick.of(live.now.fitted)
        live.relabel([3, 4], [2, 2])
        assert not relabelled.fits(live.now.fitted)
        second = Yardstick.of(live.now.fitted)
        live.add(X[3:4], [9])
        assert not second.fits(live.now.fitted)  # a new class


def test_a_summary_of_no_feedback_measures_nothing(folder):
    with LiveModel(folder) as live:
        summary = live.feedback_summary()
        assert summary.pop("rows") == summary.pop("new_classes") == 0
        assert set(summary.values()) == {None}
        with pytest.raises(ValueError, match="last=0"):
            live.feedback_summary(last=0)


def test_feedback_is_made_again_on_loading(folder):
    X, y = blobs(8, seed=7)
    with LiveModel(folder) as live:
        made = live.feedback(X, y, key="once")
        assert live.feedback(X, y, key="once") == made
        there = AttnKNNClassifier.load(folder)
        assert same(there.predict_proba(X), live.model.predict_proba(X))
        with pytest.raises(ValueError, match="another request"):
            live.add(X, y, key="once")


def test_kept_labels_stay_kept_until_they_change(folder):
    with LiveModel(folder) as live:
        before = live.model.predict_proba(live.model._fitted.rows)
        live.keep([3, 4, 5])
        live.relabel([4], [2])
        assert live.kept() == {3, 5}
        live.undo(1)
        assert live.kept() == set()
        live.undo(3)
        assert live.kept() == {3, 5}
        live.undo(2)
        assert same(live.model.predict_proba(live.model._fitted.rows), before)
        with pytest.raises(ValueError, match="not among the 90 rows"):
            live.keep([10_000])
        live.keep([3])
        live.undo(6)  # it was kept before, too
        live.remove([5])
        assert live.kept() == {3}
    with LiveModel(folder) as again:
        assert (again.version, again.kept()) == (8, {3})


def test_a_refresh_is_a_version_of_its_own_that_other_processes_see(folder):
    X, y = blobs(30, seed=7)
    with LiveModel(folder) as live, LiveModel(folder) as other:
        live.add(X, y)
        expected = AttnKNNClassifier.load(folder).refresh().predict_proba(X)
        change = live.refresh()
        assert (change.kind, change.version, live.version) == ("refresh", 2, 2)
        assert same(live.model.predict_proba(X), expected)
        with pytest.raises(ValueError, match=r"refresh\) cannot be undone"):
            live.undo(2)
        assert other.catch_up() == 2
        assert same(other.model.predict_proba(X), expected)
        other.remove([0])
        assert [c.kind for c in LiveModel(folder).history()] == ["add", "refresh", "remove"]


@pytest.mark.parametrize("broken", [["note"], ["note", "fold"]])
def test_a_refresh_that_was_saved_and_not_noted_does_no_harm(folder, monkeypatch, broken):
    X, y = blobs(30, seed=7)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    live = LiveModel(folder)
    live.add(X, y)
    with monkeypatch.context() as patch:
        for name in broken:
            patch.setattr(Journal, name, full)
        with pytest.raises(OSError, match="space"):
            live.refresh()
    for one in (live, LiveModel(folder)):
        one.relabel([0], [1])
        assert same(one.model.predict_proba(X), AttnKNNClassifier.load(folder).predict_proba(X))
    kinds = [change.kind for change in live.history()]
    assert kinds == ["add", "refresh", "relabel", "relabel"]


def test_no_false_alarms_among_few_known_rows():
    """P-values among the same few rows are not independent; those that the summary makes are."""
    rng = np.random.default_rng(0)
    n_known, alarms = 10, {"as noted": 0, "among all": 0}
    for _ in range(20):
        known, scores = np.sort(rng.normal(size=n_known)), rng.normal(size=1_000)
        p = (1 + n_known - np.searchsorted(known, scores)) / (n_known + 1)
        among_all = feedback._among_all([{"novelty_p": p.tolist(), "n_known": n_known}])
        for name, values in (("as noted", p), ("among all", among_all)):
            alarms[name] += metrics.drift_evidence(values).max() >= 100
    assert alarms["among all"] <= 1 < 4 < alarms["as noted"]


def test_a_version_that_was_taken_stays_as_it_was(folder):
    X, y = blobs(10, seed=7)
    with LiveModel(folder) as live:
        taken = live.now
        before = live.model.predict_proba(X)
        live.add(X, y)
        live.refresh()
        encoded = [taken.encoded(X[:4]), taken.encoded(X[4:])]
        np.testing.assert_allclose(taken.query(encoded).proba(), before, atol=1e-6)
        assert (taken.number, live.now.number) == (0, 2)
