"""Rows held out once: the cross-fit with one fold, and several views of a row."""

import copy

import numpy as np
import pytest
import torch

from nearwise import review
from nearwise.estimators.model.log_linear_pool import Answer, merge_answers
from tests.estimators.cases import attn_knn, blobs, logistic

QUICK = {"cv": 0.25, "head": {"epochs": 3}, "train": {"epochs": 3}, "random_state": 0}
BRIEF = {**QUICK, "head": {"epochs": 1}, "train": {"epochs": 1}}


def embeddings(n=200, seed=0):
    """Overlapping classes in 6 columns, and a second, noisier look at the same rows."""
    X, y = blobs(n, 3, 6, seed, spread=2.0)
    return X, y, X + 0.3 * np.random.default_rng(seed + 1).normal(size=X.shape)


@pytest.fixture(scope="module")
def data():
    return embeddings()


@pytest.fixture(scope="module")
def fitted(data):
    X, y, view = data
    return attn_knn(**QUICK).fit(X, y, views=[view])


def test_all_rows_are_remembered_and_those_held_out_are_judged(data, fitted):
    X, y, _ = data
    assert len(fitted.memory_) == 200
    assert int(fitted._predictor.judged.sum()) == 50
    np.testing.assert_array_equal(fitted.classes_[fitted.memory_.labels.numpy()], y)
    neighbor = fitted.explain(X[:1])[0].neighbors[0]
    np.testing.assert_allclose(list(neighbor.row.values()), X[neighbor.id])


def test_two_equal_views_say_what_one_says(data, fitted):
    X = data[0][:30]
    one, two = fitted.query(X).parts, fitted.query(X, [X]).parts
    whole = fitted._predictor.of_views.whole
    sharper = one.proba ** (fitted.report_.temperature / whole)
    expected = sharper / sharper.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(two.proba, expected, atol=1e-4)


def test_weights_and_null_of_merged_views_sum_to_one(data, fitted):
    X, _, view = data
    parts = fitted.query(X[:5], [view[:5]]).parts
    assert parts.proba.shape == (5, 3) and parts.null_mass.any()
    np.testing.assert_allclose(parts.proba.sum(axis=1), 1, atol=1e-12)
    for row, shown in enumerate(fitted.explain(X[:5], None, views=[view[:5]])):
        assert shown.null_mass == pytest.approx(parts.null_mass[row], abs=1e-5)
        total = sum(neighbor.weight for neighbor in shown.neighbors) + shown.null_mass
        assert total == pytest.approx(1.0, abs=1e-4)


def test_merging_is_the_mean_of_probabilities_or_of_logits():
    generator = torch.Generator().manual_seed(0)
    logs = [torch.randn(4, 3, generator=generator).log_softmax(1) for _ in range(2)]
    views = [Answer(log, log, log, torch.zeros(4)) for log in logs]
    mean = (logs[0].exp() + logs[1].exp()) / 2
    torch.testing.assert_close(merge_answers(views, "probabilities").log_proba.exp(), mean)
    product = (logs[0].exp() * logs[1].exp()).sqrt()
    torch.testing.assert_close(
        merge_answers(views, "logits").log_proba.exp(), product / product.sum(1, keepdim=True)
    )


def test_labels_that_mean_nothing_leave_no_confidence(data):
    X, y, view = data
    labels = np.random.default_rng(0).permutation(y)
    model = attn_knn(**QUICK).fit(X, labels, views=[view])
    new, _, another = embeddings(seed=5)
    assert model.predict_proba(new, [another]).max(axis=1).mean() < 0.55


def test_remembered_rows_are_predicted_with_a_word_on_those_that_were_learned_from(data, fitted):
    X, y, _ = data
    told = "trained on 150 of the 200 rows in memory.*Only the other 50"
    with pytest.warns(UserWarning, match=told):
        proba = fitted.predict_proba(None)
    assert proba.shape == (200, 3)
    judged = fitted._predictor.judged.numpy()
    with pytest.warns(UserWarning, match="labels of 150 of the 200 .* other 50"):
        issues = review(fitted).issues()
    assert set(issues["id"]) == set(range(200))
    assert set(issues.loc[issues["independent"], "id"]) == set(np.flatnonzero(judged))
    rows, parts = review(fitted).predict_learned(review(fitted).learned(X, y))
    np.testing.assert_array_equal(rows, np.flatnonzero(judged))
    np.testing.assert_allclose(parts.proba, proba[judged], atol=1e-6)


