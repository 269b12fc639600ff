"""Contrastive losses against loops over pairs, and the entropy of weights."""

import math

import pytest
import torch
from nearwise_lab.training.losses import (
    margin_contrastive,
    supervised_contrastive,
    weight_entropy,
)

from lab.tests.reference.losses import slow_contrastive
from nearwise.nn import soft_targets

N, C = 20, 3


def rows(lattice=False):
    keys = torch.randn(N, 4, dtype=torch.float64)
    labels = torch.randint(C, (N,))
    return (keys.round() if lattice else keys), labels


@pytest.mark.parametrize("lattice", [False, True])
@pytest.mark.parametrize("margin", [None, 0.0, 0.5])
def test_contrastive_equals_the_loop(lattice, margin):
    keys, labels = rows(lattice)
    keys += 0.01  # a row of zeros has no direction
    if margin is None:
        loss = supervised_contrastive(keys, labels, C, temperature=0.5)
    else:
        loss = margin_contrastive(keys, labels, C, temperature=0.5, margin=margin)
    expected = slow_contrastive(keys.tolist(), labels.tolist(), 0.5, margin)
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [supervised_contrastive, margin_contrastive])
def test_contrastive_skips_rows_without_a_positive(loss):
    keys = torch.randn(4, 3, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 2])
    lonely = loss(keys, torch.tensor([0, 1, 2, 3]), 4)
    assert lonely.item() == 0.0
    lonely.backward()
    assert torch.isfinite(keys.grad).all()
    assert torch.isfinite(loss(keys, labels, 3))


def test_hard_labels_as_probabilities_give_the_same_loss():
    keys, labels = rows()
    soft = soft_targets(labels, C).double()
    torch.testing.assert_close(
        supervised_contrastive(keys, soft, C), supervised_contrastive(keys, labels, C)
    )


def test_entropy_of_even_and_of_certain_weights():
    assert weight_entropy(torch.zeros(2, 4)).item() == pytest.approx(math.log(4))
    assert weight_entropy(torch.tensor([[0.0, -torch.inf]])).item() == pytest.approx(0.0)


def test_a_temperature_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="temperature must be positive"):
        supervised_contrastive(torch.zeros(2, 2), torch.tensor([0, 0]), 2, temperature=0)
