"""Geometry of features: whether neighborhoods hold one class, and how alike two feature sets are.

Numpy arrays or torch tensors in, numbers out; tensors stay on their device. A row is never its own
neighbor: it is left out by its position.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearwise.functional import topk_neighbors
from nearwise.metrics.checks import FloatArray, check_labels, check_positive_int

Rows = npt.ArrayLike | Tensor
_NAMED = 5  # rows listed in an error


def purity_curve(X: Rows, y: npt.ArrayLike | Tensor, n_neighbors: Sequence[int]) -> FloatArray:
    """Share of a row's nearest other rows, by cosine, that carry its label, averaged over rows.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Finite features.
    y : integer array-like of shape (n_rows,)
        Class positions.
    n_neighbors : sequence of int
        How many neighbors, in any order, each at least 1 and at most ``n_rows - 1``.

    Returns
    -------
    purity : float64 ndarray of shape (len(n_neighbors),)
        In the order of `n_neighbors`. With uninformative labels, the chance that two rows share a
        label.

    Raises
    ------
    ValueError
        If features are not finite, a number does not fit, or labels are not one per row.
    """
    rows = _as_rows(X)
    labels = torch.from_numpy(check_labels(np.asarray(y.cpu() if isinstance(y, Tensor) else y)))
    if len(labels) != len(rows):
        raise ValueError(
            f"X has {len(rows)} rows and y has {len(labels)}. Pass one label for each row."
        )
    for k in n_neighbors:
        check_positive_int(k, "n_neighbors")
    agree = labels[_other_neighbors(rows, max(n_neighbors))] == labels[:, None]
    shares = agree.double().cumsum(dim=1).mean(dim=0).numpy()
    return np.array([shares[k - 1] / k for k in n_neighbors])


def neighbor_overlap(X: Rows, Y: Rows, n_neighbors: int = 20) -> float:
    """Share of neighbors, by cosine, that two feature sets of the same rows have in common.

    Parameters
    ----------
    X, Y : array-like or Tensor of shapes (n_rows, n_features) and (n_rows, other_features)
        Features of the same rows in the same order.
    n_neighbors : int, default=20

    Returns
    -------
    overlap : float in [0, 1]
        1 where every row has the same neighbors in both; about ``n_neighbors / (n_rows - 1)``
        by chance.

    Raises
    ------
    ValueError
        As `purity_curve`, or if the numbers of rows differ.
    """
    found = [_other_neighbors(rows, n_neighbors) for rows in _same_rows(X, Y)]
    merged = torch.cat(found, dim=1).sort(dim=1).values
    common = (merged[:, 1:] == merged[:, :-1]).sum(dim=1)  # a list names a row once
    return float(common.double().mean()) / n_neighbors


def cka(X: Rows, Y: Rows) -> float:
    """Linear centered kernel alignment between two feature sets of the same rows, debiased.

    With few rows and many features the plain estimate is near 1 for anything. Memory grows with
    the square of the rows.

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
    K, L = (_gram(rows.double()) for rows in _same_rows(X, Y, least=4))
    own = {"X": _unbiased(K, K), "Y": _unbiased(L, L)}
    for name, value in own.items():
        if value <= 0:
            raise ValueError(f"{name} does not vary from row to row, so nothing is like it.")
    return _unbiased(K, L) / math.sqrt(own["X"] * own["Y"])


def _gram(rows: Tensor) -> Tensor:
    """Products of all pairs of centered rows without the diagonal, of a total variance of 1."""
    centered = rows - rows.mean(dim=0)
    size = float(centered.norm())
    # what centering leaves of equal rows is rounding
    scaled = centered / size if size > 1e-12 * float(rows.norm()) else torch.zeros_like(centered)
    return (scaled @ scaled.T).fill_diagonal_(0.0)


def _unbiased(K: Tensor, L: Tensor) -> float:
    n = len(K)
    whole = K.sum() * L.sum() / ((n - 1) * (n - 2))
    return float((K * L).sum() + whole - 2.0 * (K.sum(dim=0) @ L.sum(dim=0)) / (n - 2))


def _as_rows(X: Rows, name: str = "X", least: int = 2) -> Tensor:
    """Take features as a finite float tensor on the device where they are."""
    if isinstance(X, Tensor):
        rows = X.detach()
    else:
        raw = np.asarray(X)
        if raw.dtype.kind not in "fiub":
            raise ValueError(f"{name} must be numeric, got dtype {raw.dtype}. Convert it to float.")
        kept: Any = np.float64 if raw.dtype == np.float64 else np.float32
        rows = torch.from_numpy(np.array(raw, dtype=kept))
    rows = rows if rows.dtype == torch.float64 else rows.float()
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(rows.shape)}. Pass (n_rows, n_features); pool or flatten "
            "tokens first."
        )
    if len(rows) < least:
        raise ValueError(f"{name} has {len(rows)} rows; at least {least} are needed.")
    bad = (~torch.isfinite(rows).all(dim=1)).nonzero().ravel().tolist()
    if bad:
        more = "" if len(bad) <= _NAMED else f" and {len(bad) - _NAMED} more"
        raise ValueError(
            f"{name} holds NaN or infinity in rows {', '.join(map(str, bad[:_NAMED]))}{more}. "
            "Remove or repair them."
        )
    return rows


def _same_rows(X: Rows, Y: Rows, least: int = 2) -> tuple[Tensor, Tensor]:
    first, second = _as_rows(X, "X", least), _as_rows(Y, "Y", least)
    if len(first) != len(second):
        raise ValueError(
            f"X has {len(first)} rows and Y has {len(second)}. Pass features of the same rows in "
            "the same order."
        )
    return first, second


def _other_neighbors(rows: Tensor, n_neighbors: int) -> Tensor:
    positions = torch.arange(len(rows), device=rows.device)
    found = topk_neighbors(rows, rows, n_neighbors, metric="cosine", query_ids=positions)
    return found.indices.cpu()
