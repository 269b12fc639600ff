"""Numbers of the report against scipy and plain loops."""

import pytest
from nearwise_lab.experiments import Record, read_records
from nearwise_lab.report.summary import Results


def rows(values, dataset="d", key="nll"):
    return [
        Record(dataset, method, seed, **{key: value})
        for method, seeds in values.items()
        for seed, value in enumerate(seeds)
        if value is not None
    ]


def test_differences_pair_the_seeds_that_both_have():
    results = Results(rows({"a": [0.1, 0.2, None, 0.4], "b": [0.3, None, 0.5, 0.7]}))
    found = results.paired("d", "a", "b", "nll")
    assert found.n == 2
    assert found.mean == pytest.approx(-0.25)
    assert results.paired("d", "a", "absent", "nll") is None


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


def test_a_single_seed_is_paired_by_row_where_predictions_are_kept(one_seed):
    records = read_records(one_seed)
    with_rows = Results(records, one_seed).paired("blobs", "attention:base-alone", "bayes", "nll")
    assert with_rows.method == "bootstrap"
    assert with_rows.n == 18
    without = Results(records).paired("blobs", "attention", "bayes", "nll")
    assert without.verdict == "none"


def test_a_figure_names_the_sizes_of_its_own_data_set():
    sizes = (("a", 5, 2), ("b", 1200, 3))
    found = Results([Record(d, "m", 0, n_train=n, n_test=t) for d, n, t in sizes])
    assert found.heading("b", "b, bars") == "b, bars (n = 1,200 train, 3 test), seed 0"
