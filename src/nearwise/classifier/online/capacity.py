"""A memory of bounded size: what its capacity must hold, and which rows go."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.fit.embedding import AnyEncoder
from nearwise.classifier.fit.problem import FitSettings, auto_members
from nearwise.classifier.model.memory_views import FOLD, MemoryViews
from nearwise.memory import choose_evicted, neighbor_usefulness
from nearwise.memory.eviction import EVICTION_NAMES, EvictionName, arrival_draws, check_capacity

_FEWEST = 2  # rows that a member asks at least


def check_bound(estimator: Any) -> None:
    """Refuse a capacity or an eviction that is not known."""
    capacity, eviction = estimator.capacity, estimator.eviction
    if not isinstance(eviction, str) or eviction not in EVICTION_NAMES:
        options = ", ".join(map(repr, EVICTION_NAMES))
        raise ValueError(f"eviction={eviction!r} is not known. Use one of {options}.")
    whole = isinstance(capacity, int | np.integer) and not isinstance(capacity, bool)
    if capacity is not None and not (whole and capacity >= 2):
        raise ValueError(f"capacity={capacity!r} must be None or a whole number of at least 2.")


def check_bound_of_fit(
    estimator: Any, settings: FitSettings, encoder: AnyEncoder, codes: np.ndarray
) -> None:
    """Refuse, before anything is fitted, a memory that could not serve the fit."""
    check_bound(estimator)
    if estimator.capacity is None:
        return
    by_fold = settings.validation_fraction is None and not settings.pretrained
    counts = np.bincount(codes)
    n_members = estimator.n_members
    if n_members == "auto":
        n_members = auto_members(encoder, len(codes), fast=settings.fast, shared=not by_fold)
    n_folds = max(2, min(int(n_members), int(counts.max())))
    n_found = int(np.minimum(counts, settings.max_per_class or len(codes)).sum())
    asks_fold = by_fold and settings.base is not None and n_found // n_folds > _FEWEST
    check_places(estimator.capacity, len(counts), n_folds if asks_fold else 0)


def check_places(capacity: int, n_classes: int, n_members: int, n_later: int = 0) -> None:
    """Refuse a capacity that cannot hold a row of each class and two for each member.

    `n_members` ask rows of their own fold (0 where all ask all); all rows of `n_later` classes came
    after the fit, so that every member asks them.
    """
    check_capacity(capacity, n_classes)
    least = n_classes + max(_FEWEST - n_later, 0) * n_members
    if capacity < least:
        raise ValueError(
            f"capacity={capacity} is too small for {n_members} cross-fitted members, each of which "
            f"asks at least {_FEWEST} rows that it was not fitted on, beside a row of each of "
            f"{n_classes} classes. Give at least {least}, fewer n_members, or base=None."
        )


def rows_to_forget(
    views: MemoryViews,
    n_members: int,
    capacity: int,
    eviction: EvictionName,
    *,
    seed: int,
    first: int,
) -> Tensor:
    """Choose the rows that a memory over its capacity gives up: ascending positions in the bank.

    Rows that `max_per_class` keeps without their being found go first, at random. `first` counts
    the rows of the first fit, which all came at once.
    """
    bank = views.bank
    surplus = len(bank) - capacity
    if surplus <= 0:
        return torch.empty(0, dtype=torch.int64)
    rows = views.rows(views.specs[0], 0)
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
        usefulness=_usefulness(views, rows, labels) if eviction == "importance" else None,
        arrival=bank.ids[rows].clamp_min(first - 1),
    )
    if any(spec.scope == "fold" for spec in views.specs):
        gone = _feed_members(gone, labels, bank.columns[FOLD][rows], n_members)
    return torch.cat([unfound, rows[gone]]).sort().values


def _usefulness(views: MemoryViews, rows: Tensor, labels: Tensor) -> Tensor:
    """Worth of the rows that may be found to those that find them, (n_rows,)."""
    nearest = views.own_neighbors(views.specs[0], 0)[rows]
    position = torch.full((len(views.bank),), -1)
    position[rows] = torch.arange(len(rows))
    return neighbor_usefulness(position[nearest[:, : max(nearest.shape[1] - 1, 1)]], labels)


def _feed_members(gone: Tensor, labels: Tensor, folds: Tensor, n_members: int) -> Tensor:
    """Exchange rows so that every member keeps two of those it may ask; `check_places` allows it.

    The latest row of a member that has too few stays, and the first row that neither its member
    nor its class needs goes instead, of the largest class that has one.
    """
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[gone] = False
    for member in range(n_members):
        may_ask = (folds == member) | (folds < 0)
        while int((kept & may_ask).sum()) < _FEWEST:
            kept[torch.nonzero(~kept & may_ask)[-1]] = True
            kept[_spare_row(kept, labels, folds, n_members)] = False
    return torch.nonzero(~kept)[:, 0]


def _spare_row(kept: Tensor, labels: Tensor, folds: Tensor, n_members: int) -> int:
    sizes = torch.bincount(labels[kept], minlength=int(labels.max()) + 1)
    of_all = int((kept & (folds < 0)).sum())
    askable = torch.bincount(folds[kept & (folds >= 0)], minlength=n_members) + of_all
    spare = torch.where(folds < 0, askable.min(), askable[folds.clamp_min(0)]) > _FEWEST
    rows = torch.nonzero(kept & spare & (sizes[labels] > 1))[:, 0]
    return int(rows[sizes[labels[rows]].argmax()])