def test_sets_and_refresh_work_after_it(data):
    X, y, _ = data
    model = attn_knn(**BRIEF).fit(X, y)
    before = model.predict_set(X[:9])
    far = np.full((30, 6), 30.0) + np.arange(30)[:, None]
    model.add(far, np.full(30, 7))
    assert model.predict_set(far[:1])[0, 3]  # rows of the new class are calibration rows
    assert before.shape == (9, 3)
    model.refresh()
    assert model.predict(far[:1])[0] == 7
    assert int(model._predictor.judged.sum()) == model.report_.choice["held_out"] == 58


def test_given_views_are_not_remembered_so_that_a_refresh_is_refused(fitted):
    with pytest.raises(ValueError, match="fitted to 2 views of every row, and remembers the first"):
        copy.deepcopy(fitted).refresh()


def test_the_memory_learns_forgets_and_changes_its_mind(fitted):
    model = copy.deepcopy(fitted)
    far = np.full((8, 6), 30.0) + np.arange(8)[:, None]
    before = model.predict_proba(far[:1])
    with pytest.raises(ValueError, match="means over 2 views of a row, and 1 were given"):
        model.add(far, np.full(8, 7))
    ids = model.add(far, np.full(8, 7), views=[far])
    assert ids.tolist() == list(range(200, 208))  # ids of training rows are not given again
    assert model.classes_.tolist() == [0, 1, 2, 7]
    assert model.predict_proba(far[:1])[0, 3] > 0.3
    model.relabel(ids, np.zeros(8, dtype=int), forget_classes=True)
    assert model.predict_proba(far[:1])[0, 0] >= before[0, 0] - 0.05
    model.remove(ids)
    assert len(model.memory_) == 200


def test_without_a_network_the_class_shares_stand_in_for_the_base(data):
    X, y, view = data
    settings = {**QUICK, "embedder": "identity", "train": {}, "estimator": None}
    model = attn_knn(**settings).fit(X, y, views=[view])
    assert model.report_.choice["base"] is None
    base = model.query(X[:5]).parts.base_proba
    np.testing.assert_allclose(base, base[:1].repeat(5, axis=0))
    assert list(model.memory_.keys) == ["features"]


def test_a_base_of_your_own_is_fitted_to_the_other_rows(data):
    X, y, _ = data
    model = attn_knn(**BRIEF, estimator=logistic()).fit(X, y)
    judged, predictor = model._predictor.judged, model._predictor
    train = ~judged.numpy()
    own = logistic().fit(predictor.encoder.dense(predictor.encoder.transform(X[train])), y[train])
    asked = predictor.encoder.dense(predictor.encoder.transform(X[judged.numpy()]))
    given = predictor.views.bank.columns["base_log_proba"][judged]
    assert (given.argmax(1).numpy() == own.predict_proba(asked).argmax(1)).mean() > 0.95


def test_predictions_take_as_many_views_as_the_fit(data, fitted):
    X, _, view = data
    with pytest.raises(ValueError, match="3 views were given, the classifier was fitted with 2"):
        fitted.predict_proba(X[:4], [view[:4], view[:4]])
    plain = attn_knn(**BRIEF).fit(X, data[1])
    with pytest.raises(
        ValueError, match="2 views were given, but the classifier was fitted without"
    ):
        plain.predict_proba(X[:4], [view[:4]])


def test_an_added_row_has_the_key_that_a_remembered_one_has(data, fitted):
    X, y, view = data
    model = copy.deepcopy(fitted)
    known = int(model.memory_.ids[0])
    ids = model.add(X[known : known + 1], y[known : known + 1], views=[view[known : known + 1]])
    place = int(model.memory_.positions(ids)[0])
    for name in ("features",):
        keys = model.memory_.keys[name]
        np.testing.assert_allclose(keys[place], keys[0], atol=1e-5)


def test_neighbors_are_asked_for_as_far_as_the_memory_goes():
    X, y, view = embeddings(40)
    settings = {**BRIEF, "cv": 0.5}
    model = attn_knn(**settings).fit(X, y, views=[view])
    assert model.predict_proba(X).shape == (40, 3)
    with pytest.raises(ValueError, match="n_neighbors=40 exceeds the 40 samples"):
        attn_knn(**settings, n_neighbors=40).fit(X, y, views=[view])


def test_classes_with_one_held_out_row_each_are_fitted():
    X = np.random.default_rng(0).normal(size=(120, 6))
    y = np.arange(120) % 30
    X += 4 * np.random.default_rng(1).normal(size=(30, 6))[y]
    model = attn_knn(**QUICK).fit(X, y)
    assert np.isfinite(model.report_.oof_nll)


def test_held_out_rows_without_any_weight_are_refused(data, fitted):
    X, y, view = data
    weight = (~fitted._predictor.judged.numpy()).astype(float)
    with pytest.raises(ValueError, match="Every row that was held out has sample_weight 0"):
        attn_knn(**QUICK).fit(X, y, weight, views=[view])
