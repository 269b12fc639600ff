"""The base's candidates: what stops boosting, and what ready embeddings are met with."""

import numpy as np
import pytest

from nearwise.estimators.base import auto_candidates
from nearwise.estimators.embedding import network_inputs
from nearwise.estimators.problem import auto_members
from nearwise.estimators.table import TableEncoder


def boosting(encoder, n_rows=10_000):
    candidates = auto_candidates(encoder, n_rows, 2, fast=True, seed=0, n_jobs=1)
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
    candidate.fit_fold(encoder, rows, y, weight, fold)
    return candidate.log_proba(encoder, rows, 0, 3)


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


def test_ready_embeddings_keep_half_of_the_spread_of_their_components():
    generator = np.random.default_rng(0)
    spread = np.linspace(0.1, 4.0, 64)
    X = generator.normal(size=(2_000, 64)) * spread
    encoder = TableEncoder()
    inputs = network_inputs(encoder, encoder.fit(X))[0].numpy()
    assert np.mean(inputs.var(axis=0)) == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(inputs.std(axis=0), np.sqrt(spread / spread.mean()), rtol=0.1)


def test_a_table_of_few_columns_is_standardised():
    X = np.random.default_rng(0).normal(size=(500, 4)) * [1.0, 10.0, 0.1, 5.0] + 3
    encoder = TableEncoder()
    inputs = network_inputs(encoder, encoder.fit(X))[0].numpy()
    np.testing.assert_allclose(inputs.std(axis=0), 1, rtol=0.05)


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "preset", "members"),
    [
        (1_000, 10, "default", 5),
        (39_000, 14, "default", 5),
        (40_000, 192, "default", 4),
        (1_000, 10, "fast", 3),
        (40_000, 192, "fast", 3),
    ],
)
def test_members_by_size(n_rows, n_columns, preset, members):
    assert auto_members(n_rows, n_columns, preset) == members
