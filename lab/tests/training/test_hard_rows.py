"""Rows that are drawn more often."""

import torch
from nearwise_lab.training.hard_rows import (
    hard_row_weights,
    neighbor_disagreement,
    weighted_batches,
)


def test_heavy_rows_are_drawn_more_often_and_candidates_never_repeat():
    weights = torch.ones(50)
    weights[:10] = 10.0
    counts = torch.zeros(50)
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        for queries, extra in weighted_batches(50, 16, 30, generator, weights):
            both = torch.cat([queries, extra])
            assert len(both.unique()) == len(both)
            counts[queries] += 1
    assert counts[:10].mean() > 3 * counts[10:].mean()


def test_disagreement_counts_neighbors_of_another_class_without_the_row_itself():
    keys = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
    labels = torch.tensor([0, 0, 1, 1, 1, 1])
    seen = neighbor_disagreement(keys, labels, torch.arange(6), 2, n_neighbors=2)
    torch.testing.assert_close(seen, torch.tensor([0.5, 0.5, 1.0, 0.0, 0.0, 0.0]))


def test_only_rows_with_disagreement_are_hard():
    weights = hard_row_weights(torch.tensor([0.5, 0.0, 1.0, 0.0]), fraction=0.75, weight=2.0)
    assert weights.tolist() == [2.0, 1.0, 2.0, 1.0]
