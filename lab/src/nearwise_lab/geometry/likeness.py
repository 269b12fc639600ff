"""How alike two feature sets of the same rows are: centered kernel alignment."""

import math

import torch
from torch import Tensor

from nearwise_lab.geometry.rows import Rows, same_rows


def cka(X: Rows, Y: Rows, *, debiased: bool = True) -> float:
    """Linear centered kernel alignment between two feature sets of the same rows.

    Parameters
    ----------
    X, Y : array-like or Tensor of shapes (n_rows, n_features) and (n_rows, other_features)
        Features of the same rows in the same order; at least 4 rows.
    debiased : bool, default=True
        Take the unbiased estimate of both norms: with few rows and many features the plain one is
        near 1 for anything.

    Returns
    -------
    cka : float
        1 for features that are equal up to a rotation, a scale and a shift; 0 for unrelated ones
        (the unbiased estimate may fall a little below).

    Raises
    ------
    ValueError
        If rows do not match, or one set does not vary.

    References
    ----------
    Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019; Song et
    al., "Feature Selection via Dependence Maximization", JMLR 2012, eq. 4 (the unbiased estimate).
    """
    first, second = same_rows(X, Y, least=4)
    a, b = (_centered(rows.double()) for rows in (first, second))
    product = _unbiased if debiased else _plain
    own_a, own_b = product(a, a), product(b, b)
    for name, own in (("X", own_a), ("Y", own_b)):
        if own <= 0:
            raise ValueError(f"{name} does not vary from row to row, so nothing is like it.")
    return product(a, b) / math.sqrt(own_a * own_b)


def _centered(rows: Tensor) -> Tensor:
    """Center, and bring to a total variance of 1, so that products neither grow nor vanish."""
    centered = rows - rows.mean(dim=0)
    size = float(centered.norm())
    # what centering leaves of equal rows is rounding
    return centered / size if size > 1e-12 * float(rows.norm()) else torch.zeros_like(centered)


def _plain(a: Tensor, b: Tensor) -> float:
    return _trace(a, b)


def _unbiased(a: Tensor, b: Tensor) -> float:
    """Song et al.'s estimate from the Gram matrices K and L without their diagonals."""
    n = len(a)
    diagonal_a, diagonal_b = a.square().sum(dim=1), b.square().sum(dim=1)
    trace = _trace(a, b) - float(diagonal_a @ diagonal_b)
    sums_a, sums_b = (x @ x.sum(dim=0) - d for x, d in ((a, diagonal_a), (b, diagonal_b)))
    whole = float(sums_a.sum()) * float(sums_b.sum()) / ((n - 1) * (n - 2))
    return trace + whole - 2.0 * float(sums_a @ sums_b) / (n - 2)


def _trace(a: Tensor, b: Tensor) -> float:
    """Sum over all pairs of rows of K * L, by the smaller of the two ways."""
    if a.shape[1] * b.shape[1] <= len(a) ** 2:
        return float((a.T @ b).square().sum())
    return float(((a @ a.T) * (b @ b.T)).sum())
