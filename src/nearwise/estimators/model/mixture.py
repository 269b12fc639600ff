"""Mixture: predictive distributions of a regressor, centered at targets of remembered rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.special import logit

from nearwise.functional import mixtures
from nearwise.functional.threads import Threads

_GRID = 201  # quantile levels in the search for a mode
_STEPS = 40  # cost of one part of a mixture, in multiplications


@dataclass(frozen=True, eq=False)
class Mixture:
    """One mixture of logistic distributions per row, censored at the bounds.

    Attributes
    ----------
    atoms, weights : float64 ndarray of shape (n, N)
        Centers, in the unit of the target, and shares that sum to 1 per row.
    bandwidth : float64 ndarray of shape (n,)
        Positive scale of the parts around their centers.
    lower, upper : float
        Least and largest possible target; infinite without a bound.
    """

    atoms: np.ndarray
    weights: np.ndarray
    bandwidth: np.ndarray
    lower: float = -np.inf
    upper: float = np.inf

    def __len__(self) -> int:
        return len(self.atoms)

    def take(self, rows: Any) -> Self:
        """Select the distributions of some rows."""
        atoms, weights, bandwidth = self.atoms[rows], self.weights[rows], self.bandwidth[rows]
        return replace(self, atoms=atoms, weights=weights, bandwidth=bandwidth)

    @classmethod
    def joined(cls, parts: "list[Mixture]") -> "Mixture":
        """Concatenate the distributions of blocks of rows."""
        (first, *others) = parts
        if not others:
            return first
        atoms, weights, bandwidth = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("atoms", "weights", "bandwidth")
        )
        return cls(atoms, weights, bandwidth, first.lower, first.upper)

    def scaled(self, factor: float) -> Self:
        """Widen or narrow each distribution around its mean."""
        center = self._center[:, None]
        atoms = center + factor * (self.atoms - center)
        return replace(self, atoms=atoms, bandwidth=factor * self.bandwidth)

    @property
    def _center(self) -> np.ndarray:
        """Means without bounds, (n,)."""
        found: np.ndarray = (self.weights * self.atoms).sum(1)
        return found

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Probability of at most `y` (n,) or (n, m), in the same shape."""
        points = y if y.ndim == 2 else y[:, None]
        found = self._run(mixtures.cdf_rows, points)
        found[points >= self.upper] = 1.0
        found[points < self.lower] = 0.0
        return found.reshape(y.shape)

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles at levels in (0, 1), (m,) or (n, m); (n, m)."""
        wanted = np.ascontiguousarray(np.broadcast_to(levels, (len(self), levels.shape[-1])))
        return np.clip(self._run(mixtures.quantile_rows, wanted), self.lower, self.upper)

    def mean(self) -> np.ndarray:
        """Mean targets (n,), with probability mass beyond a bound counted at the bound."""
        scale, means = self.bandwidth[:, None], self.atoms
        if np.isfinite(self.lower):
            means = means + scale * np.logaddexp(0, (self.lower - self.atoms) / scale)
        if np.isfinite(self.upper):
            means = means - scale * np.logaddexp(0, (self.atoms - self.upper) / scale)
        found: np.ndarray = (self.weights * means).sum(1)
        return found

    def variance(self) -> np.ndarray:
        """Variance without bounds, (n,)."""
        between = (self.weights * (self.atoms - self._center[:, None]) ** 2).sum(1)
        found: np.ndarray = between + (np.pi * self.bandwidth) ** 2 / 3
        return found

    def mode(self) -> np.ndarray:
        """Most probable targets (n,), on a fine grid of quantiles."""
        points = self.quantiles(np.linspace(0, 1, _GRID + 2)[1:-1])
        best = self.log_density(points).argmax(1)
        found: np.ndarray = points[np.arange(len(self)), best]
        return found

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Logarithm of the density at `y` (n,) or (n, m), in the same shape, without bounds."""
        points = y if y.ndim == 2 else y[:, None]
        return self._run(mixtures.log_density_rows, points).reshape(y.shape)

    def away(self, y: np.ndarray) -> np.ndarray:
        """Mean distance from `y` (n,) to a draw, (n,), without bounds."""
        return self._run(mixtures.away_rows, y)

    def apart(self) -> np.ndarray:
        """Mean distance between two draws, (n,), without bounds."""
        return self._run(mixtures.apart_rows)

    def crps(self, y: np.ndarray) -> np.ndarray:
        """Continuous ranked probability score at `y` (n,), (n,); see `nn.logistic_crps`.

        Probability mass beyond a bound counts at the bound.
        """
        found = self.away(np.clip(y, self.lower, self.upper)) - self.apart() / 2
        if np.isfinite(self.lower):  # mass beyond a bound adds no error
            found -= self._run(mixtures.below_rows, np.full(len(self), self.lower))
        if np.isfinite(self.upper):
            turned = replace(self, atoms=-self.atoms)
            found -= turned._run(mixtures.below_rows, np.full(len(self), -self.upper))
        return found + np.abs(y - np.clip(y, self.lower, self.upper))

    def sample(self, n_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Draw targets, (n, n_samples)."""
        cumulative = self.weights.cumsum(1)
        wanted = rng.random((len(self), n_samples)) * cumulative[:, -1:]
        at = (cumulative[:, None] < wanted[:, :, None]).sum(2).clip(max=self.atoms.shape[1] - 1)
        noise = logit(rng.random(at.shape).clip(1e-12, 1 - 1e-12))
        drawn = np.take_along_axis(self.atoms, at, 1) + self.bandwidth[:, None] * noise
        return np.clip(drawn, self.lower, self.upper)

    def _run(self, kernel: Callable[..., None], *points: np.ndarray) -> np.ndarray:
        """Run a compiled loop over the rows, in threads if there are many."""
        given = tuple(np.ascontiguousarray(one, dtype=np.float64) for one in points)
        arrays = (*given, self.atoms, self.weights, self.bandwidth)
        out = np.empty(given[0].shape if given else len(self))
        per_row = given[0][0].size if given and len(self) else self.atoms.shape[1]
        with Threads(_STEPS * self.atoms.size * per_row) as threads:
            threads.run(lambda part: kernel(*(one[part] for one in arrays), out[part]), len(self))
        return out
