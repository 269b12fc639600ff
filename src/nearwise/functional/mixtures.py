"""Compiled loops over mixtures of logistic distributions with one scale per mixture.

They release the interpreter lock and start no threads. Arrays are float64: `atoms` and `weights`
(n, N), `bandwidth` (n,), `points` (n, m).
"""

import numpy as np

from nearwise.functional.kernels import compiled

_STEPS = 80  # most steps of a search for a quantile
_CLOSE = 1e-12  # tolerance of levels


@compiled
def cdf_rows(points, atoms, weights, bandwidth, out):  # type: ignore[no-untyped-def]
    """Write the cumulative probability at each of `points` into `out` (n, m)."""
    for i in range(points.shape[0]):
        for j in range(points.shape[1]):
            total = 0.0
            for k in range(atoms.shape[1]):
                total += weights[i, k] / (
                    1.0 + np.exp(-(points[i, j] - atoms[i, k]) / bandwidth[i])
                )
            out[i, j] = total


@compiled
def log_density_rows(points, atoms, weights, bandwidth, out):  # type: ignore[no-untyped-def]
    """Write the logarithm of the density at each of `points` into `out` (n, m)."""
    for i in range(points.shape[0]):
        for j in range(points.shape[1]):
            nearest = np.inf
            for k in range(atoms.shape[1]):
                if weights[i, k] > 0:
                    nearest = min(nearest, abs(points[i, j] - atoms[i, k]) / bandwidth[i])
            total = 0.0
            for k in range(atoms.shape[1]):
                away = abs(points[i, j] - atoms[i, k]) / bandwidth[i]
                total += weights[i, k] * np.exp(nearest - away) / (1.0 + np.exp(-away)) ** 2
            out[i, j] = np.log(total) - nearest - np.log(bandwidth[i])


@compiled
def quantile_rows(levels, atoms, weights, bandwidth, out):  # type: ignore[no-untyped-def]
    """Write the quantiles at `levels` (n, m), in (0, 1), into `out` (n, m).

    Newton's method within an interval, with bisection if a step leaves the interval.
    """
    for i in range(levels.shape[0]):
        scale, least, most = bandwidth[i], np.inf, -np.inf
        for k in range(atoms.shape[1]):
            if weights[i, k] > 0:
                least, most = min(least, atoms[i, k]), max(most, atoms[i, k])
        for j in range(levels.shape[1]):
            level = levels[i, j]
            tail = scale * np.log(level / (1.0 - level))
            low, high = least + tail, most + tail  # bounds of the quantiles of the components
            point = 0.5 * (low + high)
            for _ in range(_STEPS):
                below, slope = -level, 0.0
                for k in range(atoms.shape[1]):
                    part = 1.0 / (1.0 + np.exp(-(point - atoms[i, k]) / scale))
                    below += weights[i, k] * part
                    slope += weights[i, k] * part * (1.0 - part)
                if abs(below) < _CLOSE:
                    break
                if below > 0:
                    high = point
                else:
                    low = point
                step = point - below * scale / slope if slope > 0 else low
                point = step if low < step < high else 0.5 * (low + high)
            out[i, j] = point


@compiled
def away_rows(points, atoms, weights, bandwidth, out):  # type: ignore[no-untyped-def]
    """Write the expected distance between `points` (n,) and a random draw into `out` (n,)."""
    for i in range(points.shape[0]):
        total = 0.0
        for k in range(atoms.shape[1]):
            away = abs(points[i] - atoms[i, k]) / bandwidth[i]
            total += weights[i, k] * (away + 2.0 * np.log1p(np.exp(-away)))
        out[i] = total * bandwidth[i]


@compiled
def apart_rows(atoms, weights, bandwidth, out):  # type: ignore[no-untyped-def]
    """Write the expected distance between two random draws into `out` (n,)."""
    for i in range(atoms.shape[0]):
        total = 0.0
        for k in range(atoms.shape[1]):
            if weights[i, k] == 0:
                continue
            total += weights[i, k] ** 2 * 2.0  # d coth(d / 2) at d = 0
            for other in range(k):
                apart = abs(atoms[i, k] - atoms[i, other]) / bandwidth[i]
                if apart < 1e-4:
                    pair = 2.0
                else:
                    gone = np.exp(-apart)
                    pair = apart * (1.0 + gone) / (1.0 - gone)
                total += 2.0 * weights[i, k] * weights[i, other] * pair
        out[i] = total * bandwidth[i]


@compiled
def below_rows(bound, atoms, weights, bandwidth, out):  # type: ignore[no-untyped-def]
    """Write the integral of the squared distribution function up to `bound` (n,) into `out`."""
    for i in range(atoms.shape[0]):
        total = 0.0
        for k in range(atoms.shape[1]):
            up = (bound[i] - atoms[i, k]) / bandwidth[i]
            soft = max(up, 0.0) + np.log1p(np.exp(-abs(up)))
            total += weights[i, k] ** 2 * (soft - 1.0 / (1.0 + np.exp(-up)))
            for other in range(k):
                near = (bound[i] - atoms[i, other]) / bandwidth[i]
                apart = abs(up - near)
                lower, upper = min(up, near), max(up, near)
                if apart < 1e-4:
                    middle = 0.5 * (lower + upper)
                    pair = max(middle, 0.0) + np.log1p(np.exp(-abs(middle)))
                    pair -= 1.0 / (1.0 + np.exp(-middle))
                else:
                    first = max(lower, 0.0) + np.log1p(np.exp(-abs(lower)))
                    second = max(upper, 0.0) + np.log1p(np.exp(-abs(upper)))
                    gone = np.exp(-apart)
                    pair = (first - gone * second) / (1.0 - gone)
                total += 2.0 * weights[i, k] * weights[i, other] * pair
        out[i] = total * bandwidth[i]
