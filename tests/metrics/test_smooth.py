"""Smooth ECE agrees with relplot and with direct quadrature."""

import numpy as np
import pytest

from nearwise.metrics import smooth_ece
from nearwise.metrics.calibration import _error_at_width, _residual_spectrum
from tests.metrics.cases import CASES, random_case, vote_case
from tests.reference import metrics_oracles as slow

EACH_CASE = pytest.mark.parametrize(("y", "proba"), CASES.values(), ids=CASES.keys())
# relplot bisects the width to 1/1024, from 0.001 up, and integrates on 200 points.
RELPLOT_PRECISION = 0.0025
# relplot reflects a row at exactly 1.0 onto itself once, not twice, so that it counts half;
# 0.001 further in it counts whole. It also cuts the kernel at a distance of 0.5, which is felt
# where the error passes about 0.2 and has both signs: the case "edges" (0.270 for 0.263).
# Both are held to the definition by quadrature below.
RELPLOT_LARGEST = 0.999
RELPLOT_CASES = {name: case for name, case in CASES.items() if name != "edges"}


def top_arrays(y, proba):
    confidence, correct = slow.top_label(y, proba)
    return np.array(confidence), np.array(correct, dtype=float)


def relplot_value(y, proba):
    import relplot  # here, for it imports seaborn, which every process that collects would pay

    confidence, correct = top_arrays(y, proba)
    return float(relplot.smECE(np.minimum(confidence, RELPLOT_LARGEST), correct))


@pytest.mark.parametrize(("y", "proba"), RELPLOT_CASES.values(), ids=RELPLOT_CASES.keys())
def test_smooth_ece_is_that_of_relplot(y, proba):
    expected = relplot_value(y, proba)
    assert smooth_ece(y, proba) == pytest.approx(expected, abs=RELPLOT_PRECISION)


@pytest.mark.parametrize("seed", range(5))
def test_smooth_ece_is_that_of_relplot_on_many_rows(seed):
    y, proba = random_case(seed, n=5000, n_classes=3) if seed % 2 else vote_case(seed, n=5000, k=8)
    expected = relplot_value(y, proba)
    assert smooth_ece(y, proba) == pytest.approx(expected, abs=RELPLOT_PRECISION)


def test_a_row_of_confidence_one_counts_as_much_as_any_other():
    # One row wrong at 1.0, three right at 0.9: the residuals 1 and -0.1 (three times).
    y, proba = np.array([1, 0, 0, 0]), np.array([[1.0, 0.0], *[[0.9, 0.1]] * 3])
    expected = slow.smooth_ece(*top_arrays(y, proba))
    assert expected > 0.17
    assert smooth_ece(y, proba) == pytest.approx(expected, abs=1e-4)


@EACH_CASE
def test_smooth_ece_is_the_fixed_point_of_its_definition(y, proba):
    rows = slice(0, 100)
    expected = slow.smooth_ece(*top_arrays(y[rows], proba[rows]))
    assert smooth_ece(y[rows], proba[rows]) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("width", [0.003, 0.02, 0.1, 0.5, 1.0])
def test_the_cosine_transform_smooths_as_the_reflected_kernel_does(width):
    confidence, correct = top_arrays(*vote_case(0))
    spectrum = _residual_spectrum(confidence, (confidence - correct) / confidence.size)
    expected = slow.smooth_error(confidence, correct, width)
    assert _error_at_width(spectrum, width) == pytest.approx(expected, abs=1e-5)


def test_errors_of_one_sign_keep_their_whole_mass_at_every_width():
    assert smooth_ece([0], [[0.7, 0.3]]) == pytest.approx(0.3, abs=1e-6)
    assert smooth_ece([1], [[1.0, 0.0]]) == pytest.approx(1.0, abs=1e-6)


def test_perfect_and_sure_predictions_have_no_error():
    assert smooth_ece([0, 1], np.eye(2)) == 0.0


def test_smooth_ece_of_calibrated_rows_falls_with_their_number():
    rng = np.random.default_rng(0)
    errors = []
    for n in (100, 2_500, 62_500):
        top = rng.uniform(0.5, 1.0, n)
        y = (rng.random(n) > top).astype(int)
        errors.append(smooth_ece(y, np.column_stack([top, 1 - top])))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01
