"""What every method promises, and what the parts behind them do."""

import sys

import numpy as np
import pandas as pd
import pytest
from fakes import blobs, mixed_table
from nearwise_lab.experiments import HIGHER_PEERS, METHODS, PEERS, Method, get_method
from nearwise_lab.experiments.boosting import StoppedBoosting, stopping_splits
from nearwise_lab.experiments.methods import get_methods
from nearwise_lab.experiments.modern_nca import ModernNCAClassifier
from nearwise_lab.experiments.neighbors import FLOOR, NEARLY_ZERO, PlainKNN, TunedKNN
from nearwise_lab.experiments.network import fit_temperature, mean_nll, tempered
from nearwise_lab.experiments.preprocess import FeatureEncoder, NativeEncoder
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier

from nearwise.data import split_dataset

SHORT = {  # settings of networks that take seconds
    "realmlp": {"n_epochs": 8},
    "tabm": {"n_epochs": 40, "tabm_k": 4, "d_block": 32},
    "xrfm": None,
}


def here(name):
    """A method whose package is installed; the test is skipped where it is not."""
    if METHODS[name].module is not None:
        pytest.importorskip(METHODS[name].module)
    return METHODS[name]


@pytest.fixture(scope="module")
def table():
    return mixed_table()


@pytest.mark.parametrize("name", [*PEERS, *HIGHER_PEERS])
def test_every_peer_takes_a_raw_table_and_gives_probabilities(name, table):
    train, test = split_dataset(table, 0)
    X, y = table.rows(train)
    X_test = table.rows(test)[0].copy()
    X_test.loc[X_test.index[0], "color"] = "never seen"
    model = in_few_epochs(here(name)(0, len(train), 2), 20).fit(X, y)
    proba = model.predict_proba(X_test)
    assert list(model.classes_) == ["no", "yes"]
    assert proba.shape == (len(test), 2)
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-6)
    assert (model.predict(X_test) == table.y[test]).mean() > 0.6


def in_few_epochs(model, n_epochs=5):
    """Let a network train for a few epochs, and a search try few settings in few rounds."""
    few = {"max_epochs": n_epochs, "n_trials": 2, "n_estimators": 40}
    names = (name.rpartition("__")[2] for name in model.get_params())
    short = {
        name: few[last]
        for name, last in zip(model.get_params(), names, strict=True)
        if last in few and name != "memory"
    }
    for name, value in model.get_params().items():
        if name.endswith("member__network"):
            short[name.replace("network", "settings")] = SHORT[value]
    if "max_rounds" in model.get_params() and "n_trials" in model.get_params():
        short["max_rounds"] = 60
    return model.set_params(**short)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["knn-tuned", "random-forest", "lightgbm", "modern-nca", "mlp"])
def test_a_seed_repeats_its_probabilities(name):
    data = blobs(n=60)
    model = in_few_epochs(METHODS[name](3, 60, 3))
    first = clone(model).fit(data.X, data.y).predict_proba(data.X)
    again = clone(model).fit(data.X, data.y).predict_proba(data.X)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", sorted({*PEERS, *HIGHER_PEERS} - {"hgb", "catboost"}))
def test_a_class_with_one_row_does_not_stop_a_peer(name):
    data = blobs(n=40, n_classes=2)
    y = data.y.astype(object)
    y[0] = "rare"
    model = in_few_epochs(here(name)(0, 40, 3)).fit(data.X, y)
    assert list(model.classes_) == ["ant", "bee", "rare"]
    np.testing.assert_allclose(model.predict_proba(data.X).sum(axis=1), 1, atol=1e-6)


def test_arrays_work_like_tables():
    data = blobs()
    names = ("knn-uniform", "logistic", "lightgbm")
    for name in names:
        from_array = METHODS[name](0, 90, 3).fit(data.X.to_numpy(), data.y)
        from_table = METHODS[name](0, 90, 3).fit(data.X, data.y)
        np.testing.assert_allclose(
            from_array.predict_proba(data.X.to_numpy()), from_table.predict_proba(data.X), atol=1e-6
        )


