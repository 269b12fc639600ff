"""Rows whose label is suspected, most suspicious first."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score

from nearwise import review
from tests.estimators.cases import CHEAP, attn_knn, blobs, fitted, same, sums_to_one, wrong_labels


@pytest.fixture(scope="module")
def planted():
    X, y = blobs(240, 3, spread=0.7)
    return X, y, wrong_labels(y, 0.1)


@pytest.fixture(scope="module", params=[None, "auto"], ids=str)
def model(request, planted):
    return attn_knn(label_noise=request.param, **CHEAP).fit(planted[0], planted[2])


def test_planted_errors_come_first(planted, model):
    _, y, given = planted
    issues = review(model).issues()
    wrong = (given != y)[issues["id"]]
    assert average_precision_score(wrong, issues["suspicion"]) > 0.9
    assert issues["suspicion"].is_monotonic_decreasing
    assert sorted(issues["id"]) == list(range(240))
    first = issues.iloc[0]
    assert first["suggested"] == y[first["id"]] and first["given"] == given[first["id"]]


def test_neighbors_are_the_nearest_others(planted, model):
    issues = review(model).issues(n_neighbors=3).set_index("id")
    near = model.kneighbors(None, 3, return_distance=False)
    assert issues.loc[17, "neighbors"] == tuple(near[17])
    assert 17 not in issues.loc[17, "neighbors"]


def test_no_more_neighbors_are_named_than_may_be_found(planted):
    X, _, given = planted
    model = attn_knn(n_neighbors=30, max_per_class=3, **CHEAP).fit(X, given)
    assert model.kneighbors(X[:2])[1].shape == (2, 8)
    assert {len(near) for near in review(model).issues(n_neighbors=20)["neighbors"]} == {8}
    assert review(model).evidence(n_neighbors=20).knn_graph.nnz == 8 * 240


def test_evidence_is_what_cleanlab_takes(planted, model):
    evidence = review(model).evidence(n_neighbors=4)
    assert sums_to_one(evidence.pred_probs)
    distances, ids = model.kneighbors(None, 4)
    assert same(evidence.knn_graph.getrow(5).indices, ids[5])
    assert same(evidence.knn_graph.getrow(5).data, distances[5])
    assert same(evidence.labels, planted[2])


def test_a_rows_own_label_does_not_speak_for_it(planted):
    X, _, given = planted
    model = attn_knn(**CHEAP).fit(X, given)
    before = review(model).evidence().pred_probs[3]
    model.relabel([3], [(given[3] + 1) % 3])
    np.testing.assert_allclose(review(model).evidence().pred_probs[3], before, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("cv", [2, 0.2])
def test_a_class_that_came_later_is_taken_as_it_is(planted, cv):
    X, _, given = planted
    model = attn_knn(label_noise=0.1, **{**CHEAP, "cv": cv}).fit(X, given)
    (new,) = model.add(X[[0]] + 30, [9]).tolist()
    issue = review(model).issues().set_index("id").loc[new]
    assert issue["given"] == issue["suggested"] == 9
    assert issue["suspicion"] == 0


def test_cleanlab_ranks_the_same_probabilities(planted, model):
    pytest.importorskip("cleanlab")
    issues = review(model).issues(judge="cleanlab")
    wrong = (planted[2] != planted[1])[issues["id"]]
    assert average_precision_score(wrong, issues["suspicion"]) > 0.9


def test_what_cannot_be_asked_is_said(planted):
    X, _, given = planted
    model = attn_knn(**CHEAP).fit(X, given)
    with pytest.raises(ValueError, match="judge"):
        review(model).issues(judge="me")
    assert np.isfinite(review(model).issues()["suspicion"]).all()


@pytest.mark.parametrize("noise", [None, 0.1])
def test_labels_are_judged_in_the_shares_they_come_in_whichever_are_wanted(planted, noise):
    X, y, *_ = planted
    kept = np.random.default_rng(0).random(len(y)) < np.where(y == 0, 1.0, 0.3)
    found = [
        review(fitted(X[kept], y[kept], label_noise=noise, class_prior=prior)).issues()
        for prior in ("train", "uniform")
    ]
    pd.testing.assert_frame_equal(*found)
