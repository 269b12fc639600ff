"""Per-class calibration: the minimum of its NLL, kept only where cross-validation says so."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from nearwise.classifier.fit.class_calibration import RIDGE, _fit, fit_class_correction
from tests.classifier.cases import fitted, sums_to_one
from tests.classifier.test_class_prior import tailed

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
