"""Which rows a full memory gives up: pure functions of ids, labels and a seed."""

import heapq
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

EvictionName = Literal["reservoir", "class-balanced", "importance", "age"]
EVICTION_NAMES: tuple[EvictionName, ...] = get_args(EvictionName)
_DOUBT = 0.02  # worth of supporting a row that needs no support
_MASK = (1 << 64) - 1


def arrival_draws(ids: Tensor, seed: int) -> np.ndarray:
    """Draw a number for every row, the same whenever and beside whomever it is asked for.

    Ids are given in the order of arrival and never twice, so a draw that depends on seed and id
    alone needs no generator whose state would have to be kept.

    Parameters
    ----------
    ids : int64 Tensor of shape (n,)
    seed : int

    Returns
    -------
    draws : float64 ndarray of shape (n,)
        Uniform in (0, 1).

    References
    ----------
    Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (SplitMix64).
    """
    start = np.uint64((seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & _MASK)
    with np.errstate(over="ignore"):
        state = start + ids.cpu().numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def neighbor_usefulness(neighbors: Tensor, labels: Tensor) -> Tensor:
    """How much each row is worth to the rows that have it as a neighbor.

    Row i gives each of its neighbors j its doubt, 1 minus the margin of its own label in its
    neighbors' even vote: a plus where j carries i's label, a minus where it carries another. Rows
    that others lean on wrongly come out negative, rows among plenty of their like near zero, and
    rows that carry an unsure neighborhood high.

    Parameters
    ----------
    neighbors : int64 Tensor of shape (n, m)
        Positions of every row's nearest rows, itself left out.
    labels : int64 Tensor of shape (n,)

    Returns
    -------
    usefulness : float32 Tensor of shape (n,)
    """
    n_rows, m = neighbors.shape
    voters = labels[neighbors]
    agree = voters == labels[:, None]
    vote = torch.zeros(n_rows, int(labels.max()) + 1).scatter_add_(
        1, voters, torch.full(voters.shape, 1.0 / m)
    )
    own = vote.gather(1, labels[:, None])[:, 0]
    other = vote.scatter(1, labels[:, None], 0.0).amax(1)
    doubt = 1 - (own - other).clamp_min(0) + _DOUBT
    signed = torch.where(agree, doubt[:, None], -doubt[:, None]) / m
    return torch.zeros(n_rows).index_add_(0, neighbors.ravel(), signed.ravel())


def choose_evicted(
    policy: EvictionName,
    ids: Tensor,
    labels: Tensor,
    capacity: int,
    *,
    seed: int,
    usefulness: Tensor | None = None,
    half_life: float | None = None,
) -> Tensor:
    """Choose the rows to forget so that `capacity` are left, every class keeping at least one.

    Parameters
    ----------
    policy : {"reservoir", "class-balanced", "importance", "age"}
        "reservoir": every row ever seen stays with the same probability. "class-balanced": row by
        row in the order of arrival, the largest class gives up one. "importance": the least useful
        go first. "age": a row that came `half_life` rows earlier is half as likely to stay.
    ids : int64 Tensor of shape (n,)
        In the order of arrival: a larger id came later.
    labels : int64 Tensor of shape (n,)
        Class positions.
    capacity : int
        Rows to keep; at least the number of classes present.
    seed : int
    usefulness : Tensor of shape (n,), optional
        For "importance"; see `neighbor_usefulness`.
    half_life : float, optional
        For "age", in rows; `capacity` / 2 by default.

    Returns
    -------
    positions : int64 Tensor of shape (n - capacity,)
        Ascending; empty where nothing is too much.

    Raises
    ------
    ValueError
        If the policy is unknown, lacks its usefulness, or there are more classes than places.
    """
    if policy not in EVICTION_NAMES:
        raise ValueError(f"eviction={policy!r} is not known. Use one of {EVICTION_NAMES}.")
    check_capacity(capacity, len(torch.unique(labels)))
    surplus = len(ids) - capacity
    if surplus <= 0:
        return torch.empty(0, dtype=torch.int64)
    draws, classes = arrival_draws(ids, seed), labels.cpu().numpy()
    if policy == "class-balanced":
        chosen = _from_largest_class(draws, classes, ids.cpu().numpy(), capacity)
        return torch.from_numpy(np.sort(chosen))
    if policy == "reservoir":
        rank = draws
    elif policy == "age":
        # Efraimidis and Spirakis: with weight w a row's key is log(-log u) - log w; least stay.
        decay = np.log(2) / (half_life or capacity / 2)
        rank = np.log(-np.log(draws)) - decay * ids.cpu().numpy()
    else:
        if usefulness is None:
            raise ValueError('eviction="importance" needs the usefulness of the rows.')
        rank = np.empty(len(ids))
        rank[np.lexsort((draws, -usefulness.double().cpu().numpy()))] = np.arange(len(ids))
    order = np.argsort(rank, kind="stable")
    order = order[~_first_of_class(classes[order])]
    return torch.from_numpy(np.sort(order[len(order) - surplus :]))


def check_capacity(capacity: int, n_classes: int) -> None:
    """Refuse a capacity that cannot hold a row of every class."""
    if capacity < n_classes:
        raise ValueError(
            f"capacity={capacity} is too small for {n_classes} classes, each of which keeps at "
            "least one row. Raise the capacity."
        )


def _first_of_class(classes: np.ndarray) -> np.ndarray:
    """Mask of the first row of every class."""
    first = np.zeros(len(classes), dtype=bool)
    first[np.unique(classes, return_index=True)[1]] = True
    return first


def _from_largest_class(
    draws: np.ndarray, classes: np.ndarray, ids: np.ndarray, capacity: int
) -> np.ndarray:
    """Let rows in one by one; while there is one too many, the largest class gives up a row.

    Where classes are equally large, the one with the lowest position gives.
    """
    heaps: list[list[tuple[float, int]]] = [[] for _ in range(int(classes.max()) + 1)]
    gone = []
    for count, row in enumerate(np.argsort(ids), start=1):
        heapq.heappush(heaps[classes[row]], (-draws[row], int(row)))
        if count > capacity:
            largest = max(range(len(heaps)), key=lambda c: (len(heaps[c]), -c))
            gone.append(heapq.heappop(heaps[largest])[1])
    return np.array(gone, dtype=np.int64)
