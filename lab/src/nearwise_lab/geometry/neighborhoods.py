"""What nearest neighbors reveal: purity, hubness, overlap, trustworthiness, dimension."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearwise.functional.distances import Metric
from nearwise.metrics.checks import FloatArray, check_positive_int
from nearwise_lab.geometry.rows import Rows, as_labels, as_rows, other_neighbors, same_rows

_DISCARDED = 0.1  # largest ratios of the intrinsic dimension, as in the paper


class Hubness(NamedTuple):
    """How unevenly rows occur among the neighbors of others.

    Attributes
    ----------
    skewness : float
        Of the number of lists that a row occurs in; 0 where all occur alike, above 1 a row of
        hubs.
    antihubs : float in [0, 1]
        Share of rows that occur in no list.
    """

    skewness: float
    antihubs: float


def purity_curve(
    X: Rows, y: npt.ArrayLike | Tensor, n_neighbors: Sequence[int], metric: Metric = "cosine"
) -> FloatArray:
    """Share of a row's nearest other rows that carry its label, averaged over rows.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Finite features.
    y : integer array-like of shape (n_rows,)
        Class positions.
    n_neighbors : sequence of int
        How many neighbors, in any order, each at least 1 and at most ``n_rows - 1``.
    metric : {"cosine", "euclidean", ...}, default="cosine"
        As in `nearwise.functional.topk_neighbors`.

    Returns
    -------
    purity : float64 ndarray of shape (len(n_neighbors),)
        In the order of `n_neighbors`. With uninformative labels, the chance that two rows share a
        label.
    """
    rows = as_rows(X)
    labels = torch.from_numpy(as_labels(y, len(rows)))
    for k in n_neighbors:
        check_positive_int(k, "n_neighbors")
    found = other_neighbors(rows, max(n_neighbors), metric).indices.cpu()
    agree = (labels[found] == labels[:, None]).double()
    shares = agree.cumsum(dim=1).mean(dim=0).numpy()
    return np.array([shares[k - 1] / k for k in n_neighbors])


def hubness(X: Rows, n_neighbors: int = 10, metric: Metric = "cosine") -> Hubness:
    """Measure how far some rows crowd into the neighbor lists of all others.

    Parameters
    ----------
    X, metric
        As in `purity_curve`.
    n_neighbors : int, default=10
        Length of the lists.

    Returns
    -------
    hubness : Hubness

    References
    ----------
    Radovanovic et al., "Hubs in Space: Popular Nearest Neighbors in High-Dimensional Data",
    JMLR 2010.
    """
    rows = as_rows(X)
    found = other_neighbors(rows, n_neighbors, metric).indices
    times = torch.bincount(found.ravel(), minlength=len(rows)).double().cpu().numpy()
    off = times - times.mean()
    spread = float(np.sqrt(np.mean(off**2)))
    skewness = 0.0 if spread == 0 else float(np.mean(off**3)) / spread**3
    return Hubness(skewness, float(np.mean(times == 0)))


def neighbor_overlap(X: Rows, Y: Rows, n_neighbors: int = 20, metric: Metric = "cosine") -> float:
    """Share of neighbors that two feature sets of the same rows have in common.

    Parameters
    ----------
    X, Y : array-like or Tensor of shapes (n_rows, n_features) and (n_rows, other_features)
        Features of the same rows in the same order.
    n_neighbors, metric
        As in `purity_curve`.

    Returns
    -------
    overlap : float in [0, 1]
        1 where every row has the same neighbors in both; about ``n_neighbors / (n_rows - 1)``
        by chance.
    """
    first, second = same_rows(X, Y)
    a = other_neighbors(first, n_neighbors, metric).indices.cpu()
    b = other_neighbors(second, n_neighbors, metric).indices.cpu()
    merged = torch.cat([a, b], dim=1).sort(dim=1).values
    common = (merged[:, 1:] == merged[:, :-1]).sum(dim=1)  # a list names a row once
    return float(common.double().mean()) / n_neighbors


def trustworthiness(X: Rows, embedded: Rows, n_neighbors: int = 12) -> float:
    """Return how far the neighbors on a map were neighbors in the space it shows.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        The space; distances are Euclidean.
    embedded : array-like or Tensor of shape (n_rows, n_dimensions)
        The map.
    n_neighbors : int, default=12
        Below half the rows.

    Returns
    -------
    trustworthiness : float in [0, 1]
        1 where no row has a neighbor on the map that it has not in the space. scikit-learn
        computes it from all pairs: keep to a few thousand rows.

    References
    ----------
    Venna and Kaski, "Neighborhood Preservation in Nonlinear Projection Methods", ICANN 2001.
    """
    from sklearn import manifold

    space, drawn = same_rows(X, embedded)
    check_positive_int(n_neighbors, "n_neighbors")
    if 2 * n_neighbors >= len(space):
        raise ValueError(
            f"n_neighbors={n_neighbors} must be below half the {len(space)} rows. Lower it."
        )
    value = manifold.trustworthiness(
        space.cpu().numpy(), drawn.cpu().numpy(), n_neighbors=n_neighbors
    )
    return float(value)


def silhouette(X: Rows, y: npt.ArrayLike | Tensor, metric: Metric = "cosine") -> float:
    """Compare distances to the own class with those to the nearest other class, over all pairs.

    Parameters
    ----------
    X, y
        As in `purity_curve`; at least two classes occur.
    metric : {"cosine", "euclidean"}, default="cosine"
        Distance.

    Returns
    -------
    silhouette : float in [-1, 1]
        Mean of ``(b - a) / max(a, b)``; 0 for a class of one row.

    References
    ----------
    Rousseeuw, "Silhouettes: a Graphical Aid to the Interpretation and Validation of Cluster
    Analysis", 1987.
    """
    from sklearn.metrics import silhouette_score

    rows = as_rows(X, least=3)
    labels = as_labels(y, len(rows))
    n_classes = len(np.unique(labels))
    if not 2 <= n_classes < len(rows):
        raise ValueError(
            f"y holds {n_classes} classes in {len(rows)} rows. A silhouette needs at least two "
            "classes, and fewer than there are rows."
        )
    return float(silhouette_score(rows.cpu().numpy(), labels, metric=metric))


def intrinsic_dimension(X: Rows) -> float:
    """Estimate how many dimensions the rows fill, by the ratio of two Euclidean distances.

    The ratio of the second to the first distance of each row, the largest tenth left out.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Finite features, at least 3 distinct rows. Rows that occur twice are counted once.

    Returns
    -------
    dimension : float
        Positive. Estimates above about 20 are too low unless there are very many rows.

    References
    ----------
    Facco et al., "Estimating the Intrinsic Dimension of Datasets by a Minimal Neighborhood
    Information", Scientific Reports 2017.
    """
    rows = as_rows(X, least=3).unique(dim=0)
    if len(rows) < 3:
        raise ValueError(
            f"X holds {len(rows)} distinct rows; the dimension needs at least 3. Pass more rows."
        )
    distances = other_neighbors(rows, 2, "euclidean").distances.double().cpu().numpy()
    distances = distances[distances[:, 0] > 0]  # 0 by rounding
    if len(distances) < 3:
        raise ValueError("Distances between rows vanish in float32. Scale the features up.")
    ratios = np.sort(distances[:, 1] / distances[:, 0])
    n = len(ratios)
    kept = max(2, int((1 - _DISCARDED) * n))
    x = np.log(ratios[:kept])
    y = -np.log1p(-np.arange(1, kept + 1) / n)
    if not x.any():
        raise ValueError(
            "Every row is as far from its second neighbor as from its first, as on a lattice: "
            "these ratios hold no dimension."
        )
    return float((x @ y) / (x @ x))  # a line through the origin
