"""Neighbors of other groups: rows of one subject, say, are left out with each other."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nearwise.functional import Neighbors

_AT_ONCE = 2**23  # neighbors that are looked through at once


def group_numbers(names: np.ndarray | Tensor) -> Tensor:
    """Give the groups of rows numbers from 0, int64 (n,)."""
    return torch.as_tensor(names).unique(return_inverse=True)[1]


def shared_groups(names: Tensor) -> Tensor | None:
    """Give the same, or None where each row is a group of its own."""
    numbers = group_numbers(names)
    return numbers if len(numbers) and int(numbers.max()) + 1 < len(numbers) else None


def n_of_others(groups: Tensor) -> int:
    """Fewest rows (of these) that are in another group than a row."""
    return len(groups) - int(torch.bincount(groups).max()) if len(groups) else 0


def nearest_of_others(
    find: Callable[[Tensor, int], Neighbors],
    own: Tensor,
    groups: Tensor,
    k: int,
    n_rows: int,
) -> Neighbors:
    """Nearest rows of other groups than the query's: as many are asked for as needed.

    Parameters
    ----------
    find : callable
        Called with positions of queries and a number, gives that many nearest rows of each, of any
        group, as distances and positions in `groups`.
    own : int64 Tensor of shape (n_queries,)
        Groups of the queries.
    groups : int64 Tensor of shape (n,)
        Groups of the rows.
    k : int
        At most `n_of_others` of the rows that may be found.
    n_rows : int
        Rows that may be found.
    """
    sizes = torch.bincount(groups)
    of_own = sizes[own] if len(own) else own
    distances = torch.empty(len(own), k)
    indices = torch.empty(len(own), k, dtype=torch.int64)
    n_asked = min(k + max(1, int(of_own.float().mean()) if len(own) else 1), n_rows)
    left = torch.arange(len(own))
    while len(left):
        unsettled = []
        for some in left.split(max(1, _AT_ONCE // n_asked)):
            found = find(some, n_asked)
            is_other = groups[found.indices] != own[some, None]
            enough = is_other.sum(1) >= k
            unsettled.append(some[~enough])
            first = (~is_other[enough]).int().argsort(dim=1, stable=True)[:, :k]
            distances[some[enough]] = found.distances[enough].gather(1, first)
            indices[some[enough]] = found.indices[enough].gather(1, first)
        left = torch.cat(unsettled)
        if len(left) and n_asked == n_rows:
            raise ValueError(
                f"Fewer than {k} rows of other groups are near a row. Give fewer neighbors."
            )
        n_asked = min(2 * n_asked, n_rows)
    return Neighbors(distances, indices)
