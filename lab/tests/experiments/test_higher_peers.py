"""Bags with a temperature, searched boosting, stacks without neighbors, and what models cost."""

from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from fakes import mixed_table
from nearwise_lab.experiments.boosting import (
    SPACES,
    BoostingMember,
    SearchedBoosting,
    draw_settings,
)
from nearwise_lab.experiments.measure import one_row_ms, stored_mb
from nearwise_lab.experiments.network import StoppedMLP, mean_nll
from nearwise_lab.experiments.peers.bag import TemperedBag
from nearwise_lab.experiments.peers.networks import TabularNetwork
from nearwise_lab.experiments.peers.without_neighbors import BaseAlone
from nearwise_lab.experiments.preprocess import CompleteEncoder
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB

from nearwise.data import split_dataset
from nearwise.estimators import AttnKNNClassifier


class Sure(ClassifierMixin, BaseEstimator):
    """Says the class of the nearest training row with certainty .99; notes what it is given."""

    seen: ClassVar[list[tuple[set[float], set[float]]]] = []

    def __init__(self, random_state=0):
        self.random_state = random_state

    def fit(self, X, y, X_val=None, y_val=None):
        self.classes_, self.x_, self.y_ = np.unique(y), np.asarray(X), np.asarray(y)
        stop = set() if X_val is None else set(np.asarray(X_val)[:, 0])
        Sure.seen.append((set(self.x_[:, 0]), stop))
        return self

    def predict_proba(self, X):
        nearest = np.abs(np.asarray(X)[:, :1] - self.x_[:, 0]).argmin(axis=1)
        proba = np.full((len(X), len(self.classes_)), 0.01 / max(1, len(self.classes_) - 1))
        proba[np.arange(len(X)), np.searchsorted(self.classes_, self.y_[nearest])] = 0.99
        return proba


@pytest.fixture
def noisy():
    rng = np.random.default_rng(0)
    return np.arange(200.0)[:, None], rng.integers(0, 2, 200)


def test_members_stop_on_the_fold_that_they_leave_out(noisy):
    Sure.seen.clear()
    TemperedBag(Sure()).fit(*noisy)
    assert len(Sure.seen) == 5
    every = {float(i) for i in range(200)}
    for fitted, stopped in Sure.seen:
        assert fitted | stopped == every
        assert not fitted & stopped
    assert set.union(*(stopped for _, stopped in Sure.seen)) == every


@pytest.mark.parametrize("opinions", ["folds", "folds, refitted"])
def test_labels_without_signal_flatten_a_sure_member(noisy, opinions):
    X, y = noisy
    bag = TemperedBag(Sure(), opinions, stops=False).fit(X, y)
    assert bag.temperature_ > 3
    assert mean_nll(bag.predict_proba(X[::-1] + 0.6), y[::-1]) < 1.0  # 2.3 without a temperature
    assert bag.oof_nll_ < 0.75
    assert len(bag.members_) == (5 if opinions == "folds" else 1)


def test_a_forest_gets_its_temperature_out_of_bag():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 3)), rng.integers(0, 2, 300)
    forest = RandomForestClassifier(60, oob_score=True, random_state=0)
    bag = TemperedBag(forest, "out-of-bag", stops=False).fit(X, y)
    assert bag.temperature_ > 1.5
    assert len(bag.members_) == 1


def test_few_rows_keep_a_temperature_of_right_answers_near_one():
    X = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    bag = TemperedBag(Sure(), stops=False, n_folds=3).fit(X, [0, 0, 0, 1, 1, 1])
    assert 0.3 < bag.temperature_ < 1.1  # the NLL alone would ask for 1/20


def test_rows_of_a_class_that_no_other_fold_has_do_not_count(noisy):
    X, y = noisy
    y = np.append(y, 2)
    X = np.append(X, [[500.0]], axis=0)
    with_rare = TemperedBag(GaussianNB(), stops=False).fit(X, y)
    assert with_rare.oof_nll_ < 0.75  # its 16 nats are not among them
    assert with_rare.predict_proba(X).shape == (201, 3)


def test_a_network_stops_on_held_out_nll():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 4)), rng.integers(0, 2, 600)
    bag = TemperedBag(StoppedMLP((64,), max_epochs=100, patience=3), n_folds=3).fit(X, y)
    assert len(bag.choice_["epochs"]) == 3
    assert max(bag.choice_["epochs"]) < 100  # there is nothing to learn


@pytest.mark.parametrize("library", SPACES)
def test_settings_lie_in_their_space(library):
    rng = np.random.default_rng(0)
    drawn = [draw_settings(library, rng) for _ in range(300)]
    for name, spec in SPACES[library].items():
        values = [one[name] for one in drawn]
        if spec[0] == "one of":
            assert set(values) == set(spec[1])
        else:
            assert spec[1] <= min(values) and max(values) <= spec[2]
    rates = [one["learning_rate"] for one in drawn]
    assert np.median(rates) == pytest.approx(loguniform(5e-3, 1e-1).median(), rel=0.2)


