"""Map of the memory: keys in two dimensions, with projection of new rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from sklearn.decomposition import PCA

from nearwise.estimators.model.fitted_model import FittedModel

MapMethod = Literal["pca", "tsne"]
METHODS: tuple[MapMethod, ...] = get_args(MapMethod)
MOST_ROWS = 100_000  # most rows of a map, drawn at random
_PERPLEXITY = 30
_WIDEST = 50  # most principal components as input of t-SNE
_EARLY, _LATE, _REPORT_EVERY = 250, 500, 10  # iterations of t-SNE, openTSNE's defaults


@dataclass(frozen=True, eq=False)
class MemoryMap:
    """Remembered rows in two dimensions.

    Attributes
    ----------
    positions : int64 ndarray of shape (n,)
        Positions in the memory, ascending; at most `MOST_ROWS`.
    points : float64 ndarray of shape (n, 2)
    explained_variance : ndarray of shape (2,), or None
        Share of the keys' variance along each axis of a PCA.
    """

    positions: np.ndarray
    points: np.ndarray
    explained_variance: np.ndarray | None
    _project: Any

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Points (n, 2) of new keys (n, width) of the feature space."""
        found: np.ndarray = self._project(keys)
        return found


def memory_map(
    model: FittedModel,
    method: MapMethod = "pca",
    report: Callable[[float], None] | None = None,
) -> MemoryMap:
    """Make a map of the memory from the keys of its feature space.

    Parameters
    ----------
    model : FittedClassifier or FittedRegressor
    method : {"pca", "tsne"}, default="pca"
        Projection. "tsne" keeps neighbors together and takes about a minute for 20,000 rows; it
        needs the extra "map".
    report : callable, optional
        Called every few iterations of t-SNE with the completed share; an exception stops the
        computation.

    References
    ----------
    Policar, Strazar and Zupan, "openTSNE: A Modular Python Library for t-SNE Dimensionality
    Reduction and Embedding", Journal of Statistical Software 2024.
    """
    if method not in METHODS:
        raise ValueError(f'method={method!r} is not known. Use "pca" or "tsne".')
    keys = model.bank.keys["features"].float().numpy()
    positions = drawn_positions(model)
    keys = keys[positions]
    if len(keys) < 2 or not np.ptp(keys, axis=0).any():
        return MemoryMap(positions, np.zeros((len(keys), 2)), np.zeros(2), _at_zero)
    if keys.shape[1] == 1:
        along = partial(_on_a_line, float(keys.mean()))
        return MemoryMap(positions, along(keys), np.array([1.0, 0.0]), along)
    if method == "pca":
        pca = PCA(2, svd_solver="covariance_eigh")
        points = pca.fit_transform(keys)
        return MemoryMap(positions, points, pca.explained_variance_ratio_, pca.transform)
    return MemoryMap(positions, *_tsne(keys, report))


def drawn_positions(model: FittedModel) -> np.ndarray:
    """Positions of the rows of a map: all, or `MOST_ROWS` random ones; int64 (n,), ascending."""
    positions = np.arange(len(model.bank))
    if len(positions) <= MOST_ROWS:
        return positions
    return np.sort(np.random.default_rng(0).choice(positions, MOST_ROWS, replace=False))


def rounded(points: np.ndarray) -> np.ndarray:
    """Round points (n, 2) to about a ten-thousandth of their extent."""
    extent = float(np.ptp(points, axis=0).max(initial=0.0))
    exact = points.astype(np.float64)  # of float32, more digits would be written
    found: np.ndarray = exact.round(5 - int(np.ceil(np.log10(extent))) if extent > 0 else 0)
    return found


def _tsne(keys: np.ndarray, report: Callable[[float], None] | None) -> tuple[np.ndarray, None, Any]:
    try:
        from openTSNE import TSNE  # type: ignore[import-untyped]
    except ImportError:
        raise ImportError('A t-SNE map needs the extra "map": pip install nearwise[map]') from None
    reduce = PCA(min(_WIDEST, *keys.shape), svd_solver="covariance_eigh").fit(keys)
    # The perplexity is at most a third of the number of other rows.
    perplexity = min(_PERPLEXITY, max(1, (len(keys) - 1) // 3))
    n_done, is_made = 0, False

    def iterated(*_: Any) -> None:
        nonlocal n_done
        if report is not None and not is_made:  # not for rows projected later
            n_done += _REPORT_EVERY
            report(min(1.0, n_done / (_EARLY + _LATE)))

    found = TSNE(
        perplexity=perplexity,
        random_state=0,
        early_exaggeration_iter=_EARLY,
        n_iter=_LATE,
        callbacks=iterated,
        callbacks_every_iters=_REPORT_EVERY,
    ).fit(reduce.transform(keys))
    is_made = True

    def project(new: np.ndarray) -> np.ndarray:
        near = min(5, perplexity)
        return np.asarray(found.transform(reduce.transform(new), perplexity=near))

    return np.asarray(found), None, project


def _on_a_line(middle: float, keys: np.ndarray) -> np.ndarray:
    """Points of keys (n, 1), which need one axis."""
    return np.hstack([keys - middle, np.zeros_like(keys)])


def _at_zero(keys: np.ndarray) -> np.ndarray:
    return np.zeros((len(keys), 2))
