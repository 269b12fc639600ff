"""Estimation of wrong targets: the target density explains them better than the prediction."""

from typing import Any, NamedTuple

import numpy as np

from nearwise.estimators.model.mixture import Mixture

_N_ATOMS = 256  # quantiles of all targets: centers of the density estimate
_RATES = np.arange(901) / 1000
_LESS = 1.92  # drop of the log-likelihood at the ends of a 95 % interval


class WrongTargets(NamedTuple):
    """Estimate of wrong targets, assuming that they are drawn from all targets.

    Attributes
    ----------
    rate : float
        Maximum-likelihood share of wrong targets, or the given share.
    interval : (float, float)
        95 % likelihood interval (1.92 nats), with the predictions taken as fixed.
    posterior : float64 ndarray of shape (n,)
        Probability that each target is wrong.
    """

    rate: float
    interval: tuple[float, float]
    posterior: np.ndarray


def check_rate(label_noise: Any) -> float | None:
    """Check the parameter `label_noise`: a share, or None if it is to be estimated."""
    if isinstance(label_noise, str) and label_noise == "auto":
        return None
    is_number = isinstance(label_noise, int | float | np.number) and not isinstance(
        label_noise, bool
    )
    if not is_number or not 0 <= label_noise < 1:
        raise ValueError(
            f'label_noise={label_noise!r} is not usable. Give None, "auto" or the share of wrong '
            "targets in [0, 1)."
        )
    return float(label_noise)


def find_wrong(
    predicted: Mixture,
    targets: np.ndarray,
    weight: np.ndarray,
    rate: float | None = None,
    everyone: np.ndarray | None = None,
) -> WrongTargets:
    """Find wrong targets by leave-one-out predictions and the density of all targets.

    Parameters
    ----------
    predicted : Mixture of n rows
    targets, weight : ndarray of shape (n,)
    rate : float, optional
        Share of wrong targets. Default: the maximum-likelihood estimate.
    everyone : ndarray, optional
        Targets for the density. Default: `targets`.
    """
    own = predicted.log_density(targets)
    of_all = _log_density_of_all(targets if everyone is None else everyone, targets)
    if rate is None:
        rate, interval = _likely_rates(own, of_all, weight)
    else:
        interval = rate, rate
    if not rate:
        return WrongTargets(rate, interval, np.zeros(len(targets)))
    odds = np.log(rate) + of_all - np.log1p(-rate) - own
    return WrongTargets(rate, interval, np.exp(-np.logaddexp(0, -odds)))


def _likely_rates(
    own: np.ndarray, of_all: np.ndarray, weight: np.ndarray
) -> tuple[float, tuple[float, float]]:
    """Maximum-likelihood rate and its interval, from log densities of targets (n,)."""
    with np.errstate(divide="ignore"):
        right, wrong = np.log1p(-_RATES), np.log(_RATES)
    likelihood = np.array(
        [weight @ np.logaddexp(r + own, w + of_all) for r, w in zip(right, wrong, strict=True)]
    )
    likelihood *= len(own) / weight.sum()
    near = _RATES[likelihood >= likelihood.max() - _LESS]
    return float(_RATES[likelihood.argmax()]), (float(near[0]), float(near[-1]))


def _log_density_of_all(targets: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Logarithm of a kernel density of all targets, (n_at,)."""
    levels = (np.arange(_N_ATOMS) + 0.5) / _N_ATOMS
    atoms = np.quantile(targets, levels)[None]
    # Silverman's rule, for a logistic kernel of the same variance
    width = 0.9 * max(float(targets.std()), 1e-30) * len(targets) ** -0.2 * np.sqrt(3) / np.pi
    every = Mixture(atoms, np.full_like(atoms, 1 / _N_ATOMS), np.array([width]), -np.inf, np.inf)
    return every.log_density(at[None])[0]
