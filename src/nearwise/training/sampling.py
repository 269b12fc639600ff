"""Which rows a step trains on, and which it compares them with."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Positions of a step's query rows (B,) and of further candidates (M,); none is in both."""

    queries: Tensor
    extra: Tensor


def epoch_batches(
    n_rows: int,
    batch_size: int,
    n_candidates: int | None,
    generator: torch.Generator,
    row_weights: Tensor | None = None,
    candidate_weights: Tensor | None = None,
) -> Iterator[Batch]:
    """Split an epoch into batches of nearly equal size, each with candidates drawn for it.

    Candidates of a step are its own queries and `extra`, no row twice.

    Parameters
    ----------
    n_rows : int
        Training rows, at least 2.
    batch_size : int
        Most queries a step.
    n_candidates : int or None
        Candidates a step, queries included; None takes all rows.
    generator : torch.Generator
        On the CPU; its state alone decides the order.
    row_weights : Tensor of shape (n_rows,), optional
        How often a row is drawn, relative to the others. Rows are then drawn with replacement;
        a row drawn twice in one batch is kept once.
    candidate_weights : Tensor of shape (n_rows,), optional
        How often a row is drawn as a further candidate, relative to the others; each is drawn
        once a step at most. Without, all rows take turns.
    """
    order = torch.randperm(n_rows, generator=generator)
    n_total = n_rows if n_candidates is None else min(n_rows, n_candidates)
    n_batches = count_batches(n_rows, batch_size)
    if row_weights is None:
        start = 0
        for queries in torch.tensor_split(order, n_batches):
            stop = start + len(queries)
            others = torch.cat([order[stop:], order[:start]])
            n_extra = max(0, n_total - len(queries))
            yield Batch(queries, _drawn(others, n_extra, candidate_weights, generator))
            start = stop
        return
    drawn = torch.multinomial(row_weights.cpu(), n_rows, replacement=True, generator=generator)
    for queries in torch.tensor_split(drawn, n_batches):
        queries = queries.unique()
        taken = torch.zeros(n_rows, dtype=torch.bool)
        taken[queries] = True
        start = int(torch.randint(n_rows, (), generator=generator))
        others = torch.cat([order[start:], order[:start]])
        others, n_extra = others[~taken[others]], max(1, n_total - len(queries))
        yield Batch(queries, _drawn(others, n_extra, candidate_weights, generator))


def _drawn(
    others: Tensor, n_extra: int, weights: Tensor | None, generator: torch.Generator
) -> Tensor:
    """Give the first of some rows, or a weighted draw from them without replacement."""
    if weights is None or n_extra >= len(others):
        return others[:n_extra]
    # The largest of log(w) + Gumbel noise: torch.multinomial is limited to 2^24 rows.
    noise = -torch.log(torch.empty(len(others)).exponential_(generator=generator))
    return others[torch.topk(torch.log(weights.cpu()[others]) + noise, n_extra).indices]


def class_balance(labels: Tensor, power: float) -> Tensor | None:
    """Weight of each row: the size of its class to the power of minus `power`; None for 0."""
    if not power:
        return None
    sizes = torch.bincount(labels).clamp_min(1).float()
    return sizes.pow(-power)[labels].cpu()


def combined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Product of two sets of row weights, either of which may be absent."""
    if first is None or second is None:
        return second if first is None else first
    return first.cpu() * second.cpu()


def count_batches(n_rows: int, batch_size: int) -> int:
    """Batches an epoch is split into."""
    return max(1, -(-n_rows // batch_size))


def split_batch(batch: Batch, n_pieces: int) -> list[Batch]:
    """Split the queries of a batch; those of the other pieces become candidates of each.

    Parameters
    ----------
    batch : Batch
    n_pieces : int
        Pieces of nearly equal size; 1 gives the batch itself.
    """
    if n_pieces == 1:
        return [batch]
    parts = batch.queries.tensor_split(n_pieces)
    return [
        Batch(part, torch.cat([*parts[:i], *parts[i + 1 :], batch.extra]))
        for i, part in enumerate(parts)
    ]
