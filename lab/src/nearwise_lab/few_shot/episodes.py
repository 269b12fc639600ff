"""Few-shot episodes: some classes, a few labeled rows of each, and rows to name."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np


class Episode(NamedTuple):
    """One N-way, k-shot task, as positions in the data it was drawn from.

    Attributes
    ----------
    support : int64 ndarray of shape (n_way * n_shot,)
        Rows whose labels are given.
    support_labels : int64 ndarray of shape (n_way * n_shot,)
        Their classes in this episode, 0 to n_way - 1.
    query : int64 ndarray of shape (n_way * n_query,)
        Rows to be named; none is in `support`.
    query_labels : int64 ndarray of shape (n_way * n_query,)
    classes : tuple
        The labels behind 0, 1, ..., in the order drawn.
    """

    support: np.ndarray
    support_labels: np.ndarray
    query: np.ndarray
    query_labels: np.ndarray
    classes: tuple[Any, ...]


def draw_episodes(
    y: Any,
    n_episodes: int,
    *,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    classes: Sequence[Any] | None = None,
    seed: int = 0,
) -> Iterator[Episode]:
    """Draw episodes, the same ones for the same arguments.

    Parameters
    ----------
    y : array-like of shape (n,)
        Labels of the rows to draw from.
    n_episodes : int
    n_way, n_shot, n_query : int
        Classes of an episode, and support and query rows of each class.
    classes : sequence, optional
        Draw from these classes only; all by default.
    seed : int, default=0

    Yields
    ------
    episode : Episode

    Raises
    ------
    ValueError
        If a size is below 1, there are fewer classes than `n_way`, or a class has fewer than
        `n_shot + n_query` rows. Raised at the first episode.

    Examples
    --------
    >>> (episode,) = draw_episodes([0, 0, 1, 1, 2, 2], 1, n_way=2, n_shot=1, n_query=1)
    >>> len(episode.support), episode.query_labels.tolist()
    (2, [0, 1])
    """
    labels = np.asarray(y).ravel()
    for name, size in (("n_way", n_way), ("n_shot", n_shot), ("n_query", n_query)):
        if size < 1 + (name == "n_way"):
            raise ValueError(f"{name}={size} is too small: give at least {1 + (name == 'n_way')}.")
    wanted = np.unique(labels) if classes is None else np.array(list(classes))
    rows = {c: np.flatnonzero(labels == c) for c in wanted.tolist()}
    if len(rows) < n_way:
        raise ValueError(f"n_way={n_way} exceeds the {len(rows)} classes. Lower n_way.")
    small = [c for c, found in rows.items() if len(found) < n_shot + n_query]
    if small:
        raise ValueError(
            f"Class {small[0]!r} has {len(rows[small[0]])} rows; n_shot + n_query = "
            f"{n_shot + n_query} are needed. Lower n_query, or leave the class out."
        )
    rng = np.random.default_rng(seed)
    places = np.arange(n_way)
    for _ in range(n_episodes):
        chosen = [wanted.tolist()[i] for i in rng.permutation(len(rows))[:n_way]]
        drawn = np.stack([rng.permutation(rows[c])[: n_shot + n_query] for c in chosen])
        yield Episode(
            drawn[:, :n_shot].ravel(),
            places.repeat(n_shot),
            drawn[:, n_shot:].ravel(),
            places.repeat(n_query),
            tuple(chosen),
        )
