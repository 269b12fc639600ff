"""Intrinsic dimension of features, from distances to the nearest rows."""

from typing import Literal

import numpy as np
from torch import Tensor

from nearwise.metrics.checks import FloatArray, check_positive_int
from nearwise_lab.geometry.rows import Rows, as_rows, other_neighbors

_DISCARDED = 0.1  # largest ratios, as in the paper


def intrinsic_dimension(
    X: Rows, method: Literal["two-nn", "mle"] = "two-nn", n_neighbors: int = 20
) -> float:
    """Estimate how many dimensions the rows fill, by Euclidean distances.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Finite features, at least 3 distinct rows. Rows that occur twice are counted once.
    method : {"two-nn", "mle"}, default="two-nn"
        "two-nn": from the ratio of the second to the first distance, the largest tenth left out.
        "mle": from the distances to `n_neighbors` rows, inverse estimates averaged.
    n_neighbors : int, default=20
        Of "mle", at least 2.

    Returns
    -------
    dimension : float
        Positive. Estimates above about 20 are too low unless there are very many rows.

    References
    ----------
    Facco et al., "Estimating the Intrinsic Dimension of Datasets by a Minimal Neighborhood
    Information", Scientific Reports 2017; Levina and Bickel, NeurIPS 2004, averaged as MacKay and
    Ghahramani's comment on it (2005).
    """
    if method not in ("two-nn", "mle"):
        raise ValueError(f'method must be "two-nn" or "mle", got {method!r}.')
    rows = as_rows(X, least=3).unique(dim=0)
    if len(rows) < 3:
        raise ValueError(
            f"X holds {len(rows)} distinct rows; the dimension needs at least 3. Pass more rows."
        )
    if method == "two-nn":
        return _two_nn(_distances(rows, 2))
    check_positive_int(n_neighbors, "n_neighbors")
    if not 2 <= n_neighbors < len(rows):
        raise ValueError(
            f"n_neighbors={n_neighbors} must lie between 2 and {len(rows) - 1}, the other distinct "
            "rows."
        )
    return _mle(_distances(rows, n_neighbors))


def _distances(rows: Tensor, n_neighbors: int) -> FloatArray:
    """Distances to the nearest other rows; rows whose first is zero by rounding are left out."""
    found = other_neighbors(rows, n_neighbors, "euclidean").distances
    distances: FloatArray = found.double().cpu().numpy()
    apart = distances[distances[:, 0] > 0]
    if len(apart) < 3:
        raise ValueError("Distances between rows vanish in float32. Scale the features up.")
    return apart


def _two_nn(distances: FloatArray) -> float:
    ratios = np.sort(distances[:, 1] / distances[:, 0])
    n = len(ratios)
    kept = max(2, int((1 - _DISCARDED) * n))
    x = np.log(ratios[:kept])
    y = -np.log1p(-np.arange(1, kept + 1) / n)
    if not x.any():
        raise ValueError(
            "Every row is as far from its second neighbor as from its first, as on a lattice: "
            'these ratios hold no dimension. Use method="mle".'
        )
    return float((x @ y) / (x @ x))  # a line through the origin


def _mle(distances: FloatArray) -> float:
    inverse = np.log(distances[:, -1:] / distances[:, :-1]).mean(axis=1)
    if not inverse.any():
        raise ValueError("All neighbors are equally far: the distances hold no dimension.")
    return float(1.0 / inverse.mean())
