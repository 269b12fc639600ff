"""The verdict of ``nearwise evaluate``: every word rests on a number and its interval."""

import re
import shlex
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from nearwise.cli.chance import (
    Estimate,
    area_under_curve,
    calibration_by_chance,
    mean_difference,
    more_than_expected,
    share_difference,
    share_of,
)
from nearwise.cli.verdict import Inputs, brief, judge_classes
from nearwise.metrics import ece, evaluate_probabilities

N = 400
INPUTS = Inputs("a.model", "rows.csv", "y")


def said(proba, y, *, base=None, neighbors=None, selective=True):
    """Judge probabilities of two classes, 0 being the more frequent in training."""
    halves = {"model": proba, "base alone": proba if base is None else base}
    halves["neighbors alone"] = proba if neighbors is None else neighbors
    scores = [evaluate_probabilities(y, one) for one in halves.values()]
    found = {"metrics": scores[0], "base_alone": scores[1], "neighbors_alone": scores[2]}
    found |= {"selective": {}} if selective else {}
    model = SimpleNamespace(
        classes_=np.array(["no", "yes"]),
        fitted_=SimpleNamespace(rows_per_class=[60, 40]),
        report_=SimpleNamespace(choice={"base": {"forest": 1.0}}),
    )
    scored = SimpleNamespace(y=y, halves=halves, noun="rows", what=f"{len(y)} rows")
    return judge_classes(model, scored, found, INPUTS, 200)


