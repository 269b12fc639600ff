"""Key spaces and indexes of probes: plain features, and features whitened by class."""

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.functional.devices import choose_device
from nearwise.memory import IndexName, NeighborIndex, make_index
from nearwise.nn import NeighborSet, RememberedSpace
from nearwise.probes.base import Rows

ProbeMetric = Literal["cosine", "euclidean"]
METRICS = get_args(ProbeMetric)


def make_probe_index(
    keys: Tensor, metric: ProbeMetric, index: IndexName, device: str
) -> NeighborIndex:
    """Make the index of a probe's training features on its device."""
    chosen = choose_device(device)
    made = make_index(index, metric, len(keys), device=None if chosen.type == "cpu" else chosen)
    return made.fit(keys)


OWN_NEIGHBORS = 16

Keys = Literal["auto", "features", "whitened", "both"]


class KeySpace:
    """Training rows in one key space, with the inputs of a pretrained head."""

    def __init__(
        self, index: NeighborIndex, keys: Tensor, codes: Tensor, *, n_classes: int, n_columns: int
    ) -> None:
        self.index, self.keys = index, keys
        self._rows = torch.arange(len(keys))
        own = index.search(keys, min(OWN_NEIGHBORS + 1, len(keys) - 1), self._rows)
        positive = own.distances[own.distances > 0]
        unit = float(positive.median()) if len(positive) else 1.0
        self.remembered = RememberedSpace(
            codes, own.indices, own.distances, unit, n_classes, n_columns
        )

    def see(self, query: Tensor | None, n_neighbors: int) -> tuple[NeighborSet, Tensor]:
        """Return neighbor sets of queries, and positions (n, n_neighbors) of the neighbors.

        Without queries, for the training rows, each without itself.
        """
        if query is None:
            found = self.index.search(self.keys, min(n_neighbors, len(self.keys) - 1), self._rows)
            return self.remembered.describe(found, left_out=self._rows), found.indices
        found = self.index.search(query, min(n_neighbors, len(self.keys)))
        return self.remembered.describe(found), found.indices


class Whitening:
    """Linear map that equalizes the spread within classes over all directions.

    Directions with a large spread within classes get less weight, so that directions that separate
    classes get more. The covariance within classes is shrunk towards a multiple of the identity by
    the formula of Ledoit and Wolf; nothing is trained. Keys are defined up to a common factor,
    which cosine distances ignore.

    References
    ----------
    Ledoit and Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
    Journal of Multivariate Analysis, 2004.
    """

    def __init__(self, rows: Rows) -> None:
        n, width = rows.X.shape
        self.mean = rows.X.mean(axis=0, dtype=np.float64).astype(np.float32)
        within = np.empty_like(rows.X)
        for code in np.unique(rows.codes):
            own = rows.codes == code
            within[own] = rows.X[own] - rows.X[own].mean(axis=0, dtype=np.float64)
        if width <= n:
            powers, axes = np.linalg.eigh((within.T @ within).astype(np.float64))
        else:  # fewer rows than columns: same axes from the smaller product
            powers, of_rows = np.linalg.eigh((within @ within.T).astype(np.float64))
            kept = powers > 1e-6 * powers[-1]  # the others are rounding errors
            powers, of_rows = powers[kept], of_rows[:, kept]
            axes = within.T @ of_rows / np.sqrt(powers)
        variances = np.maximum(powers, 0.0) / n
        squares = np.einsum("ij,ij->i", within, within, dtype=np.float64)
        target = _shrunk_to(variances, squares, width)
        factors = np.sqrt(target / (variances + target)) if target else np.ones(len(powers))
        self.axes, self.factors = axes.astype(np.float32), factors.astype(np.float32)

    @property
    def n_parameters(self) -> int:
        """Number of estimated parameters."""
        return int(self.axes.size + self.factors.size + self.mean.size)

    def __call__(self, X: NDArray[np.float32]) -> Tensor:
        """Return keys (n, width)."""
        centered = X - self.mean
        return torch.from_numpy(
            centered + (centered @ self.axes * (self.factors - 1)) @ self.axes.T
        )


def _shrunk_to(variances: NDArray[np.float64], squares: NDArray[np.float64], width: int) -> float:
    """Return the multiple of the identity that shrinkage adds to the covariance.

    Parameters
    ----------
    variances : array of shape (min(n, width),)
        Variances of the rows along the axes of their covariance.
    squares : array of shape (n,)
        Squared length of each row.
    width : int
        Number of columns of the covariance.

    Returns
    -------
    target : float
        0 if all directions have equal variance, or all rows are equal.
    """
    n, mean = len(squares), variances.sum() / width
    total = np.square(variances).sum()
    apart = total / width - mean**2
    if apart <= 1e-12 * mean**2:
        return 0.0
    noise = (np.square(squares).mean() - total) / (n * width)
    share = np.clip(noise / apart, 1e-6, 1 - 1e-6)
    return float(share * mean / (1 - share))
