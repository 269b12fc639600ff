"""Bad input is refused by every metric, with an error that says what to do."""

import numpy as np
import pytest
import torch

from nearwise import metrics

ROWS = np.array([[0.5, 0.5], [0.25, 0.75]])
METRICS = [
    metrics.accuracy,
    metrics.macro_f1,
    metrics.nll,
    metrics.brier,
    metrics.ece,
    metrics.equal_mass_ece,
    metrics.classwise_ece,
    metrics.smooth_ece,
    metrics.signed_gap,
    metrics.aurc,
    metrics.augrc,
    metrics.risk_coverage_curve,
    metrics.reliability_bins,
    metrics.evaluate_probabilities,
]
BAD = {
    "too little": ([0, 1], [[0.5, 0.4], [0.5, 0.5]], "row 0 sums to 0.9"),
    "just too much": ([0, 1], [[0.5, 0.5], [0.5, 0.50011]], "row 1 sums to 1.00011"),
    "negative": ([0, 1], [[0.5, 0.5], [1.1, -0.1]], "negative entry, -0.1 in row 1"),
    "NaN": ([0, 1], [[0.5, 0.5], [np.nan, 1.0]], "NaN or infinity, first in row 1"),
    "infinity": ([0, 1], [[np.inf, 0.5], [0.5, 0.5]], "NaN or infinity, first in row 0"),
    "no rows": ([], np.zeros((0, 2)), "proba is empty"),
    "no columns": ([0], np.zeros((1, 0)), "proba is empty"),
    "three axes": ([0, 1], ROWS[None], "proba must have shape"),
    "text": ([0, 1], [["a", "b"], ["c", "d"]], "proba must be numeric"),
    "fewer labels": ([0], ROWS, "y has 1 rows and proba has 2"),
    "label too large": ([0, 2], ROWS, "class position 2, but there are 2 classes"),
    "label negative": ([0, -1], ROWS, "y holds -1; class positions start at 0"),
    "labels of text": (["no", "yes"], ROWS, "y must hold integer class positions"),
    "labels of floats": ([0.0, 1.0], ROWS, "y must hold integer class positions"),
    "labels one-hot": ([[1, 0], [0, 1]], ROWS, "y must have shape"),
}


@pytest.mark.parametrize(("y", "proba", "message"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_bad_input_is_refused_with_its_reason(metric, y, proba, message):
    with pytest.raises(ValueError, match=message):
        metric(np.array(y) if len(y) else np.zeros(0, int), proba)


@pytest.mark.parametrize("column", [[0.2, 0.8], [0, 1]])
@pytest.mark.parametrize("metric", [metrics.nll, metrics.evaluate_probabilities])
def test_one_column_is_refused_with_the_way_out_and_not_taken_for_positions(metric, column):
    with pytest.raises(ValueError, match=r"proba must have shape.*np.column_stack\(\[1 - p, p\]\)"):
        metric([0, 1], column)


@pytest.mark.parametrize(
    ("y", "predicted", "message"),
    [
        ([0, 1], [0.2, 0.8], "prediction must hold integer class positions"),
        ([0, 1], [0], "y has 2 rows and prediction has 1"),
        ([0, 1], [0, -1], "prediction holds -1"),
        (np.zeros(0, int), np.zeros(0, int), "y is empty"),
    ],
)
@pytest.mark.parametrize(
    "metric", [metrics.accuracy, metrics.macro_f1], ids=lambda metric: metric.__name__
)
def test_bad_class_positions_are_refused(metric, y, predicted, message):
    with pytest.raises(ValueError, match=message):
        metric(y, predicted)


def test_row_sums_within_the_tolerance_pass_and_the_input_stays_as_it_was():
    proba = np.array([[1.00005, 0.0], [0.5, 0.49995]])
    given = proba.copy()
    values = metrics.evaluate_probabilities([0, 1], proba)
    assert values["nll"] >= 0 and np.isfinite(list(values.values())).all()
    assert np.array_equal(proba, given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("label_dtype", [np.int8, np.int32, np.uint8, np.int64, bool])
def test_every_float_and_integer_type_gives_the_same_values(dtype, label_dtype):
    y, proba = np.array([0, 1, 1]), np.array([[0.5, 0.5], [0.25, 0.75], [1, 0]])
    expected = metrics.evaluate_probabilities(y, proba)
    assert metrics.evaluate_probabilities(y.astype(label_dtype), proba.astype(dtype)) == expected


def test_lists_and_cpu_tensors_are_taken():
    expected = metrics.nll(np.array([0, 1]), ROWS)
    assert metrics.nll([0, 1], ROWS.tolist()) == expected
    assert metrics.nll(torch.tensor([0, 1]), torch.tensor(ROWS)) == expected
