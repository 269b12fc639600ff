"""Numbers of the report against scipy and plain loops."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from nearwise.lab.experiments import Record, read_records
from nearwise.lab.report.summary import Results, summary_json
from nearwise.metrics import aurc, evaluate_probabilities, paired_difference
from nearwise.report.measures import MEASURES, Measure, better, mean_with_interval
from nearwise.report.predictions import Predictions
from nearwise.report.rows import difference_over_rows

NLL = next(m for m in MEASURES if m.key == "nll")
ACCURACY = next(m for m in MEASURES if m.key == "accuracy")


def rows(values, dataset="d", key="nll"):
    return [
        Record(dataset, method, seed, **{key: value})
        for method, seeds in values.items()
        for seed, value in enumerate(seeds)
        if value is not None
    ]


def test_the_interval_is_students():
    values = [0.1, 0.4, 0.25, 0.3]
    mean = mean_with_interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (mean.low, mean.high) == pytest.approx((low, high))
    assert mean.n == 4


def test_one_seed_has_no_interval():
    mean = mean_with_interval([0.5])
    assert (mean.mean, mean.low, mean.high) == (0.5, None, None)


def test_differences_pair_the_seeds_that_both_have():
    results = Results(rows({"a": [0.1, 0.2, None, 0.4], "b": [0.3, None, 0.5, 0.7]}))
    found = results.paired("d", "a", "b", "nll")
    assert found.n == 2
    assert found.mean == pytest.approx(-0.25)
    assert results.paired("d", "a", "absent", "nll") is None


def test_a_difference_inside_its_interval_is_none():
    noise = paired_difference([1.0, 2.0, 3.0], [1.1, 1.9, 3.05])
    clear = paired_difference([1.0, 2.0, 3.0], [2.0, 3.1, 4.05])
    assert better(noise, NLL) == "none"
    assert better(clear, NLL) == "better"
    assert better(clear, ACCURACY) == "worse"
    assert better(clear, Measure("fit_seconds", "fit s", 1, None)) == "none"


def test_methods_are_ordered_by_mean():
    results = Results(rows({"a": [0.3, 0.3], "b": [0.1, 0.2], "c": [None, 0.25]}))
    assert results.ranked_methods("d") == ["b", "c", "a"]
    highest = Results(rows({"a": [0.3], "b": [0.1]}, key="accuracy"))
    assert highest.ranked_methods("d", "accuracy") == ["a", "b"]


def test_mean_ranks_leave_out_methods_that_miss_a_data_set():
    one = rows({"a": [0.1], "b": [0.2], "c": [0.3]}, "one")
    two = rows({"a": [0.3], "b": [0.2]}, "two")
    assert Results(one + two).mean_ranks("nll") == {"a": 1.5, "b": 1.5}


def test_the_reference_is_attention_or_the_best_rank():
    assert Results(rows({"b": [0.1], "attention": [0.2]})).reference() == "attention"
    assert Results(rows({"b": [0.1], "a": [0.2]})).reference() == "b"


def test_failed_rows_count_for_nothing():
    failed = Record("d", "a", 1, status="failed", reason="no")
    results = Results([*rows({"a": [0.1]}), failed])
    assert results.mean("d", "a", "nll").n == 1
    assert results.failures("d") == [failed]


def predictions(rng, y, sharpness):
    proba = rng.dirichlet(np.ones(3), size=len(y)) + sharpness * np.eye(3)[y]
    proba /= proba.sum(axis=1, keepdims=True)
    return Predictions(y, proba, np.arange(len(y)), list("abc"))


@pytest.mark.parametrize("key", ["accuracy", "nll", "brier", "ece", "aurc"])
def test_on_one_split_the_difference_is_that_of_the_metrics(key):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    a, b = predictions(rng, y, 0.2), predictions(rng, y, 0.5)
    found = difference_over_rows(key, a, b)
    expected = [evaluate_probabilities(p.y, p.proba)[key] for p in (a, b)]
    assert found.mean == pytest.approx(expected[0] - expected[1], abs=1e-12)
    assert found.low < found.mean < found.high or key == "ece"
    assert found.n == 200


def test_other_test_rows_are_not_compared():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 20)
    a = predictions(rng, y, 0.2)
    moved = dataclasses.replace(a, test_index=a.test_index + 1)
    assert difference_over_rows("nll", a, moved) is None
    assert difference_over_rows("augrc", a, a) is None


def test_a_single_seed_is_paired_by_row_where_predictions_are_kept(one_seed):
    records = read_records(one_seed)
    with_rows = Results(records, one_seed).paired("blobs", "attention:base-alone", "bayes", "nll")
    assert with_rows.method == "bootstrap"
    assert with_rows.n == 18
    without = Results(records).paired("blobs", "attention", "bayes", "nll")
    assert without.verdict == "none"


def test_the_json_says_what_the_tables_say(compared):
    results = Results(read_records(compared), compared)
    summary = summary_json(results)
    assert summary["reference"] == "attention"
    means = summary["datasets"]["blobs"]["means"]
    values = list(results.values("blobs", "attention", "nll").values())
    assert means["attention"]["nll"]["mean"] == pytest.approx(np.mean(values))
    assert set(means) == {
        "bayes <1>", "attention", "broken", "attention:base-alone", "attention:neighbors-alone",
    }  # fmt: skip
    assert means["broken"]["nll"] is None
    paired = summary["datasets"]["blobs"]["paired"]["attention:neighbors-alone"]["nll"]
    assert paired["word"] == "worse"
    assert [f["seed"] for f in summary["datasets"]["blobs"]["failed"]] == [0, 1, 2]


def test_aurc_is_shown_in_thousandths():
    shown = next(m for m in MEASURES if m.key == "aurc")
    assert shown.scale * aurc([0, 1], [[0.9, 0.1], [0.8, 0.2]]) == pytest.approx(250)
