"""Weighted sampling of hard rows: rows with neighbors of other classes."""

from collections.abc import Iterator

import torch
from torch import Tensor

from nearwise.functional import topk_neighbors
from nearwise.nn import soft_targets
from nearwise.training.rows import Batch, count_batches


def weighted_batches(
    n_rows: int,
    batch_size: int,
    n_candidates: int | None,
    generator: torch.Generator,
    row_weights: Tensor,
) -> Iterator[Batch]:
    """Split an epoch as in `epoch_batches`, with sampling weights for rows.

    Rows are drawn in proportion to `row_weights` (n_rows,), with replacement; a row drawn twice in
    one batch is kept once.
    """
    order = torch.randperm(n_rows, generator=generator)
    n_total = n_rows if n_candidates is None else min(n_rows, n_candidates)
    drawn = torch.multinomial(row_weights.cpu(), n_rows, replacement=True, generator=generator)
    for queries in torch.tensor_split(drawn, count_batches(n_rows, batch_size)):
        queries = queries.unique()
        taken = torch.zeros(n_rows, dtype=torch.bool)
        taken[queries] = True
        start = int(torch.randint(n_rows, (), generator=generator))
        others = torch.cat([order[start:], order[:start]])
        yield Batch(queries, others[~taken[others]][: max(1, n_total - len(queries))])


def neighbor_disagreement(
    keys: Tensor, labels: Tensor, ids: Tensor, n_classes: int, n_neighbors: int = 10
) -> Tensor:
    """Share (n,) of a row's neighbors with another class; the row itself is left out by id.

    Labels are class positions (n,) or probabilities (n, n_classes).
    """
    k = min(n_neighbors, len(keys) - 1)
    nearest = topk_neighbors(keys, keys, k, query_ids=ids, key_ids=ids).indices
    targets = soft_targets(labels, n_classes)
    return 1 - (targets.unsqueeze(1) * targets[nearest]).sum(dim=2).mean(dim=1)


def hard_row_weights(disagreement: Tensor, *, fraction: float = 0.3, weight: float = 2.0) -> Tensor:
    """Return sampling weights: `weight` for the hardest `fraction` of the rows, 1 for the others.

    A row whose neighbors all agree is never hard, however few hard rows there are.
    """
    n_hard = max(1, round(fraction * len(disagreement)))
    order = torch.argsort(disagreement, descending=True, stable=True)
    weights = torch.ones_like(disagreement)
    weights[order[:n_hard]] = weight
    return torch.where(disagreement > 0, weights, torch.ones_like(weights))
