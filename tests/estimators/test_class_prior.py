"""Predictions for other class shares than those of the training rows, and calibration per class."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from nearwise import review
from nearwise.estimators.fit.class_calibration import RIDGE, _fit, fit_class_correction
from nearwise.estimators.model.class_prior import ClassCorrection, capped_rows
from tests.estimators.cases import (
    CHEAP,
    attn_knn,
    blobs,
    fitted,
    logistic,
    reopened,
    same,
    sums_to_one,
)


def tailed(n=240, seed=0):
    """Three overlapping classes of 144, 72 and 24 rows."""
    X, y = blobs(n * 2, 3, seed=seed, spread=2.0)
    keep = np.concatenate([np.flatnonzero(y == c)[:m] for c, m in enumerate((144, 72, 24))])
    return X[keep], y[keep]


def shares(X, y):
    counts = np.bincount(y) + 0.5
    return counts / counts.sum()


@pytest.mark.parametrize("prior", ["uniform", [0.2, 0.3, 0.5]], ids=str)
@pytest.mark.parametrize("settings", [{}, {"estimator": logistic()}], ids=["no-base", "base"])
def test_prediction_is_bayes_rule_on_the_prediction_for_the_training_shares(prior, settings):
    X, y = tailed()
    settings = settings | {"calibration": None}
    plain = fitted(X, y, **settings)
    moved = fitted(X, y, class_prior=prior, **settings)
    wanted = np.full(3, 1 / 3) if prior == "uniform" else np.array(prior)
    before, after = plain.query(X).parts, moved.query(X).parts
    for name in ("proba", "base_proba", "neighbor_proba"):
        one, two = getattr(before, name), getattr(after, name)
        assert sums_to_one(two)
        expected = one * wanted / shares(X, y)
        expected /= expected.sum(1, keepdims=True)
        np.testing.assert_allclose(two, expected, atol=2e-5)
    np.testing.assert_allclose(after.null_mass, before.null_mass)
    assert same(after.proba, moved.predict_proba(X))


def test_wanting_the_training_shares_changes_nothing():
    X, y = tailed()
    plain, same_shares = fitted(X, y), fitted(X, y, class_prior=shares(X, y), calibration=None)
    expected = fitted(X, y, calibration=None).predict_proba(X)
    np.testing.assert_allclose(same_shares.predict_proba(X), expected, atol=1e-5)
    assert same(plain.predict_proba(X), fitted(X, y, class_prior="train").predict_proba(X))
    assert "classes" not in plain.report_.choice


def test_without_base_and_neighbors_the_wanted_prior_answers():
    X, y = tailed()
    wanted = {"class_prior": [0.1, 0.2, 0.7], "calibration": None}
    model = attn_knn(preset="instant", estimator=None, random_state=0, **wanted).fit(X, y)
    head = model._predictor.head
    with torch.no_grad():  # all power to the class shares, as they are
        head.of_query[-1].weight.zero_()
        head.of_query[-1].bias.copy_(torch.tensor([0.0, 200.0, 0.0]))
    proba = model.predict_proba(X[:4])
    np.testing.assert_allclose(proba, np.tile([0.1, 0.2, 0.7], (4, 1)), atol=2e-2)


def test_a_correction_keeps_what_later_classes_have_and_survives_json():
    correction = ClassCorrection((0.5, -0.5), (1.1, 0.9), (0.2, 0.0), "vector")
    log_proba = torch.log(torch.tensor([[0.6, 0.1, 0.3]], dtype=torch.float64))
    after = torch.softmax(correction(log_proba, 2.0) / 2.0, dim=1)[0].tolist()
    warm = [math.sqrt(p) for p in (0.6, 0.1, 0.3)]
    warm = [p / sum(warm) for p in warm]
    known = [
        math.exp(s * (math.log(p) + shift) + b)
        for p, shift, s, b in zip(warm, (0.5, -0.5), (1.1, 0.9), (0.2, 0.0), strict=False)
    ]
    expected = [p / sum(known) * (warm[0] + warm[1]) for p in known] + [warm[2]]
    assert after == pytest.approx(expected)
    assert ClassCorrection.from_json(correction.to_json()) == correction


def test_weights_count_in_the_class_shares():
    X, y = blobs(90, 3)
    weight = np.where(y == 2, 3.0, 1.0)
    model = fitted(X, y, class_prior="uniform", calibration=None)
    weighed = attn_knn(**CHEAP, class_prior="uniform").fit(X, y, weight)
    taken = [np.exp(-np.array(m._predictor.classes.shift)) / 3 for m in (model, weighed)]
    np.testing.assert_allclose(taken[0], 1 / 3, atol=1e-6)
    np.testing.assert_allclose(taken[1], [0.2, 0.2, 0.6], atol=0.01)
    np.testing.assert_allclose(weighed._predictor.prior, taken[1], atol=1e-6)


@pytest.mark.parametrize("refreshed", [False, True])
def test_rows_without_weight_leave_the_class_shares_alone(refreshed):
    X, y = blobs(90, 3)
    weight = np.ones(90)
    weight[np.flatnonzero(y == 2)[5:]] = 0
    model = attn_knn(**CHEAP).fit(X, y, weight)
    if refreshed:
        model.refresh()
    unit = 90 / 65  # weights are brought to a mean of 1
    shares = np.array([30, 30, 5]) * unit + 0.5
    np.testing.assert_allclose(model._predictor.prior, shares / shares.sum(), atol=1e-5)


CONFIGURATIONS = {
    "uniform": {"class_prior": "uniform"},
    "per-class": {"class_prior": (0.5, 0.25, 0.25), "calibration": "per-class"},
    "per-class-train": {"calibration": "per-class"},
    "capped": {"max_per_class": 20, "class_prior": "uniform"},
    "held-out": {
        "class_prior": "uniform", "cv": 0.2, "embedder": "deep",
        "estimator": "auto", "train": {"epochs": 1}, "max_per_class": 30,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_saved_changed_and_explained_it_predicts_alike(name, tmp_path):
    X, y = tailed()
    model = fitted(X, y, **CONFIGURATIONS[name])
    again = reopened(model, tmp_path / "model")
    for one in (model, again):
        one.add(X[:2] + 30, [9, 9])
        one.remove([int(one.memory_.ids[5])])
    proba = model.predict_proba(X)
    assert sums_to_one(proba) and same(again.predict_proba(X), proba)
    assert proba.shape == (len(X), 4)
    (explanation,) = model.explain(X[:1])
    np.testing.assert_allclose(explanation.proba, proba[0], atol=1e-6)
    if name != "held-out":
        assert sums_to_one(model.predict_proba(None))


def test_views_are_corrected_as_they_are_calibrated(tmp_path):
    X, y = tailed()
    near = X + 0.1
    settings = {"embedder": "deep", "estimator": "auto", "train": {"epochs": 1}}
    model = attn_knn(**{**CHEAP, **settings, "cv": 0.2}, class_prior="uniform")
    model.fit(X, y, views=[near])
    assert model._predictor.of_views.classes is not None
    proba = model.predict_proba(X, views=[near])
    assert sums_to_one(proba) and sums_to_one(model.predict_proba(X, views=[]))
    assert same(reopened(model, tmp_path / "model").predict_proba(X, views=[near]), proba)


def test_a_capped_memory_finds_few_of_a_large_class_and_weighs_each_for_many():
    X, y = tailed()
    model = fitted(X, y, max_per_class=20)
    bank = model.memory_
    _, ids = model.kneighbors(X, 60)
    assert ids.shape[1] == 60
    found = np.unique(ids)
    assert [int((y[found] == c).sum()) for c in range(3)] == [20, 20, 20]
    weight = bank.sample_weight.numpy()[found]
    np.testing.assert_allclose(weight, np.array([7.2, 3.6, 1.2])[y[found]])
    with pytest.raises(ValueError, match="between 1 and the 60 rows"):
        model.kneighbors(X, 61)


def test_a_capped_memory_asks_all_it_may_find_and_is_refreshed_by_these():
    X, y = tailed()
    model = fitted(X, y, max_per_class=8)  # 24 rows, fewer than the 32 neighbors usually asked
    assert model._predictor.views.specs[0].n_neighbors == 23
    model.refresh()
    assert model._predictor.views.specs[0].n_neighbors == 23
    n = len(model.memory_)
    assert len(review(model).issues(n_neighbors=40)) == n
    assert review(model).evidence(n_neighbors=40).knn_graph.shape == (n, n)


def test_capped_rows_are_the_same_for_one_seed_and_grow_with_the_cap():
    y = np.repeat([0, 1, 2], [50, 10, 3])
    few, weight = capped_rows(y, 5, 0)
    more, _ = capped_rows(y, 20, 0)
    assert np.bincount(y[few]).tolist() == [5, 5, 3] and set(few) <= set(more)
    assert weight.tolist() == np.array([10.0, 2.0, 1.0])[y[few]].tolist()
    assert same(capped_rows(y, 5, 0)[0], few) and not same(capped_rows(y, 5, 1)[0], few)


KINDS = ("temperature", "bias", "vector")


def drawn(n=900, n_classes=3, seed=0):
    """Calibrated log-probabilities and labels drawn from them, the first class being common."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, n_classes, generator=g, dtype=torch.float64) * 1.5
    scores[:, 0] += 1.5
    log_proba = torch.log_softmax(scores, dim=1)
    labels = torch.multinomial(log_proba.exp(), 1, generator=g)[:, 0]
    return log_proba, labels


