"""Which rows a full memory gives up: pure functions of ids, labels and a seed."""

import heapq
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

EvictionName = Literal["reservoir", "class-balanced", "importance", "age"]
EVICTION_NAMES: tuple[EvictionName, ...] = get_args(EvictionName)
_UNCERTAINTY = 0.02  # worth of supporting a row that needs no support
_EVEN = 1.0  # weight of staying beside the usefulness, in units of its mean
_DISTRUSTED = 0.2  # weight of rows that mislead more than they help
_MASK = (1 << 64) - 1


def arrival_draws(ids: Tensor, seed: int) -> np.ndarray:
    """Draw a number in (0, 1) for every row, the same at any time and beside any other rows.

    Ids are given in the order of arrival and never twice, so a draw that depends on seed and id
    alone needs no generator whose state would have to be kept. SplitMix64 of Steele, Lea, Flood,
    "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
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

    Row i gives each neighbor j with i's label its uncertainty: 1 minus the margin of that label
    in the even vote of i's neighbors. Rows among many like them come out near zero, rows that
    decide an unsure neighborhood high. Rows that mislead more of those that use them than
    they help come out negative.

    Parameters
    ----------
    neighbors : int64 Tensor of shape (n, m)
        Positions of every row's nearest rows, itself left out.
    labels : int64 Tensor of shape (n,)

    Returns
    -------
    usefulness : float32 Tensor of shape (n,)
        -1 for rows that mislead.
    """
    n_rows, m = neighbors.shape
    voters = labels[neighbors]
    agree = voters == labels[:, None]
    vote = torch.zeros(n_rows, int(labels.max()) + 1).scatter_add_(
        1, voters, torch.full(voters.shape, 1.0 / m)
    )
    own = vote.gather(1, labels[:, None])[:, 0]
    other = vote.scatter(1, labels[:, None], 0.0).amax(1)
    uncertainty = 1 - (own - other).clamp_min(0) + _UNCERTAINTY
    help_given = torch.where(agree, uncertainty[:, None], 0.0) / m
    net = torch.zeros(n_rows).index_add_(0, neighbors.ravel(), 2.0 * agree.ravel() - 1.0)
    useful = torch.zeros(n_rows).index_add_(0, neighbors.ravel(), help_given.ravel())
    return torch.where(net < 0, -1.0, useful)


def choose_evicted(
    policy: EvictionName,
    ids: Tensor,
    labels: Tensor,
    capacity: int,
    *,
    seed: int,
    usefulness: Tensor | None = None,
    arrival: Tensor | None = None,
    half_life: float | None = None,
) -> Tensor:
    """Choose the rows to forget so that `capacity` are left, every class keeping at least one.

    Parameters
    ----------
    policy : {"reservoir", "class-balanced", "importance", "age"}
        "reservoir": every row ever seen stays with the same probability. "class-balanced": row by
        row in the order of arrival, the largest class gives up one. "importance": the same, and
        within the class useful rows are likelier to stay than redundant ones, and these than those
        that mislead. "age": a row that came `half_life` rows earlier is half as likely to stay.
    ids : int64 Tensor of shape (n,)
        In the order of arrival: a larger id came later.
    labels : int64 Tensor of shape (n,)
        Class positions.
    capacity : int
        Rows to keep; at least the number of classes present.
    seed : int
    usefulness : Tensor of shape (n,), optional
        For "importance"; see `neighbor_usefulness`.
    arrival : Tensor of shape (n,), optional
        For "age": when each row came, counted in rows; by default its id.
    half_life : float, optional
        For "age", in rows; by default `usual_half_life(capacity)`.

    Returns
    -------
    positions : int64 Tensor of shape (n - capacity,)
        Ascending; empty within the capacity.

    Raises
    ------
    ValueError
        If the policy is unknown, lacks its usefulness, or there are more classes than the capacity.
    """
    if policy not in EVICTION_NAMES:
        raise ValueError(f"eviction={policy!r} is not known. Use one of {EVICTION_NAMES}.")
    check_capacity(capacity, len(torch.unique(labels)))
    surplus = len(ids) - capacity
    if surplus <= 0:
        return torch.empty(0, dtype=torch.int64)
    classes = labels.cpu().numpy()
    # Efraimidis and Spirakis: with weight w a row's key is log(-log u) - log w; the least stay.
    rank = np.log(-np.log(arrival_draws(ids, seed)))
    if policy == "age":
        came = (ids if arrival is None else arrival).cpu().numpy()
        rank = rank - np.log(2) / (half_life or usual_half_life(capacity)) * came
    elif policy == "importance":
        if usefulness is None:
            raise ValueError('eviction="importance" needs the usefulness of the rows.')
        rank = rank - _log_weight(usefulness)
    if policy in ("class-balanced", "importance"):
        chosen = _from_largest_class(rank, classes, ids.cpu().numpy(), capacity)
        return torch.from_numpy(np.sort(chosen))
    order = np.argsort(rank, kind="stable")
    order = order[~_first_of_class(classes[order])]
    return torch.from_numpy(np.sort(order[len(order) - surplus :]))


def usual_half_life(capacity: int) -> float:
    """Half-life of a row in a memory of this size: a quarter of it, so that most is recent."""
    return max(capacity / 4, 1.0)


def _log_weight(usefulness: Tensor) -> np.ndarray:
    """Turn usefulness into log-weights of staying.

    A part is the same for all: a memory of uncertain rows alone would not look like the queries.
    """
    useful = usefulness.double().cpu().numpy()
    positive = useful[useful > 0]
    unit = positive.mean() if len(positive) else 1.0
    weight: np.ndarray = np.where(useful > 0, _EVEN + useful / unit, _DISTRUSTED)
    return np.log(weight)


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
    rank: np.ndarray, classes: np.ndarray, ids: np.ndarray, capacity: int
) -> np.ndarray:
    """Let rows in one by one; while there is one too many, the largest class gives its last rank.

    Where classes are equally large, the one with the lowest position gives.
    """
    heaps: list[list[tuple[float, int]]] = [[] for _ in range(int(classes.max()) + 1)]
    gone = []
    for count, row in enumerate(np.argsort(ids), start=1):
        heapq.heappush(heaps[classes[row]], (-rank[row], int(row)))
        if count > capacity:
            largest = max(range(len(heaps)), key=lambda c: (len(heaps[c]), -c))
            gone.append(heapq.heappop(heaps[largest])[1])
    return np.array(gone, dtype=np.int64)