def test_embeddings_keep_their_units_for_plain_neighbors():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) * [1, 1, 100]
    y = (X[:, 2] > 0).astype(int)
    raw = METHODS["knn-uniform"](0, 60, 2, "embeddings").fit(X, y).predict_proba(X)
    scaled = METHODS["knn-uniform"](0, 60, 2, "table").fit(X, y).predict_proba(X)
    assert mean_nll(raw, y) < mean_nll(scaled, y)


def test_a_wrong_name_gets_the_nearest_guess():
    with pytest.raises(ValueError, match=r"unknown method 'atention'. Did you mean 'attention'"):
        get_method("atention")


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "catboost", None)
    with pytest.raises(ImportError, match=r"pip install nearwise-lab\[peers\]"):
        METHODS["catboost"](0, 10, 2)
    monkeypatch.setitem(sys.modules, "pytabkit", None)
    with pytest.raises(ImportError, match=r'"tabm" needs .* nearwise-lab\[peers-neural\]'):
        METHODS["tabm"](0, 10, 2)


def test_a_group_stands_for_its_methods_once():
    names = [m.name for m in get_methods(["attention", "higher-peers", "stack"])]
    assert names == ["attention", *HIGHER_PEERS]
    with pytest.raises(ValueError, match="Did you mean 'higher-peers'"):
        get_methods(["higher-pears"])


def test_every_method_says_what_it_does():
    for method in METHODS.values():
        assert isinstance(method, Method)
        assert len(method.summary) > 15


def test_uniform_votes_equal_scikit_learn():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 5)).astype(np.float32), rng.integers(0, 3, 80)
    queries = rng.normal(size=(30, 5)).astype(np.float32)
    ours = PlainKNN(7).fit(X, y).predict_proba(queries)
    theirs = KNeighborsClassifier(7).fit(X, y).predict_proba(queries)
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_distance_votes_follow_their_formula():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(20, 2)).astype(np.float32), np.arange(20) % 2
    query = np.zeros((1, 2), dtype=np.float32)
    distances = np.sqrt((X**2).sum(axis=1))
    nearest = np.argsort(distances)[:5]
    weights = np.exp(-distances[nearest] / 0.5)
    expected = weights[y[nearest] == 1].sum() / weights.sum()
    proba = PlainKNN(5, "distance", 0.5).fit(X, y).predict_proba(query)
    assert proba[0, 1] == pytest.approx(expected, rel=1e-5)


def slow_leave_one_out_nll(X, y, choice):
    """One row at a time, itself skipped by its position."""
    prior = np.bincount(y) / len(y)
    k, parameter, smoothing = choice["n_neighbors"], choice["parameter"], choice["smoothing"]
    weigh = {
        "uniform": lambda d: 1.0,
        "softmax": lambda d: np.exp(-d / parameter),
        "inverse": lambda d: max(d, NEARLY_ZERO) ** -parameter,
    }[choice["weights"]]
    losses = []
    for i in range(len(X)):
        others = [j for j in range(len(X)) if j != i]
        distances = np.array([np.sqrt(((X[i] - X[j]) ** 2).sum()) for j in others])
        nearest = np.argsort(distances, kind="stable")[:k]
        weights = np.array([weigh(d) for d in distances[nearest]])
        hits = np.array([y[others[j]] == y[i] for j in nearest])
        p = (1 - smoothing) * (weights * hits).sum() / weights.sum() + smoothing * prior[y[i]]
        losses.append(-np.log(max(p, FLOOR)))
    return np.mean(losses)