def unpacked(kind, values, free):
    """Logarithms of the scales, and biases, of every class."""
    n_classes = len(free)
    own = values[1 : 1 + n_classes] if kind == "vector" else np.zeros(n_classes)
    bias = np.zeros(n_classes) if kind == "temperature" else values[-n_classes:]
    return values[0] + own * free, bias * free


def slow_objective(kind, values, scores, labels, weight, free):
    """Weighted NLL with its ridge, a row at a time."""
    log_scale, bias = unpacked(kind, values, free)
    total = 0.0
    for row, label, w in zip(scores.tolist(), labels.tolist(), weight.tolist(), strict=True):
        z = [np.exp(s) * x + b for s, x, b in zip(log_scale, row, bias, strict=True)]
        total += w * (np.log(sum(np.exp(x) for x in z)) - z[label])
    effective = weight.sum().item() ** 2 / (weight**2).sum().item()
    return total / weight.sum().item() + RIDGE / effective * float((np.asarray(values) ** 2).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("free", [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], ids=str)
def test_fit_is_the_minimum_of_the_slow_objective(kind, free):
    log_proba, labels = drawn(120)
    scores = 2 * log_proba + torch.tensor([0.0, 0.7, -0.3])
    weight = torch.linspace(0.5, 2.0, 120, dtype=torch.float64)
    scale, bias = _fit(kind, scores, labels, weight, torch.tensor(free, dtype=torch.float64))
    free = np.array(free)
    n_values = {"temperature": 1, "bias": 4, "vector": 7}[kind]
    best = minimize(
        lambda v: slow_objective(kind, v, scores, labels, weight, free), np.zeros(n_values)
    )
    log_scale, expected = unpacked(kind, best.x, free)
    np.testing.assert_allclose(scale.log().expand(3).numpy(), log_scale, atol=2e-3)
    np.testing.assert_allclose(bias.numpy(), expected, atol=2e-3)


def test_a_calibrated_prediction_is_left_alone():
    alone = 0
    for seed in range(10):
        log_proba, labels = drawn(seed=seed)
        correction, nll = fit_class_correction(
            log_proba, labels, torch.ones(900), torch.zeros(3), KINDS, seed
        )
        assert set(nll) == {"prior", *KINDS}
        if correction.source == "prior":
            alone += 1
            assert correction.scale == (1.0,) * 3 and correction.bias == (0.0,) * 3
    assert alone >= 8


@pytest.mark.parametrize(
    ("harm", "sources"),
    [
        (lambda s: 2.5 * s, KINDS),
        (lambda s: s + torch.tensor([0.0, 1.5, -1.5]), ("bias", "vector")),
        (lambda s: s * torch.tensor([1.0, 3.0, 0.3]), ("vector",)),
    ],
    ids=["sharpened", "tilted", "scaled"],
)
def test_what_was_harmed_is_mended(harm, sources):
    log_proba, labels = drawn(3000)
    bad = torch.log_softmax(harm(log_proba), dim=1)
    correction, nll = fit_class_correction(bad, labels, torch.ones(3000), torch.zeros(3), KINDS, 0)
    assert correction.source in sources
    assert min(nll[source] for source in sources) == min(nll.values())
    truth = float(torch.nn.functional.nll_loss(log_proba, labels))
    mended = float(torch.nn.functional.nll_loss(correction(bad, 1.0), labels))
    assert mended < truth + 0.02 < nll["prior"]


def test_the_nll_that_decides_is_that_of_the_wanted_shares():
    log_proba, labels = drawn()
    train = torch.bincount(labels).double() / 900
    shift = torch.log(torch.full((3,), 1 / 3, dtype=torch.float64) / train)
    _, nll = fit_class_correction(log_proba, labels, torch.ones(900), shift, (), 0)
    moved = torch.log_softmax(log_proba + shift, dim=1)
    losses = -moved.gather(1, labels[:, None])[:, 0]
    weight = torch.exp(shift)[labels]
    assert nll == {"prior": pytest.approx(float((losses * weight).sum() / weight.sum()))}


@pytest.mark.parametrize("prior", ["train", "uniform"])
def test_the_classifier_records_what_it_chose(prior):
    X, y = tailed()
    model = fitted(X, y, calibration="per-class", class_prior=prior)
    chosen = model.report_.choice["classes"]
    assert set(chosen["nll"]) == {"prior", *KINDS}
    assert chosen["nll"][chosen["source"]] <= chosen["nll"]["prior"]
    assert sums_to_one(model.predict_proba(X))
