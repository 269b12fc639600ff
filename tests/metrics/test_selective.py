"""Selective risk is the expected value over all orders of tied rows."""

import numpy as np
import pytest

from nearwise.metrics import augrc, aurc, risk_coverage_curve
from tests.metrics.cases import vote_case
from tests.reference import metrics_oracles as slow


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_areas_are_the_mean_over_every_order_of_tied_rows(seed, k):
    y, proba = vote_case(seed, n=6, n_classes=3, k=k)
    rows = slow.top_label(y, proba)
    assert aurc(y, proba) == pytest.approx(slow.aurc(*rows))
    assert augrc(y, proba) == pytest.approx(slow.augrc(*rows))
    curve = risk_coverage_curve(y, proba)
    assert curve.risk == pytest.approx(slow.risks(*rows))
    assert curve.coverage == pytest.approx(np.arange(1, 7) / 6)


def test_a_score_in_place_of_the_top_probability_orders_the_rows():
    y, proba = np.array([0, 1, 0]), np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    wrong_last = np.array([2.0, -1.0, 5.0])
    assert aurc(y, proba, confidence=wrong_last) == pytest.approx(1 / 9)
    assert augrc(y, proba, confidence=wrong_last) == pytest.approx(0.5 / 9)
    curve = risk_coverage_curve(y, proba, confidence=wrong_last)
    assert np.array_equal(curve.threshold, [5.0, 2.0, -1.0])


@pytest.mark.parametrize(
    ("confidence", "message"),
    [
        ([0.1, np.nan], "confidence has NaN, first in row 1"),
        ([0.1], "y has 2 rows and confidence has 1"),
        ([[0.1], [0.2]], "confidence must have shape"),
    ],
)
def test_a_malformed_score_is_refused(confidence, message):
    with pytest.raises(ValueError, match=message):
        aurc([0, 1], np.eye(2), confidence=confidence)
