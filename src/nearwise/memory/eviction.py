"""Choose the rows that a full memory forgets: pure functions of ids, labels and a seed."""

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

EvictionName = Literal["reservoir", "age"]
EVICTION_NAMES: tuple[EvictionName, ...] = get_args(EvictionName)
_MASK = (1 << 64) - 1


def arrival_draws(ids: Tensor, seed: int) -> np.ndarray:
    """Draw a number in (0, 1) per row that depends on seed and id alone.

    Ids ascend in the order of arrival and are never reused, so draws repeat at any time without a
    stored generator state. SplitMix64 of Steele, Lea, Flood,
    "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """
    start = np.uint64((seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & _MASK)
    with np.errstate(over="ignore"):
        state = start + ids.cpu().numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def choose_evicted(
    policy: EvictionName,
    ids: Tensor,
    labels: Tensor,
    capacity: int,
    *,
    seed: int,
    arrival: Tensor | None = None,
    half_life: float | None = None,
) -> Tensor:
    """Choose the rows to forget so that `capacity` rows stay, at least one per class.

    Parameters
    ----------
    policy : {"reservoir", "age"}
        "reservoir": every row ever added stays with the same probability. "age": a row that was
        added `half_life` rows earlier is half as likely to stay.
    ids : int64 Tensor of shape (n,)
        Ascending with arrival: a larger id was added later.
    labels : int64 Tensor of shape (n,)
        Class positions.
    capacity : int
        Rows to keep; at least the number of classes present.
    seed : int
    arrival : Tensor of shape (n,), optional
        For "age": arrival of each row, counted in rows; by default its id.
    half_life : float, optional
        For "age", in rows; by default `usual_half_life(capacity)`.

    Returns
    -------
    positions : int64 Tensor of shape (n - capacity,)
        Ascending; empty within the capacity.

    Raises
    ------
    ValueError
        If the policy is unknown, or there are more classes than the capacity.
    """
    if policy not in EVICTION_NAMES:
        raise ValueError(f"eviction={policy!r} is not known. Use one of {EVICTION_NAMES}.")
    check_capacity(capacity, len(torch.unique(labels)))
    surplus = len(ids) - capacity
    if surplus <= 0:
        return torch.empty(0, dtype=torch.int64)
    classes = labels.cpu().numpy()
    # Efraimidis and Spirakis: rows with the smallest log(-log u) - log w stay (weight w).
    rank = np.log(-np.log(arrival_draws(ids, seed)))
    if policy == "age":
        came = (ids if arrival is None else arrival).cpu().numpy()
        rank = rank - np.log(2) / (half_life or usual_half_life(capacity)) * came
    order = np.argsort(rank, kind="stable")
    order = order[~_first_of_class(classes[order])]
    return torch.from_numpy(np.sort(order[len(order) - surplus :]))


def usual_half_life(capacity: int) -> float:
    """Default half-life in rows, a quarter of the capacity: most rows are then recent."""
    return max(capacity / 4, 1.0)


def check_capacity(capacity: int, n_classes: int) -> None:
    """Raise ValueError if the capacity is below the number of classes."""
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
