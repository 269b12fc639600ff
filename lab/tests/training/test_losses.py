"""The study's contrastive loss against loops over pairs."""

import pytest
import torch
from nearwise_lab.training.losses import supervised_contrastive

from lab.tests.reference.losses import slow_contrastive
from nearwise.nn import soft_targets

N, C = 20, 3


@pytest.mark.parametrize("lattice", [False, True])
def test_contrastive_equals_the_loop_for_hard_labels_and_for_probabilities(lattice):
    keys, labels = torch.randn(N, 4, dtype=torch.float64), torch.randint(C, (N,))
    keys = (keys.round() if lattice else keys) + 0.01  # a row of zeros has no direction
    expected = slow_contrastive(keys.tolist(), labels.tolist(), 0.5)
    for given in (labels, soft_targets(labels, C).double()):
        loss = supervised_contrastive(keys, given, C, temperature=0.5)
        assert loss.item() == pytest.approx(expected)


def test_contrastive_skips_rows_without_a_positive():
    keys = torch.randn(4, 3, requires_grad=True)
    lonely = supervised_contrastive(keys, torch.tensor([0, 1, 2, 3]), 4)
    assert lonely.item() == 0.0
    lonely.backward()
    assert torch.isfinite(keys.grad).all()
    assert torch.isfinite(supervised_contrastive(keys, torch.tensor([0, 0, 1, 2]), 3))


def test_a_temperature_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="temperature must be positive"):
        supervised_contrastive(torch.zeros(2, 2), torch.tensor([0, 0]), 2, temperature=0)
