"""One call measures all, as the single metrics do."""

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
