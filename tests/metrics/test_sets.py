"""Measures of prediction sets, against counting by hand."""

import numpy as np
import pytest

from nearwise.metrics import evaluate_sets

Y = np.array([0, 0, 1, 1, 2, 2])
SETS = np.array(
    [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=bool
)  # covered: yes no yes yes no yes


def test_values_by_hand():
    assert evaluate_sets(Y, SETS, 0.9) == pytest.approx(
        {
            "coverage": 4 / 6,
            "mean_size": 8 / 6,
            "empty": 1 / 6,
            "singletons": 0.5,
            "class_gap": (0.4 + 0.1 + 0.4) / 3,
            "lowest_class_coverage": 0.5,
            "size_stratified_coverage": 2 / 3,
        }
    )


def test_the_lowest_coverage_leaves_out_empty_sets_and_sizes_too_rare():
    y, sets = np.repeat(Y[:3], (20, 20, 1)), np.repeat(SETS[:3], (20, 20, 1), axis=0)
    sets[-1] = [True, False, True]  # one set of two, which misses
    assert evaluate_sets(y, sets, 0.9)["size_stratified_coverage"] == 0.5
    assert evaluate_sets(Y[4:], SETS[4:], 0.9)["size_stratified_coverage"] == 1.0
    assert np.isnan(evaluate_sets(Y[4:5], SETS[4:5], 0.9)["size_stratified_coverage"])


def test_a_class_without_rows_does_not_count():
    found = evaluate_sets(Y[:4], SETS[:4], 0.75)
    assert found["class_gap"] == pytest.approx(0.25)
    assert found["lowest_class_coverage"] == 0.5


@pytest.mark.parametrize("sets", [SETS.astype(int), SETS[0], SETS[:0], SETS[:, :0]])
def test_what_is_no_matrix_of_sets_is_refused(sets):
    with pytest.raises(ValueError, match="bool matrix"):
        evaluate_sets(Y, sets, 0.9)


def test_a_label_without_a_column_and_a_missing_row_are_refused():
    with pytest.raises(ValueError, match="class position 3"):
        evaluate_sets([0, 3], SETS[:2], 0.9)
    with pytest.raises(ValueError, match="sets has 2"):
        evaluate_sets([0, 1, 1], SETS[:2], 0.9)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        evaluate_sets(Y, SETS, 90)
