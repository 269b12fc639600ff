"""Losses against loops over pairs, and that no row ever sees its own label."""

import math

import pytest
import torch

from nearwise.nn import Embedder, NeighborNetwork, soft_cross_entropy, soft_targets
from tests.reference.losses import (
    leave_one_out_nll,
    leave_self_out,
    neighbor_probabilities,
    neighbor_scores,
    slow_leave_one_out_nll,
)

N, C = 20, 3


def rows(lattice=False):
    keys = torch.randn(N, 4, dtype=torch.float64)
    labels = torch.randint(C, (N,))
    return (keys.round() if lattice else keys), labels


def scores_of(keys, n_queries=N):
    network = NeighborNetwork(Embedder(4, False, {}), C).double()
    return neighbor_scores(network, keys[:n_queries], keys)


@pytest.mark.parametrize("lattice", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_leave_one_out_nll_equals_the_loop(lattice, soft, smoothing):
    keys, labels = rows(lattice)
    if soft:
        labels = torch.softmax(torch.randn(N, C, dtype=torch.float64), dim=1)
    ids = torch.randperm(N) + 100
    loss = leave_one_out_nll(
        scores_of(keys, 8), labels[:8], labels, ids[:8], ids, C, smoothing=smoothing
    )
    targets = soft_targets(labels, C).tolist()
    expected = slow_leave_one_out_nll(
        keys[:8].tolist(),
        keys.tolist(),
        1.0,
        targets[:8],
        targets,
        ids[:8].tolist(),
        ids.tolist(),
        smoothing,
    )
    # the root's epsilon moves distances of equal rows from 0 to 0.001
    assert loss.item() == pytest.approx(expected, rel=2e-3 if lattice else 1e-5)


def test_own_label_never_reaches_the_own_vote():
    keys, labels = rows(lattice=True)
    keys[1] = keys[0]  # a duplicate row changes nothing about whose id is left out
    ids = torch.randperm(N)
    changed = labels.clone()
    changed[0] = (labels[0] + 1) % C

    def votes(given):
        scores = leave_self_out(scores_of(keys), ids, ids)
        return neighbor_probabilities(scores, given, C)

    before, after = votes(labels), votes(changed)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_own_row_is_found_by_id_wherever_it_stands():
    scores = torch.zeros(2, 3)
    left = leave_self_out(scores, torch.tensor([7, 5]), torch.tensor([5, 6, 7]))
    assert left.isinf().tolist() == [[False, False, True], [True, False, False]]


def test_both_sources_of_a_mixed_query_are_left_out():
    left = leave_self_out(torch.zeros(1, 3), torch.tensor([[7, 5]]), torch.tensor([5, 6, 7]))
    assert left.isinf().tolist() == [[True, False, True]]


def test_class_that_is_nowhere_near_gives_a_finite_loss_and_gradient():
    keys = torch.tensor([[0.0], [0.1], [0.2]], requires_grad=True)
    network = NeighborNetwork(Embedder(1, False, {}), 2)
    ids, labels = torch.arange(3), torch.tensor([1, 0, 0])
    loss = leave_one_out_nll(neighbor_scores(network, keys, keys), labels, labels, ids, ids, 2)
    loss.backward()
    assert math.isfinite(loss.item())
    assert torch.isfinite(keys.grad).all()


def test_candidate_with_weight_zero_does_not_vote():
    proba = neighbor_probabilities(
        torch.zeros(1, 3), torch.tensor([0, 1, 1]), 2, torch.tensor([1.0, 1.0, 0.0])
    )
    torch.testing.assert_close(proba, torch.tensor([[0.5, 0.5]]))


def test_hard_labels_as_probabilities_give_the_same_losses():
    _, labels = rows()
    soft = soft_targets(labels, C).double()
    logits = torch.randn(N, C, dtype=torch.float64)
    torch.testing.assert_close(soft_cross_entropy(logits, soft), soft_cross_entropy(logits, labels))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_that_of_torch(smoothing):
    logits, labels = torch.randn(N, C), torch.randint(C, (N,))
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(soft_cross_entropy(logits, labels, smoothing=smoothing), expected)


def test_sample_weight_equals_repeated_rows():
    logits, labels = torch.randn(3, C), torch.tensor([0, 1, 2])
    weighted = soft_cross_entropy(logits, labels, sample_weight=torch.tensor([2.0, 1.0, 0.0]))
    repeated = soft_cross_entropy(logits[[0, 0, 1]], labels[[0, 0, 1]])
    torch.testing.assert_close(weighted, repeated)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="smoothing must be in"):
        soft_targets(torch.tensor([0]), 2, 1.0)
    with pytest.raises(ValueError, match=r"labels must have shape \(n,\) or \(n, 2\)"):
        soft_targets(torch.zeros(1, 3), 2)
