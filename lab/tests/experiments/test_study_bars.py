"""The study's benchmark judges its bars by what the folder holds, finished or not."""

import json
from dataclasses import asdict

import pytest
from nearwise_lab.records import Record, RunFolder, append_lines


@pytest.fixture
def study(load_benchmark):
    return load_benchmark("study")


def rows(experiment, method, accuracies, ece=0.01, **place):
    return [
        Record(
            "cifar10", method, seed, experiment=experiment, preset="v1", accuracy=accuracy,
            nll=0.5, ece=ece, aurc=0.005, **place,
        )
        for seed, accuracy in enumerate(accuracies)
    ]  # fmt: skip


def judged(study, records, folder, label=""):
    with RunFolder(folder, {}) as kept:
        kept.append(records)
    results = folder / "bench" / "results"
    results.mkdir(parents=True, exist_ok=True)
    study.write(folder, "cifar10", label, results, "python it.py")
    content = json.loads((results / f"study_cifar10{label and '_' + label}.json").read_text())
    return {check["bar"]: check for check in content["checks"]}, content


def test_noise_is_judged_at_its_bar_and_over_the_network(study, tmp_path):
    noisy = {"condition": "where=everywhere", "noise": 0.3, "noise_kind": "symmetric"}
    records = rows("label-noise", "attention+noise-model", [0.93, 0.91], 0.02, **noisy)
    records += rows("label-noise", "cnn+temperature", [0.88, 0.88], **noisy)
    other = noisy | {"noise": 0.1}
    records += rows("label-noise", "attention+noise-model", [0.5, 0.5], **other)
    found, content = judged(study, records, tmp_path)
    verdicts = {bar.rsplit(": ", 1)[1]: check["met"] for bar, check in found.items()}
    assert verdicts == {
        "attention+noise-model, accuracy": False,  # .920 on average where .925 is wanted
        "attention+noise-model, ece": False,
        "attention+noise-model minus cnn+temperature, accuracy": True,
    }
    assert {row["method"] for row in content["results"]} == {
        "attention+noise-model", "cnn+temperature",
    }  # fmt: skip


def test_rows_without_a_bar_are_shown_and_not_judged(study, tmp_path):
    records = rows("long-tail", "attention+uniform-prior", [0.9], condition="ratio=0.1")
    found, content = judged(study, records, tmp_path)
    assert found == {}
    assert content["results"][0]["accuracy"] == 0.9
    assert (tmp_path / "bench" / "RESULTS.md").exists()


def test_rows_measured_before_stay_and_are_judged_with_those_of_now(study, tmp_path):
    noisy = {"condition": "where=everywhere", "noise": 0.3, "noise_kind": "symmetric"}
    both = ("attention+noise-model", "cnn+temperature")
    records = [row for m in both for row in rows("label-noise", m, [0.9], **noisy)]
    judged(study, records, tmp_path)
    (tmp_path / "next").mkdir()
    (tmp_path / "bench").rename(tmp_path / "next" / "bench")
    better = rows("label-noise", both[0], [0.94], **noisy)
    found, content = judged(study, better, tmp_path / "next")
    gain = found[
        "30 % symmetric, everywhere: attention+noise-model minus cnn+temperature, accuracy"
    ]
    assert gain["reached"] == pytest.approx(0.04)
    assert [row["accuracy"] for row in content["results"]] == [0.9, 0.94]


def measured(seeds, commit):
    """A row of some seeds, whose accuracy says which they are."""
    by_seed = {str(seed): {"accuracy": seed / 10, "nll": 0.3, "ece": None} for seed in seeds}
    row = {"experiment": "main", "place": "", "method": "attention", "commit": commit}
    row |= {"accuracy": sum(seeds) / len(seeds) / 10, "nll": 0.3, "ece": None}
    return row | {"seeds": seeds, "by_seed": by_seed}


def test_rows_of_further_seeds_join_those_measured_before(study):
    for former, now in (([5], [0, 1]), ([0, 1], [1, 5]), ([0, 1, 5], [1])):
        (joined,) = study.with_former([measured(now, "b")], [measured(former, "a")])
        assert joined["seeds"] == [0, 1, 5] and joined["commit"] == "a, b"
        assert (joined["accuracy"], joined["nll"]) == (0.2, 0.3) and "ece" not in joined
        assert study.with_former([measured(now, "b")], [joined]) == [joined]  # summarised twice
    again = [measured([0, 1, 5], "b")]
    assert study.with_former(again, [measured([1, 5], "a")]) == again  # all of it anew


def test_a_mean_of_seeds_that_nothing_else_is_known_of_is_not_joined(study):
    former = measured([0, 1], "a")
    del former["by_seed"]
    with pytest.raises(SystemExit, match="the mean alone is known"):
        study.with_former([measured([2], "b")], [former])


