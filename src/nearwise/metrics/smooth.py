"""Smooth calibration error: a kernel in place of bins, and no bin count to choose."""

import numpy as np
import numpy.typing as npt
from scipy.fft import dct, idct

from nearwise.metrics.checks import FloatArray, Predictions, check_predictions

_GRID_CELLS = 2**15
_SMALLEST_WIDTH = 4.0 / _GRID_CELLS
"""Narrowest kernel the grid resolves: four cells, about 1.2e-4."""
_BISECTIONS = 24


def smooth_ece(y: npt.ArrayLike, proba: npt.ArrayLike) -> float:
    """Compute the smooth calibration error of the top label (smECE).

    The residuals confidence - correct are smoothed over [0, 1] with a Gaussian that is
    reflected at both ends; the error is the integral of the absolute result. The width is
    the one at which the error equals the width, so there is nothing to choose.

    Parameters
    ----------
    y : integer array-like of shape (n_rows,)
        True class positions.
    proba : float array-like of shape (n_rows, n_classes)
        Probabilities, each row sums to 1 within 1e-4.

    Returns
    -------
    error : float in [0, 1]
        Errors below the narrowest width, 1.2e-4, are those at that width.

    References
    ----------
    Blasiok and Nakkiran, "Smooth ECE: Principled Reliability Diagrams via Kernel
    Smoothing", ICLR 2024.
    """
    return smooth_ece_of(check_predictions(y, proba))


def smooth_ece_of(predictions: Predictions) -> float:
    """`smooth_ece` of checked predictions."""
    residual = predictions.confidence - predictions.correct
    spectrum = _residual_spectrum(predictions.confidence, residual / predictions.n_rows)
    return _fixed_point(spectrum)


def _fixed_point(spectrum: FloatArray) -> float:
    # The error falls as the width grows, so error - width has one root, in [0, 1].
    error = _error_at_width(spectrum, _SMALLEST_WIDTH)
    if error <= _SMALLEST_WIDTH:
        return error
    low, high = _SMALLEST_WIDTH, 1.0
    for _ in range(_BISECTIONS):
        width = 0.5 * (low + high)
        error = _error_at_width(spectrum, width)
        low, high = (width, high) if error > width else (low, width)
    return error


def _residual_spectrum(position: FloatArray, mass: FloatArray) -> FloatArray:
    """Cosine transform of the masses, each shared linearly between two grid points."""
    scaled = position * _GRID_CELLS
    left = np.minimum(scaled.astype(np.int64), _GRID_CELLS - 1)
    to_right = (scaled - left) * mass
    points = _GRID_CELLS + 1
    grid = np.zeros(points)
    grid += np.bincount(left, weights=mass - to_right, minlength=points)
    grid += np.bincount(left + 1, weights=to_right, minlength=points)
    # A mass at an end coincides with its own reflection, so it counts twice.
    grid[0] *= 2.0
    grid[-1] *= 2.0
    spectrum: FloatArray = dct(grid, type=1)
    return spectrum


def _error_at_width(spectrum: FloatArray, width: float) -> float:
    """Integral over [0, 1] of the absolute smoothed residual.

    The reflected Gaussian multiplies the k-th cosine by exp(-(pi k width)^2 / 2).
    """
    # Beyond 9 / (pi width) the factor is under 3e-18: those cosines need no exponential.
    kept = min(spectrum.shape[0], int(9.0 / (np.pi * width)) + 1)
    smoothed = np.zeros_like(spectrum)
    frequency = np.pi * width * np.arange(kept)
    smoothed[:kept] = spectrum[:kept] * np.exp(-0.5 * frequency**2)
    density = np.abs(idct(smoothed, type=1))
    return float(density.sum() - 0.5 * (density[0] + density[-1]))