@pytest.mark.parametrize("case", ["random", "lattice", "duplicates"])
def test_tuned_knn_reports_the_slow_leave_one_out_nll(case):
    rng = np.random.default_rng(2)
    X = rng.integers(0, 3, (50, 2)).astype(float) if case == "lattice" else rng.normal(size=(50, 2))
    y = (X[:, 0] + 0.5 * rng.normal(size=50) > X[:, 0].mean()).astype(int)
    if case == "duplicates":
        X, y = np.repeat(X, 2, axis=0), np.repeat(y, 2)
    choice = TunedKNN().fit(X, y).choice_
    if case == "duplicates":  # copies agree, so the one at distance 0 is to be trusted most
        assert choice["weights"] != "uniform"
    expected = slow_leave_one_out_nll(X / X.std(axis=0), y, choice)
    assert choice["loo_nll"] == pytest.approx(expected, abs=1e-5)


def test_tuned_knn_never_learns_from_a_row_s_own_label():
    # Far-apart pairs with opposite labels: anyone who sees itself would trust the nearest row.
    X = np.repeat(np.arange(20.0) * 100, 2)[:, None]
    y = np.tile([0, 1], 20)
    assert TunedKNN().fit(X, y).choice_["loo_nll"] > 0.69


def test_the_number_of_neighbors_is_cut_to_the_rows_there_are():
    X, y = np.arange(4.0)[:, None], np.array([0, 0, 1, 1])
    assert PlainKNN(16).fit(X, y).n_neighbors_ == 4
    assert TunedKNN().fit(X, y).n_neighbors_ == 3


def test_stopping_rows_and_fitted_rows_are_apart():
    for y in (np.arange(300) % 3, np.array([0] * 50 + [1]), np.arange(12_000) % 2):
        for fit_rows, stop_rows in stopping_splits(y, seed=0):
            assert not set(fit_rows) & set(stop_rows)
            assert len(fit_rows) + len(stop_rows) == len(y)


@pytest.mark.parametrize("library", ["sklearn", "lightgbm", "catboost"])
def test_boosting_stops_early_on_labels_without_signal(library):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    model = StoppedBoosting(library, max_rounds=300, patience=20).fit(X, y)
    assert model.n_rounds_ < 60


def test_modern_nca_learns_and_keeps_its_best_epoch():
    data = blobs(n=150)
    model = ModernNCAClassifier(max_epochs=30, patience=5).fit(data.X[:120], data.y[:120])
    assert (model.predict(data.X[120:]) == data.y[120:]).mean() > 0.9
    losses = [row["held_out_nll"] for row in model.history_]
    assert model.history_[model.n_epochs_ - 1]["held_out_nll"] == min(losses)


def test_a_planted_temperature_is_found():
    rng = np.random.default_rng(0)
    true = tempered(rng.dirichlet(np.ones(4), size=20_000), 1.0)
    y = (true.cumsum(axis=1) > rng.random(20_000)[:, None]).argmax(axis=1)
    over_sure = tempered(true, 1 / 3)
    assert fit_temperature(over_sure, y) == pytest.approx(3, rel=0.05)


def test_the_encoder_learns_from_training_rows_only():
    train = pd.DataFrame({"x": [0.0, 2.0, np.nan], "c": ["u", "v", None]})
    encoder = FeatureEncoder().fit(train)
    new = pd.DataFrame({"x": [1.0, 1000.0], "c": ["u", "new"]})
    encoded = encoder.transform(new)
    assert np.isfinite(encoded).all()
    assert encoded[0, 0] == pytest.approx(0)
    np.testing.assert_array_equal(encoded[1, -3:], 0)
    assert encoder.n_numeric_ == 1


def test_embeddings_are_scaled_by_one_number():
    X = np.random.default_rng(0).normal(size=(500, 3)) * [1.0, 10.0, 100.0] + 5
    scaled = FeatureEncoder("overall").fit(X).transform(X)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-12)
    assert (scaled.var(axis=0).mean()) == pytest.approx(1)
    ratio = X.std(axis=0) / scaled.std(axis=0)
    np.testing.assert_allclose(ratio, ratio[0])


def test_native_categories_are_those_of_training():
    train = pd.DataFrame({"c": ["u", "v", None, "u"]})
    encoder = NativeEncoder().fit(train)
    encoded = encoder.transform(pd.DataFrame({"c": ["v", "new", None]}))["c"]
    assert encoded.isna().tolist() == [False, True, False]
