"""The base's candidates: what stops boosting, and what ready embeddings are met with."""

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

from nearwise.classifier.fit.base import auto_candidates, cross_fit, given_candidate
from nearwise.classifier.fit.embedding import network_inputs
from nearwise.classifier.fit.problem import auto_members, make_folds
from nearwise.classifier.inputs.table import TableEncoder
from tests.classifier.cases import QUICK, attn_knn


def boosting(encoder):
    candidates = auto_candidates(encoder, 10_000, 2, fast=True, seed=0, n_jobs=1)
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
    candidate.fit_fold(view, y, weight, fold)
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


def embedding_table(scale, n_rows=2_000):
    X = np.random.default_rng(0).normal(size=(n_rows, 64)) * scale
    encoder = TableEncoder()
    return encoder, encoder.fit(X)


def test_ready_embeddings_keep_half_of_the_spread_of_their_components():
    spread = np.linspace(0.4, 4.0, 64)
    inputs = network_inputs(*embedding_table(spread))[0].numpy()
    np.testing.assert_allclose(inputs.std(axis=0), np.sqrt(spread / np.median(spread)), rtol=0.1)


def test_a_column_in_other_units_drowns_no_other():
    spread = np.ones(64)
    spread[0], spread[1] = 5e4, 0.0
    inputs = network_inputs(*embedding_table(spread))[0].numpy()
    np.testing.assert_allclose(inputs[:, 2:].std(axis=0), 1, rtol=0.1)
    assert 1 < inputs[:, 0].std() < 6
    assert (inputs[:, 1] == 0).all()


def test_a_table_of_fewer_columns_is_standardised():
    X = np.random.default_rng(0).normal(size=(2_000, 63)) * np.linspace(0.4, 4, 63)
    encoder = TableEncoder()
    inputs = network_inputs(encoder, encoder.fit(X))[0].numpy()
    np.testing.assert_allclose(inputs.std(axis=0), 1, rtol=0.05)


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "preset", "members"),
    [
        (1_000, 10, "default", 5),
        (20_001, 63, "default", 5),
        (20_000, 64, "default", 5),
        (20_001, 64, "default", 4),
        (1_000, 10, "fast", 3),
        (20_001, 64, "fast", 3),
    ],
)
def test_members_by_size(n_rows, n_columns, preset, members):
    encoder = TableEncoder()
    encoder.fit(np.random.default_rng(0).normal(size=(30, n_columns)))
    assert auto_members(encoder, n_rows, fast=preset == "fast") == members


def test_a_network_that_ignores_categories_does_not_become_the_only_base():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 160)
    X = pd.DataFrame({"noise": generator.normal(size=160), "tells": np.array(["a", "b"])[y]})
    model = attn_knn(embedder="mlp", preset="fast", n_members=2, **QUICK).fit(X, y)
    assert model.choice_["base_nll"]["pool"] < 0.1


@pytest.mark.parametrize("setting", [{"entropy_weight": 0.01}, {"ce_weight": 0.0}])
def test_settings_that_do_not_fit_the_network_are_refused_before_anything_is_fitted(setting):
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = attn_knn(embedder="deep", train=setting, random_state=0)
    with pytest.raises(ValueError, match=f'{next(iter(setting))}.*"deep" network'):
        model.fit(X, X[:, 0] > 0)


def test_where_a_trained_space_brings_nothing_one_network_is_trained():
    generator = np.random.default_rng(1)
    X, y = generator.normal(size=(420, 3)), generator.integers(0, 2, 420)
    model = attn_knn(n_members=3, **QUICK | {"base": LogisticRegression(), "embedder": "auto"})
    model.fit(X, y)
    assert model.choice_["embedder"] == "identity (table brought nothing)"
    trained = {one["member"] for one in model.history_ if one["stage"] == "embedder table"}
    assert trained == {0}
    assert "trained" not in model.choice_["spaces"]


def test_a_trained_space_that_tells_labels_apart_is_kept():
    X = np.random.default_rng(0).normal(size=(500, 6))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)  # four others drown it in the plain space
    model = attn_knn(n_members=2, base=LogisticRegression(), random_state=0).fit(X, y)
    assert model.choice_["embedder"] == "table"
    assert "trained" in model.choice_["spaces"]