@pytest.mark.parametrize("library", SPACES)
def test_a_search_is_never_worse_out_of_fold_than_the_defaults(library):
    pytest.importorskip(library)
    data = mixed_table(150)
    train, test = split_dataset(data, 0)
    X, y = data.rows(train)
    model = SearchedBoosting(library, n_trials=4, n_folds=3, max_rounds=80, patience=10).fit(X, y)
    assert model.choice_["trial_nll"] <= model.choice_["default_nll"]
    assert 1 <= model.choice_["whole_trials"] <= 4
    assert (model.predict(data.X.iloc[test]) == data.y[test]).mean() > 0.6
    again = SearchedBoosting(library, n_trials=4, n_folds=3, max_rounds=80, patience=10).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("library", SPACES)
def test_boosting_predicts_with_the_rounds_it_stopped_at(library):
    pytest.importorskip(library)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    member = BoostingMember(library, {}, max_rounds=300, patience=20)
    member.fit(X[:150], y[:150], X[150:], y[150:])
    assert member.choice_["n_rounds"] < 60
    assert mean_nll(member.predict_proba(X[150:]), y[150:]) < 0.75


def test_a_network_leaves_seeds_threads_and_the_terminal_alone(capfd):
    pytest.importorskip("pytabkit")
    rng = np.random.default_rng(0)
    X, y = CompleteEncoder().fit_transform(rng.normal(size=(60, 3))), np.arange(60) % 2
    member = TabularNetwork("realmlp", {"n_epochs": 2})
    np.random.seed(3)
    torch.manual_seed(3)
    expected = np.random.rand(), torch.rand(1)
    np.random.seed(3)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    first = member.fit(X[:40], y[:40], X[40:], y[40:]).predict_proba(X)
    assert (np.random.rand(), torch.rand(1)) == expected
    assert torch.get_num_threads() == threads
    assert capfd.readouterr() == ("", "")
    again = member.fit(X[:40], y[:40], X[40:], y[40:]).predict_proba(X)
    np.testing.assert_array_equal(again, first)


def test_a_complete_table_has_no_gaps_and_says_where_they_were():
    train = pd.DataFrame({"x": [1.0, 3.0, np.nan], "whole": [0, 1, 2], "c": ["u", "v", None]})
    encoder = CompleteEncoder().fit(train)
    new = encoder.transform(pd.DataFrame({"x": [np.nan], "whole": [5], "c": ["never seen"]}))
    assert new.columns.tolist() == ["number x", "number whole", "gap x", "category c"]
    assert new.iloc[0].tolist() == [2.0, 5.0, 1.0, "(missing)"]
    assert encoder.transform(train)["category c"].tolist() == ["u", "v", "(missing)"]
    from_array = CompleteEncoder().fit(np.array([[1.0], [np.nan]])).transform(np.array([[np.nan]]))
    assert from_array.iloc[0].tolist() == [1.0, 1.0]


def test_the_base_alone_knows_more_than_the_class_shares():
    data = mixed_table(160)
    train, test = split_dataset(data, 0)
    alone = BaseAlone(n_folds=2).fit(*data.rows(train))
    assert alone.choice_["base"]
    proba = alone.predict_proba(data.X.iloc[test])
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert mean_nll(proba, (data.y[test] == "yes").astype(int)) < 0.5
    assert alone.oof_nll_ < 0.5


@pytest.mark.slow
def test_the_base_alone_is_near_that_of_the_classifier():
    data = mixed_table(160)
    train, test = split_dataset(data, 0)
    X, y = data.rows(train)
    whole = AttnKNNClassifier(cv=3, random_state=0).fit(X, y)
    theirs = whole.predict_parts(data.X.iloc[test]).base_proba
    ours = BaseAlone(n_folds=3).fit(X, y).predict_proba(data.X.iloc[test])
    assert np.abs(ours - theirs).mean() < 0.1  # other folds, the same candidates and pool


def test_a_row_is_timed_a_few_times_after_a_warm_up():
    asked = []
    assert one_row_ms(asked.append, 3) >= 0
    assert asked[:4] == [0, 0, 1, 2]
    assert len(asked) == 21


class Saved:
    """A model that saves itself: a folder in a folder."""

    def save(self, path):
        (path / "weights").mkdir(parents=True)
        (path / "weights" / "a").write_bytes(bytes(300_000))
        (path / "b").write_bytes(bytes(200_000))


def test_the_size_of_a_model_follows_what_it_holds():
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    few, many = (RandomForestClassifier(n, random_state=0).fit(X, y) for n in (10, 100))
    assert 5 < stored_mb(many) / stored_mb(few) < 15
    assert stored_mb(np.zeros(10**6)) == pytest.approx(8, rel=0.01)
    assert stored_mb(Saved()) == 0.5
    assert stored_mb(lambda: None) is None
