"""One call measures all, as the single metrics do, whatever the order of the rows."""

import numpy as np
import pytest

from nearwise import metrics
from nearwise.metrics import evaluate_probabilities
from tests.metrics.cases import EACH_CASE

NAMES = [
    *("accuracy", "macro_f1", "nll", "brier"),
    *("ece", "equal_mass_ece", "classwise_ece", "smooth_ece", "signed_gap"),
    *("aurc", "augrc"),
]


@EACH_CASE
def test_the_values_are_those_of_the_single_metrics(y, proba):
    values = evaluate_probabilities(y, proba)
    assert list(values) == NAMES
    assert values == {name: getattr(metrics, name)(y, proba) for name in NAMES}
    assert all(type(value) is float for value in values.values())


@EACH_CASE
@pytest.mark.parametrize("seed", range(3))
def test_no_value_depends_on_the_order_of_the_rows(seed, y, proba):
    order = np.random.default_rng(seed).permutation(y.size)
    shuffled = evaluate_probabilities(y[order], proba[order])
    assert shuffled == pytest.approx(evaluate_probabilities(y, proba), abs=1e-12)
