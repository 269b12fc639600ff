"""A row's own label never reaches its own leave-one-out prediction."""

import numpy as np
import pytest
import torch

from nearwise.nn import pair_reliability
from tests.estimators.cases import (
    CHEAP,
    QUICK,
    attn_knn,
    blobs,
    fitted,
    logistic,
    same,
    sums_to_one,
)
from tests.reference.reliability import slow_pair_reliability

CONFIGURATIONS = {
    "default": {},
    "one-neighbor": {"n_neighbors": 1},
    "two-neighbors": {"n_neighbors": 2},
    "many-neighbors": {"n_neighbors": 64},
    "cosine": {"metric": "cosine"},
    "base": {"estimator": logistic()},
    "capped": {"max_per_class": 20},
    "trained keys": {"embedder": "table", "train": {"epochs": 2}},
}


def unmoved(proba, before):
    """Whether predictions are the same but for the order of sums."""
    return np.allclose(proba, before, atol=1e-6, rtol=0)


def relabeled_one_by_one(model, ids):
    """Yield (id, own leave-one-out prediction) with each row's label changed to every other."""
    for i in ids:
        before = model.memory_.labels[i].item()
        for label in set(range(len(model.classes_))) - {before}:
            model.relabel([i], model.classes_[[label]])
            yield i, model.predict_proba(None)[i]
        model.relabel([i], model.classes_[[before]])


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_changing_a_rows_label_leaves_its_own_prediction_unmoved(name):
    model = fitted(**CONFIGURATIONS[name])
    before = model.predict_proba(None)
    for i, proba in relabeled_one_by_one(model, [0, 7, 44, 89]):
        assert unmoved(proba, before[i])
    assert same(model.predict_proba(None), before)


def test_changing_a_rows_label_moves_its_neighbors():
    model = fitted(n_neighbors=3)
    before = model.predict_proba(None)
    nearest = int(model.kneighbors(None, 1, return_distance=False)[0, 0])
    other = (model.memory_.labels[nearest].item() + 1) % 3
    model.relabel([nearest], [other])
    assert not same(model.predict_proba(None)[0], before[0])


def with_duplicates():
    X, y = blobs(60, 2)
    X[10:30], y[10:30] = X[10], 1
    return X, y


@pytest.mark.parametrize("rows_apart", [True, False])
@pytest.mark.parametrize("settings", [{}, {"n_neighbors": 1}, {"estimator": logistic()}], ids=str)
def test_twenty_exact_duplicates_never_lend_a_row_its_own_label(settings, rows_apart):
    X, y = with_duplicates()
    model = attn_knn(**{**CHEAP, **settings}).fit(X, y, groups=range(60) if rows_apart else None)
    before = model.predict_proba(None)
    assert sums_to_one(before)
    for i, proba in relabeled_one_by_one(model, [10, 17, 29]):
        assert unmoved(proba, before[i])


def test_a_row_is_never_its_own_neighbor_among_duplicates():
    X, y = with_duplicates()
    model = attn_knn(**CHEAP).fit(X, y, groups=range(60))
    distances, ids = model.kneighbors(None, 20)
    assert not (ids == np.arange(60)[:, None]).any()
    assert (distances[10, :19] < 1e-6).all()
    for i, explanation in enumerate(model.explain(None, n_neighbors=None)):
        assert i not in {neighbor.id for neighbor in explanation.neighbors}


def test_twins_with_opposite_labels_are_predicted_by_each_other():
    X, _ = blobs(60, 2)
    X, y = np.repeat(X[:40] * 10, 2, axis=0), np.tile([0, 1], 40)
    model = attn_knn(**{**CHEAP, "n_neighbors": 1}).fit(X, y, groups=range(80))
    assert (model.predict(None) == y).mean() < 0.1


@pytest.mark.parametrize(
    "settings",
    [
        {"estimator": None, **QUICK},
        {"estimator": logistic(), **QUICK},
        {"cv": 3, **QUICK},
        {"preset": "instant", "estimator": None, "random_state": 0},
        {"preset": "instant", "random_state": 0},
    ],
    ids=["no-base", "logistic", "base", "instant", "instant-base"],
)
def test_nothing_is_learned_from_labels_that_are_noise(settings):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(240, 3)), np.tile([0, 1], 120)
    model = attn_knn(**settings).fit(X, y)
    new = model.predict_proba(rng.normal(size=(300, 3)))
    assert -np.log(new[np.arange(300), rng.integers(2, size=300)]).mean() < 0.75
    proba = model.predict_proba(None)
    nll = -np.log(proba[np.arange(240), y]).mean()
    assert nll > np.log(2) - 0.03
    assert model.report_.oof_nll > np.log(2) - 0.03
    assert 0.35 < (model.predict(None) == y).mean() < 0.65


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_reliability_of_a_neighbor_equals_loops_that_strike_the_query(width, n_classes):
    g = torch.Generator().manual_seed(0)
    n, k = 12, 4
    labels = torch.randint(0, n_classes, (n,), generator=g)
    own = torch.stack(
        [
            torch.tensor([j for j in torch.randperm(n, generator=g).tolist() if j != i][:width])
            for i in range(n)
        ]
    )
    query = torch.arange(n)
    neighbors = torch.stack([torch.randperm(n, generator=g)[:k] for _ in range(n)])
    fast = pair_reliability(neighbors, own, labels, query)
    torch.testing.assert_close(fast, slow_pair_reliability(neighbors, own, labels, query))


def test_the_model_of_a_row_added_later_leaves_it_out_too():
    X, y = blobs()
    model = attn_knn(**CHEAP).fit(X, y)
    (added,) = model.add(X[:1], y[:1]).tolist()
    before = model.predict_proba(None)[90]
    model.relabel([added], [(y[0] + 1) % 3])
    assert unmoved(model.predict_proba(None)[90], before)
