"""Seeded damage to training labels: noise, and a long tail of rare classes."""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

NoiseKind = Literal["symmetric", "asymmetric"]
Labels = NDArray[np.generic]


def label_noise(
    y: ArrayLike,
    rate: float,
    kind: NoiseKind = "symmetric",
    seed: int = 0,
    *,
    classes: ArrayLike | None = None,
) -> Labels:
    """Return a copy of `y` with wrong labels in it.

    symmetric and asymmetric change exactly ``floor(rate * n + 0.5)`` rows, chosen uniformly
    without replacement over all rows. symmetric gives each a *different* class, uniformly;
    asymmetric gives the next class in the order of `classes`, the first after the last. For one
    seed a larger rate changes the same rows to the same labels, and further rows.

    Parameters
    ----------
    y : array of shape (n_rows,)
        Labels.
    rate : float
        Share of rows to change, in [0, 1].
    kind : {"symmetric", "asymmetric"}, default="symmetric"
        How the wrong label is chosen.
    seed : int, default=0
        Seed of ``numpy.random.default_rng``.
    classes : array of shape (n_classes,), optional
        All classes, in the order to use. Default: the sorted distinct labels of `y`.

    Returns
    -------
    noisy : ndarray of shape (n_rows,)
        Labels; ``noisy != y`` marks the changed rows.

    Raises
    ------
    ValueError
        If `rate`, `kind` or `classes` do not fit.

    References
    ----------
    Patrini et al., "Making Deep Neural Networks Robust to Label Noise", CVPR 2017, sec. 2.
    """
    known, codes = _encode(y, classes)
    rng = np.random.default_rng(seed)
    if kind not in ("symmetric", "asymmetric"):
        raise ValueError(f"kind={kind!r} is not one of symmetric, asymmetric.")
    if not 0 <= rate <= 1:
        raise ValueError(f"rate={rate} is not a share of the rows. Pass one in [0, 1].")
    n_changed = math.floor(rate * len(codes) + 0.5)
    if n_changed and len(known) < 2:
        raise ValueError(
            f"y has the one class {known[0]!r}: no other label to give. "
            "Pass all classes as classes=."
        )
    # both draws cover all rows, so that a larger rate only adds to a smaller one
    order = rng.permutation(len(codes))
    steps = rng.integers(1, max(2, len(known)), size=len(codes))
    changed = order[:n_changed]
    shift = steps[changed] if kind == "symmetric" else 1
    noisy = codes.copy()
    noisy[changed] = (codes[changed] + shift) % len(known)
    return known[noisy]


def long_tail(
    y: ArrayLike, ratio: float, seed: int = 0, *, classes: ArrayLike | None = None, least: int = 1
) -> NDArray[np.int64]:
    """Return the rows to keep so that class sizes fall exponentially.

    Of class c (0 to C - 1 in the order of `classes`) ``max(least, floor(m * ratio^(c / (C - 1))))``
    rows stay, m being the size of the largest class; a class with fewer rows keeps them all.
    They are chosen uniformly; for one seed a smaller ratio keeps a part of what a larger keeps.

    Parameters
    ----------
    y : array of shape (n_rows,)
        Labels.
    ratio : float
        Size of the last class over that of the first, in (0, 1].
    seed : int, default=0
        Seed of ``numpy.random.default_rng``.
    classes : array of shape (n_classes,), optional
        All classes, the one to keep whole first. Default: the sorted distinct labels of `y`.
    least : int, default=1
        Rows that stay of every class at least; 2 where something is to be left out of each.

    Returns
    -------
    kept : int64 ndarray of shape (n_kept,)
        Row positions, ascending.

    Raises
    ------
    ValueError
        If `ratio` is outside (0, 1] or a label is not among `classes`.

    References
    ----------
    Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019, sec. 5.1.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio} is not in (0, 1]: smallest class over largest.")
    known, codes = _encode(y, classes)
    largest = int(np.bincount(codes).max())
    order = np.random.default_rng(seed).permutation(len(codes))
    kept = []
    for c in range(len(known)):
        share = ratio ** (c / max(1, len(known) - 1))
        # the tiny term keeps 28.999999999999996 (= 0.29 * 100) from becoming 28
        n_kept = max(least, math.floor(largest * share + 1e-9))
        kept.append(order[codes[order] == c][:n_kept])
    return np.sort(np.concatenate(kept)).astype(np.int64)


def _encode(y: ArrayLike, classes: ArrayLike | None) -> tuple[Labels, NDArray[np.int64]]:
    labels = np.asarray(y)
    if labels.ndim != 1 or not len(labels):
        raise ValueError(f"y has shape {labels.shape}; pass at least one label, shape (n_rows,).")
    if classes is None:
        known, codes = np.unique(labels, return_inverse=True)
        return known, codes.astype(np.int64)
    known = np.asarray(classes)
    if known.ndim != 1 or not len(known):
        raise ValueError(f"classes has shape {known.shape}; pass shape (n_classes,).")
    order = np.argsort(known)
    places = np.searchsorted(known, labels, sorter=order).clip(max=len(known) - 1)
    codes = order[places]
    strange = np.unique(labels[known[codes] != labels])
    if len(strange) or len(np.unique(known)) != len(known):
        raise ValueError(
            f"classes={known.tolist()} must be distinct and hold every label of y; "
            f"not among them: {strange.tolist()}."
        )
    return known, codes.astype(np.int64)
