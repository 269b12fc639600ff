"""Neighbor search that leaves out all rows of the query's group, such as one patient's."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nearwise.functional import Neighbors

_AT_ONCE = 2**23  # neighbors per block


def group_numbers(names: np.ndarray | Tensor) -> Tensor:
    """Group number of each row, from 0, int64 (n,)."""
    return torch.as_tensor(names).unique(return_inverse=True)[1]


def shared_groups(names: Tensor) -> Tensor | None:
    """Group number of each row, or None if every row is a group by itself."""
    numbers = group_numbers(names)
    return numbers if len(numbers) and int(numbers.max()) + 1 < len(numbers) else None


def n_of_others(groups: Tensor) -> int:
    """Count the rows outside the largest group."""
    return len(groups) - int(torch.bincount(groups).max()) if len(groups) else 0


def nearest_of_others(
    find: Callable[[Tensor, int], Neighbors],
    own: Tensor,
    groups: Tensor,
    k: int,
    n_rows: int,
) -> Neighbors:
    """Nearest rows outside the query's group, found by searches for more and more neighbors.

    Parameters
    ----------
    find : callable
        Maps query positions and a number to that many nearest rows per query, of any group, as
        distances and positions in `groups`.
    own : int64 Tensor of shape (n_queries,)
        Groups of the queries.
    groups : int64 Tensor of shape (n,)
        Groups of the rows.
    k : int
        Number of neighbors, at most `n_of_others` of the searched rows.
    n_rows : int
        Number of searched rows.
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
