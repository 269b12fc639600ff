"""Gaussian classes for ready embeddings, with leave-one-out scores in closed form."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from nearwise.estimators.inputs.table import Encoded, TableEncoder
from nearwise.estimators.model.array_models import Arrays, unit_components
from nearwise.estimators.model.row_models import FeatureSpace

_COMPONENTS = 256  # most principal components
_LENT = 16.0  # weight of the shared covariance in each class, in rows per component
_RIDGE = 0.1  # ridge, as a share of the mean variance of a component
_MOST = 2**23  # most covariance entries of all classes; above, classes share one covariance
_BLOCK = 4_096  # rows per block
_LONE = 1e-9  # share of a class, or variance, that counts as zero
_NEVER = -1e30  # score of a class without another row

Floats = NDArray[np.float64]


def fit_gaussian(
    encoder: TableEncoder, rows: Encoded, labels: np.ndarray, weight: np.ndarray | None
) -> tuple[Arrays, Floats]:
    """Fit Gaussian classes to principal components, whitened by half and at unit length.

    Regularized discriminant analysis: the covariance of a class is the mean of its own covariance
    and of the shared one, which counts like 16 rows per component. With very many classes only
    the shared covariance is used. Scores are not calibrated.

    Parameters
    ----------
    labels : int array of shape (n,)
        Class positions.
    weight : array of shape (n,) or None
        Rows with weight 0 are predicted but not fitted to.

    Returns
    -------
    arrays : dict
        Arrays of a `Gaussian`.
    left_out : array of shape (n, C)
        Leave-one-out scores of the rows for ``arrays["classes"]``. They do not depend on the row's
        own label, as mean and scatter are computed exactly without the row. The shared covariance
        is still divided by the weight of all rows.

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
    """Sufficient statistics of the classes.

    Attributes
    ----------
    names : int array of shape (C,)
        Class positions.
    keys, weight : arrays of shape (n, p) and (n,)
    codes : int array of shape (n,)
        Class of each row; -1 for a row with weight 0.
    counts, means : arrays of shape (C,) and (C, p)
    shared : array of shape (p, p)
        Shared covariance of all classes, plus a ridge.
    lent : float
        Weight of the shared covariance in each class, in rows; 0 if only it is used.
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
        """Weight of a class's covariance in rows, including the shared covariance."""
        return float(self.counts[at] + self.lent) if self.lent else 1.0

    def factor(self, at: int) -> tuple[Floats, float]:
        """Whitening matrix (p, p) of a class's scatter, and the scatter's log-determinant."""
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
        """Leave-one-out scores of a class for a block of rows.

        Leave out a row of weight w, at offset d from the mean of its class of N rows. The mean
        moves by w d / (N - w); the scatter falls by w N / (N - w) d d'.
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
    """Weighted scatter matrix (p, p) of some rows around `mean`."""
    apart = keys[rows] - mean
    return (apart * weight[rows, None]).T @ apart
