"""Mixtures: every number against an integral or a loop."""

import numpy as np
import pytest
import torch

from nearwise.estimators.model.mixture import Mixture
from nearwise.nn.number_head import logistic_crps

GRID = np.linspace(-40, 40, 160_001)


def mixture(n=6, n_parts=9, *, seed=0, **bounds):
    rng = np.random.default_rng(seed)
    atoms = rng.normal(size=(n, n_parts))
    atoms[:, 1] = atoms[:, 0]  # equal centers
    weights = rng.dirichlet(np.ones(n_parts), n)
    weights[:, 2] = 0.0
    weights /= weights.sum(1, keepdims=True)
    return Mixture(atoms, weights, np.exp(rng.normal(size=n) - 1.5), **bounds)


def distribution(found, row):
    """Distribution function of a row on the grid, by a loop over its parts."""
    total = np.zeros(len(GRID))
    for atom, weight in zip(found.atoms[row], found.weights[row], strict=True):
        total += weight * 0.5 * (1 + np.tanh((GRID - atom) / found.bandwidth[row] / 2))
    return total


def test_cdf_is_the_weighted_sum_of_the_parts():
    found = mixture()
    for row in range(len(found)):
        of_grid = found.take([row]).cdf(GRID[None])[0]
        np.testing.assert_allclose(of_grid, distribution(found, row), atol=1e-12)


def test_quantiles_are_the_inverse_of_the_cdf():
    found, levels = mixture(), np.array([1e-5, 0.01, 0.3, 0.5, 0.97, 1 - 1e-5])
    np.testing.assert_allclose(
        found.cdf(found.quantiles(levels)), np.broadcast_to(levels, (6, 6)), atol=1e-9
    )


def test_quantiles_of_parts_far_apart_are_found():
    apart = Mixture(np.array([[-1e6, 1e6]]), np.array([[0.5, 0.5]]), np.array([1e-3]))
    low, high = apart.quantiles(np.array([0.25, 0.75]))[0]
    np.testing.assert_allclose([low, high], [-1e6, 1e6], rtol=1e-9)


def test_log_density_is_the_derivative_of_the_cdf():
    found = mixture()
    for row in range(len(found)):
        slope = np.gradient(distribution(found, row), GRID)
        density = np.exp(found.take([row]).log_density(GRID[None]))[0]
        np.testing.assert_allclose(density, slope, atol=1e-3 * slope.max())


@pytest.mark.parametrize("bounds", [{}, {"lower": -0.4}, {"lower": -0.4, "upper": 0.9}], ids=str)
def test_crps_is_the_integral_of_its_definition(bounds):
    found, y = mixture(**bounds), np.array([-0.4, 0.1, 0.9, 0.3, 0.0, 0.5])
    for row in range(len(found)):
        of_grid = found.take([row]).cdf(GRID[None])[0]
        expected = np.trapezoid((of_grid - (y[row] <= GRID)) ** 2, GRID)
        assert found.crps(y)[row] == pytest.approx(expected, abs=1e-3)


def test_crps_of_the_head_is_that_of_the_mixture():
    found, y = mixture(), np.linspace(-1, 1, 6)
    parts = (torch.from_numpy(part) for part in (found.atoms, found.weights, found.bandwidth))
    np.testing.assert_allclose(
        logistic_crps(*parts, torch.from_numpy(y)).numpy(), found.crps(y), atol=1e-6
    )


@pytest.mark.parametrize("bounds", [{}, {"lower": -0.4}, {"upper": 0.2}], ids=str)
def test_mean_and_samples_agree_within_the_bounds(bounds):
    found = mixture(**bounds)
    drawn = found.sample(40_000, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(1), found.mean(), atol=0.04)
    assert drawn.min() >= found.lower
    assert drawn.max() <= found.upper


def test_variance_is_that_of_samples():
    found = mixture()
    drawn = found.sample(40_000, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.var(1), found.variance(), rtol=0.1)


def test_mode_is_where_the_density_is_largest():
    found = mixture()
    for row, mode in enumerate(found.mode()):
        one = found.take([row])
        density = one.log_density(GRID[None])[0]
        assert one.log_density(np.array([mode]))[0] == pytest.approx(density.max(), abs=0.05)


def test_scaled_keeps_the_mean_and_scales_the_spread():
    found = mixture()
    wide = found.scaled(1.7)
    np.testing.assert_allclose(wide.mean(), found.mean(), atol=1e-12)
    np.testing.assert_allclose(wide.variance(), 1.7**2 * found.variance(), rtol=1e-12)
