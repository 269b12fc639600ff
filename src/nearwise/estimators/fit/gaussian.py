"""Gaussian classes for ready embeddings: a closed form, in which each row is also left out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from nearwise.estimators.inputs.table import Encoded, TableEncoder
from nearwise.estimators.model.array_models import Arrays, unit_components
from nearwise.estimators.model.row_models import FeatureSpace

_COMPONENTS = 256  # principal components at most
_LENT = 16.0  # rows per component that the shared covariance counts for beside a class's own
_RIDGE = 0.1  # share of the mean variance of a component
_MOST = 2**23  # numbers in the covariances of all classes beyond which they share one
_BLOCK = 4_096  # rows
_LONE = 1e-9  # share of a class, or variance, that is taken for nothing
_NEVER = -1e30  # score of a class without another row

Floats = NDArray[np.float64]


def fit_gaussian(
    encoder: TableEncoder, rows: Encoded, labels: np.ndarray, weight: np.ndarray | None
) -> tuple[Arrays, Floats]:
    """Fit Gaussian classes to principal components, whitened by half and at unit length.

    Regularized discriminant analysis: the covariance of a class is that of its rows and of 16
    imagined ones per component, which have the covariance that all classes share. Very many
    classes have only the latter. Scores are not calibrated.

    Parameters
    ----------
    labels : int array of shape (n,)
        Class positions.
    weight : array of shape (n,) or None
        Rows that weigh nothing are predicted and not learned.

    Returns
    -------
    arrays : dict
        Of a `Gaussian`.
    left_out : array of shape (n, C)
        Scores of the rows by a fit without each, for ``arrays["classes"]``. They do not depend on
        the row's own label: mean and scatter are reduced by it exactly. What the classes share
        goes on being divided by the number of all rows.

    References
    ----------
    Friedman, "Regularized Discriminant Analysis", JASA 84 (1989).
    """
    space = FeatureSpace("whitened").fit(encoder, rows)
    unit = space.width_scale(encoder, len(space.state["mean"]))
    center = space.state["mean"] / unit
    rotation = space.state["rotation"][:, -_COMPONENTS:] * unit[:, None]
    keys = unit_components(encoder.dense(rows), center, rotation)
    weight = np.ones(len(labels)) if weight is None else weight.astype(float)
    classes = _Classes.of(keys, labels, weight)
    factors, offsets, biases = [], [], []
    left_out = np.empty((len(keys), len(classes.counts)))
    for at in range(len(classes.counts)):
        if not at or classes.lent:
            factor, log_det = classes.factor(at)
            factors.append(factor * np.sqrt(classes.size(at) / 2))
        offsets.append(classes.means[at] @ factors[-1])
        biases.append(classes.score(at, log_det))
        for start in range(0, len(keys), _BLOCK):
            block = slice(start, start + _BLOCK)
            left_out[block, at] = classes.left_out(at, block, factor, log_det)
    arrays = {
        "classes": classes.names,
        "center": center,
        "rotation": rotation,
        "factor": np.stack(factors),
        "offset": np.stack(offsets),
        "bias": np.array(biases),
    }
    return arrays, left_out


@dataclass
class _Classes:
    """Sums of the classes' rows.

    Attributes
    ----------
    names : int array of shape (C,)
        Class positions.
    keys, weight : arrays of shape (n, p) and (n,)
    codes : int array of shape (n,)
        Which class each row is of; -1 for none, of a row that weighs nothing.
    counts, means : arrays of shape (C,) and (C, p)
    shared : array of shape (p, p)
        Covariance of all classes, and a ridge.
    lent : float
        Rows that it counts for beside those of a class; 0 where it is all there is.
    """

    names: NDArray[np.int64]
    keys: Floats
    weight: Floats
    codes: NDArray[np.int64]
    counts: Floats
    means: Floats
    shared: Floats
    lent: float

    @classmethod
    def of(cls, keys: Floats, labels: np.ndarray, weight: Floats) -> "_Classes":
        names = np.unique(labels[weight > 0])
        own = labels[:, None] == names
        codes = np.where(weight > 0, own.argmax(1), -1)
        counts = weight @ own
        means = (own * weight[:, None]).T @ keys / counts[:, None]
        width = keys.shape[1]
        ridge = _RIDGE * max(keys.var(0).mean(), _LONE)  # columns may all be constant
        shared = ridge * np.eye(width)
        for at in range(len(names)):
            shared += _scatter(keys, weight, codes == at, means[at]) / weight.sum()
        lent = _LENT * width if len(names) * width**2 <= _MOST else 0.0
        return cls(names, keys, weight, codes, counts, means, shared, lent)

    def size(self, at: int) -> float:
        """Rows that the covariance of a class is of, the imagined ones included."""
        return float(self.counts[at] + self.lent) if self.lent else 1.0

    def factor(self, at: int) -> tuple[Floats, float]:
        """Matrix (p, p) that whitens the scatter of a class, and the scatter's log-determinant."""
        scatter = self.shared
        if self.lent:
            own = _scatter(self.keys, self.weight, self.codes == at, self.means[at])
            scatter = own + self.lent * self.shared
        lower = np.linalg.cholesky(scatter)
        factor = solve_triangular(lower, np.eye(len(lower)), lower=True, check_finite=False).T
        return factor, 2 * float(np.log(np.diag(lower)).sum())

    def score(self, at: int, log_det: float) -> float:
        """Score of a class at its mean."""
        size, total = self.size(at), self.weight.sum()
        width = len(self.shared)
        return float(np.log(self.counts[at] / total) - (log_det - width * np.log(size)) / 2)

    def left_out(self, at: int, block: slice, factor: Floats, log_det: float) -> Floats:
        """Scores of a class for a block of rows, each without it.

        A row of weight w at a distance of d from the mean of its class, with N rows, moves that
        mean by w d / (N - w), and the scatter by w N / (N - w) d d'.
        """
        keys, weight, codes = self.keys[block], self.weight[block], self.codes[block]
        known = codes >= 0
        rest = np.where(known, self.counts[codes] - weight, 1.0)
        lone = rest <= _LONE * self.counts[codes]
        rest = np.where(lone, 1.0, rest)
        grown = np.where(known & ~lone, self.counts[codes] / rest, 1.0)
        own = codes == at
        turned, centers = keys @ factor, self.means @ factor
        from_own = (turned - centers[codes]) * known[:, None]
        from_class = (turned - centers[at]) * np.where(own, grown, 1.0)[:, None]
        part = (self.lent or 1.0) / self.weight.sum() + own * bool(self.lent)
        part = part * weight * grown
        less = 1.0 - part * np.square(from_own).sum(1)
        squared = np.square(from_class).sum(1) + part * (from_class * from_own).sum(1) ** 2 / less
        count = np.where(own, rest, self.counts[at])
        size = count + self.lent if self.lent else np.ones(len(count))
        log_det = log_det + np.log(less) - len(self.shared) * np.log(size)
        scores = np.log(count / (self.weight.sum() - weight)) - (size * squared + log_det) / 2
        never: Floats = np.where(own & lone, _NEVER, scores)
        return never


def _scatter(keys: Floats, weight: Floats, rows: NDArray[np.bool_], mean: Floats) -> Floats:
    """Sum of the squares (p, p) of the distances of some rows to their mean."""
    apart = keys[rows] - mean
    return (apart * weight[rows, None]).T @ apart
