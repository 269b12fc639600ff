"""Sparse rows: a truncated SVD as a step of the model, fitted, said, saved and checked with it."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from nearwise import AttnKNNClassifier, AttnKNNRegressor
from nearwise.estimators.inputs.sparse_columns import N_COMPONENTS
from nearwise.estimators.opening import load_any

WIDE = 600


def words(n_rows, seed=0, width=WIDE):
    """Rows of counts in which the class decides which half of the columns is frequent."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n_rows)
    rate = np.where(np.arange(width) < width // 2, 0.04, 0.01)
    rates = np.where(y[:, None] == 0, rate, rate[::-1])
    return sparse.csr_matrix(rng.poisson(rates).astype(float)), y


X, Y = words(260)
TRAIN, TEST = slice(0, 200), slice(200, None)


def instant(**options):
    return AttnKNNClassifier(estimator=None, preset="instant", random_state=0, **options)


@pytest.fixture(scope="module")
def fitted():
    return instant().fit(X[TRAIN], Y[TRAIN])


def test_a_sparse_matrix_is_learned_by_its_components(fitted):
    assert fitted.n_features_in_ == WIDE
    assert fitted.report_.choice["sparse"] == {"columns": WIDE, "components": N_COMPONENTS}
    assert (fitted.predict(X[TEST]) == Y[TEST]).mean() > 0.8


@pytest.mark.parametrize(
    "make",
    [
        sparse.csc_matrix,
        sparse.coo_array,
        sparse.lil_matrix,
        lambda X: X.toarray(),
        lambda X: X.toarray().tolist(),
        pd.DataFrame.sparse.from_spmatrix,
        lambda X: torch.from_numpy(X.toarray()).to_sparse(),
        lambda X: torch.from_numpy(X.toarray()).to_sparse_csr(),
    ],
)
def test_new_rows_may_have_any_form(fitted, make):
    assert (fitted.predict_proba(make(X[TEST])) == fitted.predict_proba(X[TEST])).all()


def test_a_row_alone_is_predicted_as_among_others(fitted):
    together = fitted.predict_proba(X[TEST])
    alone = np.concatenate([fitted.predict_proba(X[at : at + 1]) for at in range(200, 210)])
    np.testing.assert_allclose(alone, together[:10], atol=1e-7)


def test_a_saved_model_has_the_components(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = load_any(tmp_path / "model")
    assert (again.predict_proba(X[TEST]) == fitted.predict_proba(X[TEST])).all()
    again.add(X[TEST], Y[TEST])
    again.refresh()
    assert again.n_features_in_ == WIDE
    assert again.report_.choice["sparse"]["components"] == N_COMPONENTS
    assert again.predict(X[TEST]).shape == (60,)


def test_an_explanation_is_shown_without_the_columns_that_components_replace(fitted):
    for rows in (X[TEST][:2], pd.DataFrame.sparse.from_spmatrix(X[TEST][:2])):
        (why, _) = fitted.explain(rows, n_neighbors=2)
        assert why.row is None and len(why.to_frame()) == 2
        assert str(why.label) in repr(why) and why._repr_html_()


def test_few_columns_stay_as_they_are():
    few = sparse.random(80, 7, 0.4, random_state=0, format="csr")
    labels = (few[:, [0]].toarray().ravel() > 0.2).astype(int)
    model, other = instant().fit(few, labels), instant().fit(few.toarray(), labels)
    assert "sparse" not in model.report_.choice
    (why,) = model.explain(few[:1], n_neighbors=1)
    assert list(why.row.values()) == few[:1].toarray()[0].tolist() and repr(why)
    for one in (few, few.toarray()):
        assert (model.predict_proba(one) == other.predict_proba(few)).all()


def test_numbers_are_learned_from_sparse_rows():
    target = np.asarray(X[:, :300].sum(axis=1)).ravel()
    model = AttnKNNRegressor(estimator=None, preset="instant", random_state=0)
    assert model.fit(X[TRAIN], target[TRAIN]).score(X[TEST], target[TEST]) > 0.3


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (X[TEST][:, :10], "10 features"),
        (sparse.csr_matrix(np.where(np.eye(3, WIDE) > 0, np.nan, 0)), "NaN"),
        (sparse.csr_matrix(np.where(np.eye(3, WIDE) > 0, np.inf, 0)), "infinity"),
        (X[:0], "0 sample"),
        (X[0].toarray().ravel(), "1D array"),
    ],
)
def test_unusable_rows_are_refused(fitted, given, why):
    with pytest.raises(ValueError, match=why):
        fitted.predict(given)


def test_a_table_of_sparse_and_other_columns_is_refused():
    table = pd.DataFrame.sparse.from_spmatrix(X[:50]).astype({0: float})
    with pytest.raises(ValueError, match="others are not"):
        instant().fit(table, Y[:50])