def drawn(seed=0, n=N, low=0.05, high=0.95):
    """Honest probabilities of two classes, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    yes = rng.uniform(low, high, n)
    return np.column_stack([1 - yes, yes]), (rng.random(n) < yes).astype(int)


def test_a_good_honest_model_is_said_to_be_one():
    proba, y = drawn()
    verdict = said(proba, y)
    assert "better than always answering no" in verdict.quality
    assert "probabilities honest" in verdict.quality
    assert "within chance of the base alone" in verdict.quality
    accuracy = float((proba.argmax(1) == y).mean())
    assert f"Accuracy {100 * accuracy:.1f} %" in verdict.quality
    assert verdict.facts["auc"].value == pytest.approx(roc_auc_score(y, proba[:, 1]))
    assert verdict.to_json()["lines"] == [verdict.quality, verdict.advice]
    assert len(verdict.to_json()["accuracy"]) == 3


def test_overconfidence_is_named_with_its_size():
    proba, y = drawn()
    sharp = proba**4 / (proba**4).sum(1, keepdims=True)
    verdict = said(sharp, y, base=proba)
    assert "probabilities too high by" in verdict.quality
    assert "worse than the base alone" in verdict.quality
    assert "labels may be wrong" in verdict.advice and "nearwise clean rows.csv" in verdict.advice


def test_a_model_without_skill_gets_no_praise():
    _, y = drawn(low=0.3, high=0.4)
    constant = np.tile([0.65, 0.35], (N, 1)) + np.random.default_rng(1).normal(0, 0.01, (N, 1)) * [
        1,
        -1,
    ]
    verdict = said(constant, y)
    assert "not beyond chance better than always answering no" in verdict.quality
    assert "yes" in verdict.advice and "--sets" in verdict.advice  # never predicted
    wobbly, _ = drawn(seed=3)
    verdict = said(wobbly, y)
    assert "worse than always answering no" in verdict.quality


def test_few_rows_are_no_claim():
    proba, y = drawn(n=9)
    verdict = said(proba, y)
    assert verdict.quality.startswith("Too few rows for a claim: 9 rows")
    assert "Accuracy" not in verdict.quality


def test_the_suggested_share_halves_the_errors():
    proba, y = drawn()
    proba[: N // 2] = np.where(proba[: N // 2] > 0.5, 0.97, 0.03)
    y[: N // 2] = proba[: N // 2].argmax(1)
    accept = said(proba, y).facts["accept"]
    order = np.argsort(-proba.max(1), kind="stable")[: round(accept["share"] * N)]
    wrong = float((proba.argmax(1) != y)[order].mean())
    assert accept["wrong"][0] == pytest.approx(wrong) and wrong <= accept["wrong_of_all"] / 2


@pytest.mark.parametrize("seed", range(3))
def test_honest_probabilities_exceed_the_error_of_chance_in_few_tests(seed):
    found = []
    for i in range(40):
        proba, y = drawn(seed=100 * seed + i, n=200)
        found.append(ece(y, proba) > calibration_by_chance(proba.max(1)))
    assert sum(found) <= 7  # two expected


def test_four_rows_more_of_five_hundred_are_chance():
    first, second = np.zeros(500, dtype=bool), np.zeros(500, dtype=bool)
    first[:4] = True
    assert binomtest(4, 4).pvalue > 0.05 and share_difference(first, second).sign == 0
    first[:12] = True
    assert share_difference(first, second).sign == 1
    assert share_difference(second, first).sign == -1


def test_areas_and_their_intervals():
    positive = np.array([True, True, False, False, True, False] * 20)
    scores = np.tile([3.0, 2, 2, 1, 4, 3], 20)
    area = area_under_curve(positive, scores)
    assert area.value == pytest.approx(roc_auc_score(positive, scores))
    assert area.low < area.value < area.high
    coin = area_under_curve(positive, np.random.default_rng(0).random(120))
    assert coin.low < 0.5 < coin.high


def test_estimates_hold_what_they_estimate():
    assert share_of(np.ones(50, dtype=bool)).low < 0.95  # 50 of 50 do not prove 100 %
    same = mean_difference(np.arange(50.0), np.arange(50.0), 50)
    assert same == (0, 0, 0) and same.sign == 0
    assert mean_difference(np.arange(50.0) + 1, np.arange(50.0), 50).sign == 1
    assert not more_than_expected(3, 2.5) and more_than_expected(12, 2.5)
    assert not more_than_expected(0, 0.0)
    assert [*Estimate(1.0, 0.5, 2.0)] == [1.0, 0.5, 2.0]


def test_numbers_are_brief_and_have_no_exponent():
    assert [brief(one) for one in (0.51834, 12.345, 59216.12)] == ["0.518", "12.3", "59216"]


def test_two_lines_are_printed_and_their_command_works(
    nearwise, tables, trained, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = nearwise("evaluate", trained, tables / "test.csv", "--resamples", "50")
    assert result.exit_code == 0 and "\t" not in result.out
    quality, advice = result.out.splitlines()
    assert re.match(r"Accuracy \d+\.\d % \(\d+\.\d to \d+\.\d\) on 60 rows, better than", quality)
    words = shlex.split(advice.rpartition(": nearwise ")[2])
    assert nearwise(*words).exit_code == 0
    whole = nearwise("evaluate", trained, tables / "test.csv", "--resamples", "50", "--all")
    assert whole.out.startswith(result.out) and "macro F1\t" in whole.out
    found = nearwise("evaluate", trained, tables / "test.csv", "--json", "-").json()
    assert found["verdict"]["lines"][0].startswith("Accuracy")
    assert found["verdict"]["accuracy"][0] == found["metrics"]["accuracy"]


def test_numbers_are_judged_against_their_mean(nearwise, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=260)
    frame = pd.DataFrame({"x": x, "z": rng.normal(size=260), "y": 3 * x + rng.normal(0, 0.5, 260)})
    frame[:200].to_csv(tmp_path / "train.csv", index=False)
    frame[200:].to_csv(tmp_path / "test.csv", index=False)
    fit = ("fit", tmp_path / "train.csv", "-t", "y", "-o", tmp_path / "m", "--preset", "instant")
    assert nearwise(*fit, "-q").exit_code == 0
    result = nearwise("evaluate", tmp_path / "m", tmp_path / "test.csv", "--resamples", "50")
    assert result.exit_code == 0, result.err
    quality, advice = result.out.splitlines()
    assert quality.startswith("MAE ") and "better than always answering the mean" in quality
    assert "90 % intervals hold" in quality and "RMSE" in quality and "CRPS" in quality
    words = shlex.split(advice.rpartition(": nearwise ")[2])
    assert nearwise(*words).exit_code == 0 or words[0] == "explain"
