"""Measures of prediction sets, against counting by hand and against MAPIE."""

import numpy as np
import pytest

from nearwise.metrics import (
    class_coverage_gap,
    coverage_by_class,
    coverage_by_size,
    evaluate_sets,
    mean_set_size,
    set_coverage,
    size_stratified_coverage,
)

Y = np.array([0, 0, 1, 1, 2, 2])
SETS = np.array(
    [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=bool
)  # covered: yes no yes yes no yes


def test_values_by_hand():
    assert set_coverage(Y, SETS) == pytest.approx(4 / 6)
    assert mean_set_size(SETS) == pytest.approx(8 / 6)
    np.testing.assert_allclose(coverage_by_class(Y, SETS), [0.5, 1, 0.5])
    assert class_coverage_gap(Y, SETS, 0.9) == pytest.approx((0.4 + 0.1 + 0.4) / 3)
    assert coverage_by_size(Y, SETS) == {
        0: (1, 0.0),
        1: (3, pytest.approx(2 / 3)),
        2: (1, 1.0),
        3: (1, 1.0),
    }


def test_the_lowest_coverage_leaves_out_empty_sets_and_sizes_too_rare():
    assert size_stratified_coverage(Y, SETS) == pytest.approx(2 / 3)
    assert size_stratified_coverage(Y, SETS, least=3) == pytest.approx(2 / 3)
    assert size_stratified_coverage(Y[5:], SETS[5:], least=20) == 1.0
    assert np.isnan(size_stratified_coverage(Y[4:5], SETS[4:5]))


def test_a_class_without_rows_has_no_coverage_and_does_not_count():
    found = coverage_by_class(Y[:4], SETS[:4])
    assert np.isnan(found[2])
    assert class_coverage_gap(Y[:4], SETS[:4], 0.75) == pytest.approx(0.25)


def test_all_in_one_call():
    found = evaluate_sets(Y, SETS, 0.9)
    assert found["coverage"] == set_coverage(Y, SETS)
    assert (found["empty"], found["singletons"]) == (pytest.approx(1 / 6), 0.5)
    assert found["lowest_class_coverage"] == 0.5


def test_the_values_are_those_of_mapie(rng):
    mapie = pytest.importorskip("mapie.metrics.classification")
    y, sets = rng.integers(0, 4, 200), rng.random((200, 4)) < 0.6
    assert set_coverage(y, sets) == pytest.approx(
        mapie.classification_coverage_score(y, sets[:, :, None])[0]
    )
    assert mean_set_size(sets) == pytest.approx(
        mapie.classification_mean_width_score(sets[:, :, None])[0]
    )
    filled = sets.any(axis=1)  # MAPIE counts empty sets as a size
    assert size_stratified_coverage(y[filled], sets[filled]) == pytest.approx(
        mapie.classification_ssc_score(y[filled], sets[filled][:, :, None])[0]
    )


@pytest.mark.parametrize("sets", [SETS.astype(int), SETS[0], SETS[:0], SETS[:, :0]])
def test_what_is_no_matrix_of_sets_is_refused(sets):
    with pytest.raises(ValueError, match="bool matrix"):
        mean_set_size(sets)


def test_a_label_without_a_column_and_a_missing_row_are_refused():
    with pytest.raises(ValueError, match="class position 3"):
        set_coverage([0, 3], SETS[:2])
    with pytest.raises(ValueError, match="sets has 2"):
        set_coverage([0, 1, 1], SETS[:2])
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        class_coverage_gap(Y, SETS, 90)
