"""The benchmark of vision transformers adds arms and seeds to what earlier calls recorded."""

import pytest


@pytest.fixture
def benchmark(load_benchmark):
    return load_benchmark("vit_training")


def run(arm, top1, seed=0):
    measured = dict.fromkeys(
        ("nll", "train_top1", "epoch_seconds", "peak_memory_mib", "parameters", "gflops"), 1.0
    )
    return {"arm": arm, "augment": False, "seed": seed, "top1": top1, **measured}


def test_an_arm_measured_later_joins_and_one_measured_again_replaces(benchmark, tmp_path):
    out = tmp_path / "vit_training_digits.json"
    benchmark.write(out, "digits", [run("attention", 50.0), run("attention", 52.0, seed=1)])
    records = benchmark.former(out, "digits")
    for new in (run("knn", 54.0), run("attention", 51.0), run("knn", 57.0, seed=1)):
        records = benchmark.joined(records, new)
    benchmark.write(out, "digits", records)
    found = {row["arm"]: row for row in benchmark.table(benchmark.former(out, "digits"))}
    assert found["attention"]["top1"] == 51.5
    assert sorted(found["attention"]["seeds"]) == [0, 1]
    assert found["knn"]["difference"]["mean"] == 4.0
    assert found["knn"]["difference"]["n"] == 2


def test_runs_keep_the_versions_of_the_code_that_ran(benchmark, tmp_path):
    out = tmp_path / "vit_training_digits.json"
    earlier = {**run("attention", 50.0), "versions": {"commit": "abc"}}
    benchmark.write(out, "digits", [earlier, run("knn", 51.0)])
    found = {kept["arm"]: kept["versions"] for kept in benchmark.former(out, "digits")}
    assert found["attention"] == {"commit": "abc"}
    assert "torch" in found["knn"]  # not in the run: those of the file


def test_runs_under_other_settings_are_replaced_and_this_is_said(benchmark, tmp_path, capsys):
    out = tmp_path / "vit_training_digits.json"
    benchmark.write(out, "digits", [run("attention", 50.0)])
    assert benchmark.former(out, "published") == []
    assert "other settings" in capsys.readouterr().out
    assert benchmark.former(tmp_path / "none.json", "digits") == []
