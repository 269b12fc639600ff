"""Share of the true neighbors that searches of a store find, and the width they need."""

from collections.abc import Callable

import numpy as np

from nearwise.warn import warn_user

ENOUGH_RECALL = 0.95
RECALL_QUERIES = 200
JUDGED_BY = 32  # true neighbors per query whose share found is the recall


def widened(
    space: str,
    search: Callable[[int], np.ndarray],
    true: np.ndarray,
    narrowest: int,
    widest: int,
) -> tuple[int, float]:
    """Search wider until enough of the true neighbors is found.

    Parameters
    ----------
    space : str
        Name of the key space, for the warning.
    search : callable
        Given how wide to search, it gives the ids or positions found, (n_queries, at least k).
    true : int64 ndarray of shape (n_queries, k)
        Those that are to be found.
    narrowest, widest : int
        The first width, which is doubled, and the last.

    Returns
    -------
    width : int
    recall : float
        Share of `true` that was found with this width; UserWarning below `ENOUGH_RECALL`.
    """
    width = narrowest
    while True:
        found = search(width)
        recall = float(np.mean([np.isin(*pair).mean() for pair in zip(true, found, strict=True)]))
        if recall >= ENOUGH_RECALL or width >= widest:
            break
        width = min(2 * width, widest)
    if recall < ENOUGH_RECALL:
        warn_user(
            f"Searches in the space {space!r} find {recall:.1%} of the nearest rows, below "
            f"{ENOUGH_RECALL:.0%}: many of its keys are nearly alike."
        )
    return width, recall
