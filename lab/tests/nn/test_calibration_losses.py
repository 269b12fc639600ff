"""Differentiable calibration terms, against numpy loops and against the hard-binned error."""

import math

import numpy as np
import pytest
import torch
from nearwise_lab.nn.calibration_losses import brier_loss, soft_binned_ece

from nearwise.metrics import brier, ece


def predictions(n=40, n_classes=3, seed=0, lattice=False):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, n_classes, generator=g, dtype=torch.float64) * 2
    if lattice:  # ties, exact 0 and exact 1
        scores = torch.tensor([[0.0, 0.0, 0.0], [0.0, -math.inf, -math.inf]]).repeat(n // 2, 1)
    labels = torch.randint(0, n_classes, (n,), generator=g)
    return torch.log_softmax(scores, dim=1), labels, torch.rand(n, generator=g).to(scores)


def slow_soft_ece(log_proba, labels, weight, n_bins, width, power):
    """Karandikar et al. 2021, written out in loops over rows and bins."""
    proba = np.exp(log_proba.numpy())
    mass, right, confidence = np.zeros(n_bins), np.zeros(n_bins), np.zeros(n_bins)
    for row, label, w in zip(proba, labels.tolist(), weight.tolist(), strict=True):
        top = int(np.argmax(row))
        raised = [math.exp(-((row[top] - (j + 0.5) / n_bins) ** 2) / width) for j in range(n_bins)]
        for j in range(n_bins):
            share = w * raised[j] / sum(raised)
            mass[j] += share
            right[j] += share * (top == label)
            confidence[j] += share * row[top]
    total = 0.0
    for j in range(n_bins):
        if mass[j] > 0:
            total += mass[j] / mass.sum() * abs((right[j] - confidence[j]) / mass[j]) ** power
    return total ** (1 / power)


@pytest.mark.parametrize("lattice", [False, True])
@pytest.mark.parametrize(("n_bins", "width", "power"), [(15, 0.01, 2.0), (5, 0.05, 1.0), (1, 1, 2)])
def test_soft_error_equals_loops(lattice, n_bins, width, power):
    log_proba, labels, weight = predictions(lattice=lattice)
    error = soft_binned_ece(log_proba, labels, weight, n_bins=n_bins, width=width, power=power)
    expected = slow_soft_ece(log_proba, labels, weight, n_bins, width, power)
    assert float(error) == pytest.approx(expected, abs=1e-5)


def test_narrow_bins_reach_the_hard_binned_error():
    log_proba, labels, _ = predictions(400)
    soft = float(soft_binned_ece(log_proba, labels, width=1e-6, power=1.0))
    assert soft == pytest.approx(ece(labels.numpy(), log_proba.exp().numpy()), abs=1e-6)


def test_brier_equals_the_metric_and_weights_count():
    log_proba, labels, _ = predictions()
    expected = brier(labels.numpy(), log_proba.exp().numpy())
    assert float(brier_loss(log_proba, labels)) == pytest.approx(expected)
    weight = torch.zeros(40, dtype=torch.float64)
    weight[:10] = 3.0
    some = brier(labels[:10].numpy(), log_proba[:10].exp().numpy())
    assert float(brier_loss(log_proba, labels, weight)) == pytest.approx(some)


@pytest.mark.parametrize("lattice", [False, True])
def test_gradients_are_finite(lattice):
    log_proba, labels, weight = predictions(lattice=lattice)
    scores = log_proba.clamp_min(-30).requires_grad_(True)
    normal = torch.log_softmax(scores, dim=1)
    (soft_binned_ece(normal, labels, weight) + brier_loss(normal, labels, weight)).backward()
    assert scores.grad.isfinite().all() and (scores.grad != 0).any()


def test_a_prediction_that_is_all_right_and_sure_costs_nothing_and_has_a_slope():
    scores = torch.tensor([[60.0, 0.0], [0.0, 60.0]], requires_grad=True)
    labels = torch.tensor([0, 1])
    error = soft_binned_ece(torch.log_softmax(scores, dim=1), labels)
    error.backward()
    assert float(error.detach()) < 1e-5 and scores.grad.isfinite().all()


def test_descending_on_the_soft_error_calibrates_an_overconfident_prediction():
    log_proba, _, _ = predictions(2000, seed=1)
    labels = torch.multinomial(log_proba.exp(), 1, generator=torch.Generator().manual_seed(0))[:, 0]
    sharp = log_proba * 3
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([log_t], lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        soft_binned_ece(torch.log_softmax(sharp / log_t.exp(), 1), labels).backward()
        optimizer.step()
    assert float(log_t.detach().exp()) == pytest.approx(3.0, rel=0.15)
