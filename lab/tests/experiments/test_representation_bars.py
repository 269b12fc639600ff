"""The bars of representations.py: what they are held against is known beforehand."""

import pytest

from lab.tests.report.cases import comparison, flat


@pytest.fixture
def representations(load_benchmark):
    return load_benchmark("representations")


@pytest.mark.parametrize(("attention", "met"), [(0.75, True), (0.6, False)])
def test_cifar_bars_judge_the_best_field_and_attention_above_neighbors(
    representations, attention, met
):
    rates = flat(0.5) | {
        ("pixels", "transformer"): 0.9,  # no field
        ("sparse", "transformer"): 0.7,
        ("full", "attention"): attention,
        ("full", "knn"): 0.6,
    }
    best, gain = representations.JUDGES["cifar10"](comparison(rates))
    assert (best["encoder"], best["probe"], best["met"]) == ("sparse", "transformer", True)
    assert best["reached"] == pytest.approx(sum(best["by_seed"]) / 3)
    assert gain["met"] is met
    assert gain["missed_by"] == pytest.approx(max(0, 0.02 - gain["reached"]))


def test_what_was_not_measured_is_not_judged(representations):
    partly = comparison(flat(), contexts=("0.2",))
    assert representations.JUDGES["cifar10"](partly) == []
