"""One call measures all, as the single metrics do, whatever the order of the rows."""

import numpy as np
import pytest

from nearwise import metrics
from nearwise.metrics import evaluate_probabilities
from tests.metrics.cases import CASES

EACH_CASE = pytest.mark.parametrize(("y", "proba"), CASES.values(), ids=CASES.keys())
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


def test_one_column_is_refused_as_probabilities_not_taken_for_positions():
    with pytest.raises(ValueError, match=r"proba must have shape \(n_rows, n_classes\)"):
        evaluate_probabilities([0, 1], [0.1, 0.9])
    with pytest.raises(ValueError, match="proba must have shape"):
        evaluate_probabilities([0, 1], [0, 1])


@EACH_CASE
@pytest.mark.parametrize("seed", range(3))
def test_no_value_depends_on_the_order_of_the_rows(seed, y, proba):
    order = np.random.default_rng(seed).permutation(y.size)
    shuffled = evaluate_probabilities(y[order], proba[order])
    assert shuffled == pytest.approx(evaluate_probabilities(y, proba), abs=1e-12)


@EACH_CASE
def test_every_value_stays_in_its_range(y, proba):
    values = evaluate_probabilities(y, proba)
    top = {"nll": -np.log(1e-7) + 1e-9, "brier": 2.0, "augrc": 0.5}
    for name, value in values.items():
        low = -1.0 if name == "signed_gap" else 0.0
        assert low <= value <= top.get(name, 1.0) + 1e-12, name


@EACH_CASE
def test_doubling_every_row_changes_no_value_that_is_a_mean_over_rows(y, proba):
    double = evaluate_probabilities(np.repeat(y, 2), np.repeat(proba, 2, axis=0))
    once = evaluate_probabilities(y, proba)
    for name in set(NAMES) - {"equal_mass_ece", "aurc"}:
        assert double[name] == pytest.approx(once[name], abs=1e-9), name
