"""How rows spread over directions, and how alike two feature sets of the same rows are."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearwise_lab.geometry.rows import Rows, as_labels, as_rows, same_rows, unit_rows

_BLOCK_CELLS = 2**24  # of a block of pairs, 128 MiB in float64
_SHARPNESS = 2.0  # of the Gaussian potential, as in the paper


def alignment(X: Rows, Y: Rows) -> float:
    """Mean squared distance between the directions of two views of the same rows.

    Parameters
    ----------
    X, Y : array-like or Tensor of shape (n_rows, n_features)
        Features of two views (two contexts, two augmentations), row by row.

    Returns
    -------
    alignment : float in [0, 4]
        0 where views fall together; 2 for views that have nothing in common.

    References
    ----------
    Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and
    Uniformity on the Hypersphere", ICML 2020, with exponent 2.
    """
    first, second = same_rows(X, Y, least=1)
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"X has {first.shape[1]} features and Y has {second.shape[1]}. Views come from one "
            "encoder."
        )
    apart = unit_rows(first) - unit_rows(second)
    return float(apart.square().sum(dim=1).mean())


def class_alignment(X: Rows, y: npt.ArrayLike | Tensor) -> float:
    """Mean squared distance between the directions of two rows of one class, over all such pairs.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Features; no row is all zeros.
    y : integer array-like of shape (n_rows,)
        Labels; some class has two rows.

    Returns
    -------
    alignment : float in [0, 4]
        0 where every class is one direction. Pairs count alike, so large classes weigh more.
    """
    rows = unit_rows(as_rows(X))
    classes, codes = np.unique(as_labels(y, len(rows)), return_inverse=True)
    labels, n_classes = torch.from_numpy(codes).to(rows.device), len(classes)
    sizes = torch.bincount(labels, minlength=n_classes).double()
    sums = rows.new_zeros(n_classes, rows.shape[1]).index_add_(0, labels, rows)
    pairs = float((sizes * (sizes - 1)).sum())
    if pairs == 0:
        raise ValueError("No class has two rows, so there is no pair. Pass more rows.")
    # the mean of |a - b|^2 is 2 - 2 cos; cosines of all pairs come from the sum of a class
    cosines = float((sums.square().sum(dim=1) - sizes).sum()) / pairs
    return max(0.0, 2.0 - 2.0 * cosines)


def uniformity(X: Rows) -> float:
    """Log of the mean Gaussian potential between the directions of all pairs of rows.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Features; no row is all zeros.

    Returns
    -------
    uniformity : float in [-8, 0]
        0 where all rows have one direction; lower is more uniform.

    References
    ----------
    Wang and Isola, as in `alignment`, with t = 2.
    """
    rows = unit_rows(as_rows(X))
    n = len(rows)
    total = 0.0
    block = max(1, _BLOCK_CELLS // n)
    for start in range(0, n, block):
        cosines = rows[start : start + block] @ rows.T
        total += float(torch.exp((2.0 * _SHARPNESS * (cosines - 1.0)).clamp(max=0.0)).sum())
    # each row with itself gives exactly 1
    return math.log(max((total - n) / (n * (n - 1)), math.exp(-4.0 * _SHARPNESS)))


def anisotropy(X: Rows) -> float:
    """Mean cosine between distinct rows: how far all of them point one way.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Features; no row is all zeros.

    Returns
    -------
    anisotropy : float in [-1, 1]
        About 0 where directions are spread evenly, 1 where there is one direction.

    References
    ----------
    Ethayarajh, "How Contextual are Contextualized Word Representations?", EMNLP 2019.
    """
    rows = unit_rows(as_rows(X))
    n = len(rows)
    return float((rows.sum(dim=0).square().sum() - n) / (n * (n - 1)))


def effective_rank(X: Rows) -> float:
    """Count the directions that share the variance: exp of the entropy of its shares.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Features; they are centered here.

    Returns
    -------
    rank : float
        At least 1, at most ``min(n_rows - 1, n_features)``; 0 where all rows are equal.

    References
    ----------
    Roy and Vetterli, "The Effective Rank: a Measure of Effective Dimensionality", EUSIPCO 2007,
    on the eigenvalues of the covariance.
    """
    rows = as_rows(X).double()
    centered = rows - rows.mean(dim=0)
    small = centered @ centered.T if len(rows) < rows.shape[1] else centered.T @ centered
    variances = torch.linalg.eigvalsh(small).clamp(min=0.0)
    total = float(variances.sum())
    if total <= 1e-24 * max(1.0, float(rows.square().sum())):
        return 0.0
    shares = variances / total
    shares = shares[shares > 0]
    return math.exp(float(-(shares * shares.log()).sum()))


def cka(X: Rows, Y: Rows) -> float:
    """Linear centered kernel alignment between two feature sets of the same rows, debiased.

    With few rows and many features the plain estimate is near 1 for anything.

    Parameters
    ----------
    X, Y : array-like or Tensor of shapes (n_rows, n_features) and (n_rows, other_features)
        Features of the same rows in the same order; at least 4 rows.

    Returns
    -------
    cka : float
        1 for features that are equal up to a rotation, a scale and a shift; about 0 for unrelated
        ones.

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
    own_a, own_b = _unbiased(a, a), _unbiased(b, b)
    for name, own in (("X", own_a), ("Y", own_b)):
        if own <= 0:
            raise ValueError(f"{name} does not vary from row to row, so nothing is like it.")
    return _unbiased(a, b) / math.sqrt(own_a * own_b)


def _centered(rows: Tensor) -> Tensor:
    """Center, and bring to a total variance of 1, so that products neither grow nor vanish."""
    centered = rows - rows.mean(dim=0)
    size = float(centered.norm())
    # what centering leaves of equal rows is rounding
    return centered / size if size > 1e-12 * float(rows.norm()) else torch.zeros_like(centered)


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
