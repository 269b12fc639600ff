"""The base's candidates: what stops boosting, and what ready embeddings are met with."""

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

from nearwise.estimators.fit.base import auto_candidates, cross_fit, given_candidate
from nearwise.estimators.fit.problem import auto_folds, make_folds
from nearwise.estimators.inputs.table import TableEncoder
from tests.estimators.cases import QUICK, attn_knn, reopened, same


def boosting(encoder):
    candidates = auto_candidates(encoder, 10_000, 2, light=True, seed=0, n_jobs=1)
    return next(c for c in candidates if c.name == "boosting")


@pytest.fixture
def table():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(600, 4))
    y = (X[:, 0] + generator.normal(size=600) > 0).astype(int)
    encoder = TableEncoder()
    return encoder, encoder.fit(X), y


def predictions(table, y, weight=None):
    encoder, rows, _ = table
    fold = (np.arange(400), np.arange(400, 600))
    candidate = boosting(encoder)
    view = encoder.ordinal(rows)
    assert list(candidate.fit_folds(view, y, weight, [fold])) == [0]
    return candidate.log_proba(view, 0, 3)


def test_boosting_of_a_large_table_stops_on_the_rows_that_its_fold_holds_out(table):
    y = table[2]
    flipped = y.copy()
    flipped[400:] = 1 - flipped[400:]
    assert not np.allclose(predictions(table, y), predictions(table, flipped))


def test_held_out_rows_of_weight_zero_do_not_decide_when_to_stop(table):
    y = table[2]
    weight = np.ones(len(y))
    weight[500:] = 0
    strange = y.copy()
    strange[500:] = 1 - strange[500:]
    same = predictions(table, y, weight), predictions(table, strange, weight)
    np.testing.assert_array_equal(*same)


def test_a_class_that_only_the_held_out_rows_have_does_not_break_the_stopping(table):
    y = table[2].copy()
    y[590:] = 2
    log_proba = predictions(table, y)
    assert np.isfinite(log_proba).all()
    assert (log_proba[:, 2] < np.log(1e-3)).all()


def test_stopping_rows_that_all_weigh_nothing_are_left_alone(table):
    y = table[2]
    weight = np.ones(len(y))
    weight[400:] = 0
    assert np.isfinite(predictions(table, y, weight)).all()


def test_a_candidate_that_brings_nothing_is_fitted_on_two_folds_only(table):
    encoder, rows, y = table
    ones = [given_candidate(LogisticRegression()), given_candidate(DummyClassifier())]
    fits = []
    base = cross_fit(ones, encoder, rows, y, None, make_folds(y, 5, 0), 2, progress=fits.append)
    assert [one.name for one in base.candidates] == ["LogisticRegression"]
    assert sum("Dummy" in line for line in fits) == 2
    assert sum("Logistic" in line for line in fits) == 5
    assert base.nll["DummyClassifier"] > base.nll["pool"]


def threads_of_folds(monkeypatch, n):
    monkeypatch.setattr("nearwise.estimators.fit.base.coarse_threads", lambda: n)


def test_folds_fitted_side_by_side_give_what_folds_one_by_one_give(table, monkeypatch):
    encoder, rows, y = table
    bases, lines = [], []
    for n in (1, 3):
        threads_of_folds(monkeypatch, n)
        ones = auto_candidates(encoder, 600, 2, seed=0, n_jobs=1)
        told = []
        folds = make_folds(y, 3, 0)
        bases.append(cross_fit(ones, encoder, rows, y, None, folds, 2, progress=told.append))
        lines.append(told)
    assert lines[0] == lines[1] and "base: mlp, fold 2 of 3" in lines[0]
    np.testing.assert_array_equal(*(base.oof_log_proba for base in bases))
    assert bases[0].gates == bases[1].gates


def test_an_interrupt_of_folds_side_by_side_keeps_the_candidates_before(table, monkeypatch):
    encoder, rows, y = table
    threads_of_folds(monkeypatch, 2)
    ones = auto_candidates(encoder, 600, 2, seed=0, n_jobs=1)

    def press(line):
        if line == "base: boosting, fold 2 of 3":
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="while the base's boosting was fitted: the fit goes on"):
        base = cross_fit(ones, encoder, rows, y, None, make_folds(y, 3, 0), 2, progress=press)
    assert base.candidates and "boosting" not in base.nll


def embedding_table(scale, n_rows=2_000):
    X = np.random.default_rng(0).normal(size=(n_rows, 64)) * scale
    encoder = TableEncoder()
    return encoder, encoder.fit(X)


def test_ready_embeddings_keep_half_of_the_spread_of_their_components():
    spread = np.linspace(0.4, 4.0, 64)
    encoder, rows = embedding_table(spread)
    inputs = encoder.network_inputs(rows)[0].numpy()
    np.testing.assert_allclose(inputs.std(axis=0), np.sqrt(spread / np.median(spread)), rtol=0.1)


def test_a_column_in_other_units_drowns_no_other():
    spread = np.ones(64)
    spread[0], spread[1] = 5e4, 0.0
    encoder, rows = embedding_table(spread)
    inputs = encoder.network_inputs(rows)[0].numpy()
    np.testing.assert_allclose(inputs[:, 2:].std(axis=0), 1, rtol=0.1)
    assert 1 < inputs[:, 0].std() < 6
    assert (inputs[:, 1] == 0).all()


def test_a_table_of_fewer_columns_is_standardised():
    X = np.random.default_rng(0).normal(size=(2_000, 63)) * np.linspace(0.4, 4, 63)
    encoder = TableEncoder()
    inputs = encoder.network_inputs(encoder.fit(X))[0].numpy()
    np.testing.assert_allclose(inputs.std(axis=0), 1, rtol=0.05)


@pytest.mark.parametrize(("n_rows", "folds"), [(1_000, 5), (5_000, 5), (5_001, 3)])
def test_folds_by_size(n_rows, folds):
    assert auto_folds(n_rows) == folds


def test_the_heads_of_networks_join_the_base_and_open_again(tmp_path):
    X = np.random.default_rng(0).normal(size=(300, 3))
    y = (X.prod(axis=1) > 0).astype(int)
    model = attn_knn(embedder="deep", cv=3, train={"epochs": 20}, **QUICK).fit(X, y)
    assert "embedder-head" in model.report_.choice["base"] and model.report_.choice["networks"] == 3
    assert same(reopened(model, tmp_path / "m").predict_proba(X), model.predict_proba(X))
