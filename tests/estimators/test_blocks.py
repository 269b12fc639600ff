"""Rows are predicted block by block: the same numbers, and no search beyond a block."""

import numpy as np
import pytest

from nearwise.estimators.model import row_models
from nearwise.estimators.model.memory_views import MemoryViews
from tests.estimators.cases import QUICK, attn_knn, blobs, fitted, logistic, same, table

SMALL = 16
HELD = {**QUICK, "cv": 0.25, "train": {"epochs": 2}}


def held_out():
    """Fit two views of rows."""
    X, y = blobs(160, 3, 6)
    model = attn_knn(**HELD).fit(X, y, views=[X + 0.1])
    return model, X[:41], X[:41] + 0.1


def one_view(X, y, **settings):
    model = fitted(X, y, **settings)
    return model, X[:41], None


MODELS = {
    "no base": lambda: one_view(*blobs(), embedder="identity"),
    "a base and networks": lambda: one_view(
        *blobs(), estimator="auto", embedder="deep", train={"epochs": 2}
    ),
    "a table": lambda: one_view(*table(), estimator=logistic()),
    "views merged": held_out,
}


def of_rows(view, rows):
    return None if view is None else [view[rows]]


@pytest.mark.parametrize("case", MODELS)
def test_more_rows_than_a_block_give_what_the_blocks_give_alone(case, monkeypatch):
    model, X, view = MODELS[case]()
    at_once = model.query(X, of_rows(view, slice(None))).parts
    groups = [slice(start, start + SMALL) for start in range(0, len(X), SMALL)]
    alone = [model.query(X[rows], of_rows(view, rows)).parts for rows in groups]
    monkeypatch.setattr(row_models, "BLOCK", SMALL)
    parts = model.query(X, of_rows(view, slice(None))).parts
    proba = model.predict_proba(X, of_rows(view, slice(None)))
    assert same(proba, parts.proba)
    for name, part, whole in zip(parts._fields, parts, at_once, strict=True):
        assert same(part, np.concatenate([getattr(one, name) for one in alone])), name
        np.testing.assert_allclose(part, whole, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def model():
    return fitted(*blobs(200), embedder="identity")


ASKED = {
    "predict": lambda model, X: model.predict(X),
    "predict_proba": lambda model, X: model.predict_proba(X),
    "predict_set": lambda model, X: model.predict_set(X, method="aps", seed=3),
    "predict_selective": lambda model, X: model.predict_selective(X, coverage=0.8).score,
    "novelty_p_value": lambda model, X: model.novelty_p_value(X),
    "predict_proba of the training rows": lambda model, X: model.predict_proba(None),
}


@pytest.mark.parametrize("case", ASKED)
def test_no_search_is_larger_than_a_block(case, model, monkeypatch):
    X = blobs(70, seed=5)[0]
    at_once = ASKED[case](model, X)  # and what is worked out once about the memory
    sizes = []
    search = MemoryViews.search

    def watched(self, spec, query, *rest):
        sizes.append(len(query))
        return search(self, spec, query, *rest)

    monkeypatch.setattr(MemoryViews, "search", watched)
    monkeypatch.setattr(row_models, "BLOCK", SMALL)
    in_blocks = ASKED[case](model, X)
    assert max(sizes) == SMALL
    np.testing.assert_allclose(in_blocks, at_once, atol=1e-5)