def test_every_row_names_the_commits_that_measured_it(study, tmp_path):
    def measured_at(commit, seed, method):
        return Record(
            "cifar10", method, seed, experiment="long-tail", preset="v1", condition="ratio=0.1",
            accuracy=0.9, nll=0.5, ece=0.01, aurc=0.005, versions={"commit": commit},
            time=f"2026-01-0{seed + 1}",
        )  # fmt: skip

    records = [
        measured_at("old", 0, "attention"),
        measured_at("new", 1, "attention"),
        measured_at("old", 0, "uniform"),
    ]
    _, content = judged(study, records, tmp_path)
    commits = {row["method"]: row["commit"] for row in content["results"]}
    assert commits == {"attention": "old, new", "uniform": "old"}


def test_other_settings_have_a_file_and_bars_of_their_own(study, tmp_path):
    records = rows("main", "attention+tta", [0.945]) + rows("main", "attention", [0.94])
    default, _ = judged(study, records, tmp_path)
    wide, _ = judged(study, records, tmp_path, "95")
    name = "main: attention+tta, accuracy"
    assert default[name]["met"] and not wide[name]["met"]
    with pytest.raises(SystemExit):
        study.main(["--set", "embedder=fast-cnn-wide"])


def test_theory_has_a_row_per_quantity(study, tmp_path):
    at = {"experiment": "theory", "preset": "v1", "condition": "collapse"}
    records = [
        Record("cifar10", "attention", seed, **at, details={"purity": p, "accuracy": 0.9})
        for seed, p in enumerate((0.95, 0.97))
    ]
    _, content = judged(study, records, tmp_path)
    shown = {row["place"]: row["value"] for row in content["results"]}
    assert shown["neighbors of a test row that agree"].startswith("0.960")
    assert shown["accuracy of their vote"].startswith("0.900")
    assert {row["experiment"] for row in content["results"]} == {"theory"}
    assert content["results"][0]["seeds"] == [0, 1]


def test_the_network_under_the_classifiers_prior_stands_in_the_summary_of_long_tails(
    study, tmp_path
):
    whole = rows("long-tail", "attention+uniform-prior", [0.8, 0.82], condition="ratio=0.01")
    name = "attention+uniform-prior:base-alone"
    half = rows(
        "long-tail", name, [0.7, 0.72], condition="ratio=0.01", part_of="attention+uniform-prior"
    )
    _, content = judged(study, [*half, *whole], tmp_path)
    accuracies = {row["method"]: row["accuracy"] for row in content["results"]}
    assert accuracies == {"attention+uniform-prior": 0.81, name: 0.71}


def test_weightings_are_compared_by_table_and_every_seed_is_kept(
    load_benchmark, tmp_path, monkeypatch
):
    weights = load_benchmark("weights")
    families = [f"family{at}" for at in range(20)]
    index = "\n".join(["name,rows,columns,classes,categories", *(f"{f},9,2,2,0" for f in families)])
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "INDEX.csv").write_text(index)
    met = set(weights.family_split(tmp_path / "tables")["train"])
    for at, table in enumerate(families):
        at_place = {"experiment": "weights", "preset": "v1", "condition": "without=base"}
        places = [(table, s, m) for s in (101, 102) for m in ("uniform", "attention")]
        records = [
            Record(
                table, method, seed, **at_place, accuracy=0.9, ece=0.0, aurc=0.0,
                nll=0.5 - 0.01 * at * (method == "attention"),
            )
            for table, seed, method in places
        ]  # fmt: skip
        begun = Record(table, "uniform", 101, experiment="weights", condition="with=base", nll=1.0)
        append_lines(tmp_path / "runs" / "clean" / table, [asdict(r) for r in (*records, begun)])
    monkeypatch.setattr(weights, "HERE", tmp_path)
    monkeypatch.setattr(weights, "RESULTS", tmp_path / "results")
    options = ["record", "--runs", str(tmp_path / "runs"), "--data-root", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["weights.py", *options])
    weights.main()
    content = json.loads((tmp_path / "results" / "weights_tables.json").read_text())
    every, new = content["results"]  # and nothing of what attention has not finished
    assert (every["n_tables"], every["n_draws"]) == (20, 40)
    assert new["n_tables"] == 20 - len(met) and new["families"] == "not met by the head"
    ends = [every["nll"][end] for end in ("mean", "low", "high")]
    assert ends == pytest.approx([-0.095, -0.12269, -0.06731], abs=1e-4)  # t of 20 tables
    assert every["nll"]["verdict"] == "better"
    assert every["accuracy"]["verdict"] == "none"
    assert every["share_of_tables_with_lower_nll"] == 0.95
    first = next(row for row in content["runs"] if row["table"] == "family3")
    assert first["nll"] == {"101": 0.5, "102": 0.5}


def test_tables_of_pages_are_those_of_their_records(load_benchmark, tmp_path):
    tables_page = load_benchmark("tables_page")
    assert len(tables_page.PAGES) >= 2
    shown = set()
    for page in tables_page.PAGES:
        copy = tmp_path / "page.md"
        copy.write_bytes(page.read_bytes())
        tables_page.write_blocks(copy)
        assert copy.read_text("utf-8") == page.read_text("utf-8"), page.name
        shown |= {name for name in tables_page.BLOCKS if f"<!-- {name}:start" in copy.read_text()}
    assert shown == tables_page.BLOCKS.keys()
