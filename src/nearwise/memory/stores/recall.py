"""Recall of searches in a row store, and the search width that it needs."""

from collections.abc import Callable

import numpy as np

from nearwise.warn import warn_user

ENOUGH_RECALL = 0.95
RECALL_QUERIES = 200
JUDGED_BY = 32  # true neighbors per query in the recall


def widened(
    space: str,
    search: Callable[[int], np.ndarray],
    true: np.ndarray,
    narrowest: int,
    widest: int,
) -> tuple[int, float]:
    """Double the search width until the recall suffices.

    Parameters
    ----------
    space : str
        Name of the key space, for the warning.
    search : callable
        Takes a width and returns ids or positions, (n_queries, at least k).
    true : int64 ndarray of shape (n_queries, k)
        True neighbors.
    narrowest, widest : int
        First and last width.

    Returns
    -------
    width : int
    recall : float
        Share of `true` found with this width; UserWarning below `ENOUGH_RECALL`.
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
