"""Geometry of features: whether neighborhoods hold one class.

Numpy arrays or torch tensors in, numbers out; tensors stay on their device. A row is never its own
neighbor: it is left out by its position.
"""

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
    own = torch.arange(len(rows), device=rows.device)
    found = topk_neighbors(rows, rows, max(n_neighbors), metric="cosine", query_ids=own)
    agree = labels[found.indices.cpu()] == labels[:, None]
    shares = agree.double().cumsum(dim=1).mean(dim=0).numpy()
    return np.array([shares[k - 1] / k for k in n_neighbors])


def _as_rows(X: Rows) -> Tensor:
    """Convert features to a finite float tensor, on their device."""
    if isinstance(X, Tensor):
        rows = X.detach()
    else:
        raw = np.asarray(X)
        if raw.dtype.kind not in "fiub":
            raise ValueError(f"X must be numeric, got dtype {raw.dtype}. Convert it to float.")
        kept: Any = np.float64 if raw.dtype == np.float64 else np.float32
        rows = torch.from_numpy(np.array(raw, dtype=kept))
    rows = rows if rows.dtype == torch.float64 else rows.float()
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(
            f"X has shape {tuple(rows.shape)}. Pass (n_rows, n_features); pool or flatten tokens "
            "first."
        )
    if len(rows) < 2:
        raise ValueError(f"X has {len(rows)} rows; at least 2 are needed.")
    bad = (~torch.isfinite(rows).all(dim=1)).nonzero().ravel().tolist()
    if bad:
        more = "" if len(bad) <= _NAMED else f" and {len(bad) - _NAMED} more"
        raise ValueError(
            f"X holds NaN or infinity in rows {', '.join(map(str, bad[:_NAMED]))}{more}. "
            "Remove or repair them."
        )
    return rows
