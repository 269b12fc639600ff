"""Eviction of rows from a memory of bounded size."""

import torch
from torch import Tensor

from nearwise.estimators.model.memory_views import MemoryViews
from nearwise.memory import choose_evicted
from nearwise.memory.eviction import EvictionName, arrival_draws


def rows_to_forget(
    views: MemoryViews,
    capacity: int,
    eviction: EvictionName,
    *,
    seed: int,
    first: int,
) -> Tensor:
    """Choose the rows to evict from a memory over its capacity: ascending bank positions.

    Rows that searches skip because of `max_per_class` go first, at random. `first` is the number
    of rows of the first fit, which all have the same age.
    """
    bank = views.bank
    surplus = len(bank) - capacity
    if surplus <= 0:
        return torch.empty(0, dtype=torch.int64)
    rows = views.rows()
    hidden = torch.ones(len(bank), dtype=torch.bool)
    hidden[rows] = False
    unfound = torch.nonzero(hidden)[:, 0]
    if surplus <= len(unfound):
        order = arrival_draws(bank.ids[unfound], seed).argsort(kind="stable")
        return unfound[torch.from_numpy(order[:surplus])].sort().values
    labels = (bank.labels.argmax(1) if bank.is_soft else bank.labels)[rows]
    gone = choose_evicted(
        eviction,
        bank.ids[rows],
        labels,
        capacity,
        seed=seed,
        arrival=bank.ids[rows].clamp_min(first - 1),
    )
    return torch.cat([unfound, rows[gone]]).sort().values
