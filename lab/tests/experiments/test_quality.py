"""The quality benchmark judges what the records say."""

import json
import re
import subprocess
import sys

import pytest
from fakes import attention, bayes, blobs
from nearwise_lab.experiments import Record, compare
from nearwise_lab.report.summary import Results

from nearwise.safe_files import plain


@pytest.fixture
def quality(load_benchmark):
    return load_benchmark("quality")


def rows(method, nll, accuracy=0.9):
    return [
        Record("letter", method, seed, nll=nll + 0.01 * seed, accuracy=accuracy, ece=0.02)
        for seed in range(3)
    ]


def test_a_missed_bar_says_by_how_much(quality):
    results = Results(rows("attention", 0.30, accuracy=0.85))
    judged = quality.judge(results, "letter", quality.Bar(accuracy=0.9, nll=0.5), [])
    assert judged["checks"]["nll"]["met"] is True
    assert judged["checks"]["nll"]["missed_by"] == 0
    assert judged["checks"]["accuracy"]["met"] is False
    assert judged["checks"]["accuracy"]["missed_by"] == pytest.approx(0.05)


def test_a_bar_without_rows_is_neither_met_nor_missed(quality):
    judged = quality.judge(Results(rows("mlp", 0.3)), "letter", quality.Bar(nll=0.5), ["mlp"])
    assert judged["checks"]["nll"] == {
        "wanted": 0.5, "reached": None, "met": None, "missed_by": None,
    }  # fmt: skip


def test_every_peer_must_be_beaten_beyond_chance(quality):
    equal = [Record("letter", "hgb", s, nll=0.30 + 0.02 * (1 - s)) for s in range(3)]
    results = Results([*rows("attention", 0.30), *rows("mlp", 0.35), *equal])
    judged = quality.judge(results, "letter", quality.BARS["letter"], ["mlp", "hgb", "catboost"])
    assert judged["beats_peers"] == {"met": False, "not_beaten": ["hgb", "catboost"]}
    assert judged["nll_minus_peer"]["mlp"]["verdict"] == "lower"


def test_peers_count_on_our_seeds_only(quality):
    ours = [r for r in rows("attention", 0.3) if r.seed < 2]
    judged = quality.judge(
        Results([*ours, *rows("mlp", 0.2)]), "letter", quality.BARS["letter"], ["mlp"]
    )
    assert judged["seeds"] == [0, 1]
    assert judged["means"]["mlp"]["nll"]["mean"] == pytest.approx(0.205)


def test_the_rank_counts_data_sets_and_seeds_that_every_method_has(quality):
    lonely = [Record("digits", "attention", 0, nll=0.1)]
    partly = [r for r in rows("hgb", 0.1) if r.seed < 2]
    results = Results([*rows("attention", 0.3), *rows("mlp", 0.2), *partly, *lonely])
    ranks = quality.ranks(results, ["attention", "mlp", "hgb", "catboost"])
    assert ranks["mean_nll_rank"] == {"hgb": 1, "mlp": 2, "attention": 3}
    assert ranks["datasets"] == {"letter": [0, 1]}
    assert ranks["left_out"] == ["digits"]
    assert ranks["absent"] == ["catboost"]
    assert quality.ranks(results, ["catboost"])["met"] is False
    assert ranks["met"] is False


def test_judging_writes_json_and_page_from_the_records_alone(quality, tmp_path, monkeypatch):
    monkeypatch.setitem(quality.BARS, "blobs", quality.Bar(0.5, 0.001, beats_peers=True))
    methods = [attention(), bayes("mlp")]
    compare([blobs()], methods, range(3), tmp_path / "rows", progress=False)
    results = tmp_path / "bench" / "results"
    results.mkdir(parents=True)
    (results / "other.json").write_text(
        json.dumps({"command": "python other.py", "results": [{"task": "a | b", "ratio": 0.5}]})
    )
    quality.main(
        ["--judge-only", "--quiet", "--datasets", "blobs", "--out", str(tmp_path / "rows"),
         "--results", str(results)]
    )  # fmt: skip
    summary = json.loads((results / "quality.json").read_text())
    assert len(summary["rows"]) == 12
    assert summary["datasets"]["blobs"]["checks"]["nll"]["met"] is False
    page = (tmp_path / "bench" / "RESULTS.md").read_text()
    assert "missed by" in page
    assert "| attention:neighbors-alone |" in page
    assert "a \\| b" in page


@pytest.fixture
def commit(tmp_path):
    """Commits a file to a new repository in `tmp_path`, and gives the commit."""

    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git("add", "-A")
        git("commit", "-qm", name)
        return git("rev-parse", "HEAD")

    git("init", "-q")
    return commit


def test_the_page_ages_the_rows_of_a_file_by_each_of_their_commits(quality, tmp_path, commit):
    first = commit("src/nearwise/nn/a.py", "1")[:10]
    second = commit("src/nearwise/nn/a.py", "2")[:10]
    third = commit("src/nearwise/nn/a.py", "3")[:10]
    content = {
        "versions": {"commit": third},
        "results": [{"commit": f"{second}, {third}"}, {"commit": f"unknown, {first}"}, {"a": 1}],
    }
    results = tmp_path / "benchmarks" / "results"
    commit("benchmarks/results/several.json", json.dumps(content))
    (text,) = sys.modules["results_page"].age_part(results)
    found = [row.split(" | ") for row in text.splitlines() if row.startswith("| several |")]
    assert [(row[1], *row[3:]) for row in found] == [
        (first, "2", "1 of 3 |"),  # later commits, rows
        (second, "1", "1 of 3 |"),
        (third, "0", "1 of 3 |"),
        ("unknown", "", "2 of 3 |"),
    ]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"versions": {"commit": "a+"}}, [{"a"}]),
        ({"versions": [{"commit": "a"}, {}]}, [{"a"}, {"unknown"}]),
        ({"digits": {"versions": {"commit": "a"}}, "wine": {"versions": {}}}, [{"a"}, {"unknown"}]),
        ({"commit": "b", "results": {"1": {"commit": "a"}, "2": {}}}, [{"a"}, {"b"}]),
        ({"versions": {"commit": "a"}, "runs": [{"versions": {"commit": "a, b"}}]}, [{"a", "b"}]),
        ({"commit": "a; the script is at b", "rows": [1]}, [{"a"}]),
        ({"rows": [{"nll": 1}]}, []),
    ],
)
def test_rows_and_parts_name_their_commits(quality, content, parts):
    assert sys.modules["results_page"]._parts(content) == parts


def test_the_page_says_which_results_are_older_than_their_code(quality, tmp_path, commit):
    results = tmp_path / "benchmarks" / "results"
    page = tmp_path / "RESULTS.md"
    first = commit("src/nearwise/estimators/a.py", "1")
    commit("src/nearwise/estimators/a.py", "2")
    named = {"command": "it.py", "versions": {"commit": first[:10]}, "results": []}
    commit("benchmarks/results/named.json", json.dumps(named))
    last = commit("benchmarks/results/silent.json", json.dumps({"results": []}))
    commit("src/nearwise/nn/b.py", "1")
    commit("lab/src/nearwise_lab/c.py", "1")  # no part of what they measure
    sys.modules["results_page"].write_page(results, page)
    lines = [line for line in page.read_text().splitlines() if line.startswith(("| na", "| si"))]
    assert lines[0].startswith(f"| named | {first[:10]} |")
    assert lines[0].endswith("| 2 | 1 of 1 |")
    assert lines[1].startswith(f"| silent | {last[:10]} |")
    assert lines[1].endswith("| 1 | recorded |")


def test_the_page_shows_lists_intervals_and_seeds(quality):
    page = sys.modules["results_page"]
    difference = {"mean": -7e-15, "low": -1.5, "high": 1.25, "n": 2, "verdict": "none"}
    content = {
        "command": "it.py",
        "table": [
            {
                "arm": "knn",
                "top1": {"0": 0.5, "1": 0.75},
                "difference": difference,
                "range": [1, 2],
            },
            {"arm": "dense", "top1": {"0": 0.25, "1": 0.25}, "note": None},
        ],
        "parts": {"a": {"nll": {"mean": 0.25, "half": 0.125}}, "runs": [{"seed": 0}]},
    }
    text = page.other_part("some_thing", content)
    assert "**table**" in text
    assert "| knn | 0.625 (0.5 to 0.75) | 0 [-1.5, 1.25] none | 1, 2 |" in text
    assert "| dense | 0.25 (0.25 to 0.25) |" in text
    assert "| parts / a | 0.25 ± 0.125 |" in text
    assert "seed" not in text  # single runs are left out


@pytest.mark.parametrize(
    "content",
    [
        {"rows": [{"measure": "lines", "measured": 12}]},
        {"repeats": 8, "records": [{"measure": "lines", "measured": 12}]},
        {"trees": 3, "rows": {"lines": {"measured": 12}}},
    ],
    ids=["runs alone", "runs beside facts", "results named rows"],
)
def test_no_file_gives_a_section_without_its_results(quality, content):
    text = sys.modules["results_page"].other_part("house", {"command": "it.py", **content})
    assert "lines | 12 |" in text


def test_the_summary_is_one_row_per_data_set_between_the_marks_of_its_page(quality, tmp_path):
    page = sys.modules["results_page"]
    found = quality.judge(
        Results([*rows("attention", 0.3), *rows("mlp", 0.2), *rows("hgb", 0.4)]),
        "letter",
        quality.BARS["letter"],
        ["mlp", "hgb"],
    )
    ranks = {"mean_nll_rank": {"mlp": 1.0, "attention": 2.0}, "datasets": {"letter": [0]}}
    summary = {"command": "python it.py", "datasets": {"letter": found}, "ranks": ranks}
    (tmp_path / "quality.json").write_text(json.dumps(plain(summary)))
    written = tmp_path / "results.md"
    written.write_text(f"before {page.MARKS[0]} old {page.MARKS[1]} after")
    page.write_summary(tmp_path, written)
    text = written.read_text()
    assert text.startswith("before ") and text.endswith(" after") and " old " not in text
    assert "| letter | 3 | 0.9000" in text and "(mlp)" in text
    assert "Mean NLL rank over 1 of them: mlp 1.00, attention 2.00." in text
    written.write_text("no marks")
    with pytest.raises(SystemExit, match="results:start"):
        page.write_summary(tmp_path, written)
    assert written.read_text() == "no marks"


def test_the_documented_table_is_that_of_the_record(quality):
    page = sys.modules["results_page"]
    text = (page.HERE.parent / "docs/results/summary.md").read_text(encoding="utf-8")
    block = text.partition(page.MARKS[0])[2].partition(page.MARKS[1])[0]
    record = json.loads((page.HERE / "results" / "quality.json").read_text(encoding="utf-8"))
    assert block.strip().splitlines() == page.summary_part(record)


def test_the_page_of_results_is_that_of_the_records_but_for_their_ages(quality, tmp_path):
    page = sys.modules["results_page"]
    written = page.write_page(page.HERE / "results", tmp_path / "page.md")
    now, kept = (
        re.sub(r"(?s)## How old.*?(?=\n## )", "", path.read_text(encoding="utf-8"))
        for path in (written, page.HERE / "RESULTS.md")
    )
    assert now == kept, "Run python benchmarks/results_page.py."


def test_the_best_peer_is_shown_where_it_has_fewer_seeds(quality):
    found = [*rows("attention", 0.3), *rows("mlp", 0.2), *rows("hgb", 0.1)[:2]]
    judged = quality.judge(Results(found), "letter", quality.BARS["letter"], ["mlp", "hgb"])
    ranks = {"mean_nll_rank": {}, "datasets": {}}
    summary = plain({"command": "it.py", "datasets": {"letter": judged}, "ranks": ranks})
    (row,) = [r for r in sys.modules["results_page"].summary_part(summary) if "| letter |" in r]
    assert "(hgb, seeds: 2) |" in row


def test_the_summary_gives_the_rank_on_data_sets_that_the_mean_rank_leaves_out(quality):
    page = sys.modules["results_page"]
    everyone = [*rows("attention", 0.3), *rows("mlp", 0.2), *rows("hgb", 0.4)]
    fewer = [*rows("attention", 0.3), *rows("hgb", 0.2)]
    judged = {
        name: quality.judge(Results(found), "letter", quality.BARS["letter"], ["mlp", "hgb"])
        for name, found in (("letter", everyone), ("adult", fewer))
    }
    ranks = {
        "mean_nll_rank": {"mlp": 1.0, "attention": 2.0, "hgb": 3.0},
        "datasets": {"letter": [0]},
        "left_out": ["adult"],
    }
    summary = plain({"command": "it.py", "datasets": judged, "ranks": ranks})
    lines = page.summary_part(summary)
    assert (
        "Left out: adult, where attention has rank 2 of 2 (not on all of its seeds: mlp)." in lines
    )


def test_a_margin_is_paired_over_the_seeds_that_both_have(quality):
    results = Results([*rows("attention", 0.3), *rows("mlp", 0.4)[:2]])
    ratio = quality.Margin("mlp", "nll", ratio=0.8)
    found = quality.check_margin(results, "letter", "attention", ratio)
    assert found["reached"]["n"] == 2 and found["met"]
    assert found["reached"]["mean"] == pytest.approx(0.75, abs=0.02)
    above = quality.Margin("mlp", "accuracy", above=0.1)
    missed = quality.check_margin(results, "letter", "attention", above)
    assert not missed["met"] and missed["missed_by"] == pytest.approx(0.1)
    absent = quality.Margin("hgb", "nll", ratio=0.8)
    assert quality.check_margin(results, "letter", "attention", absent)["met"] is None


def test_the_command_names_no_folder(quality):
    options = quality.parse(["--data-root", "/some/where", "--out", "x", "--datasets", "digits"])
    assert quality.own_command(options) == "python benchmarks/quality.py --datasets digits"


def test_unknown_names_are_refused(quality, capsys):
    with pytest.raises(SystemExit):
        quality.parse(["--datasets", "nope"])
    assert "no bar for nope" in capsys.readouterr().err
    with pytest.raises(ValueError, match="unknown method"):
        quality.parse(["--methods", "nope"])


def test_one_method_is_measured_again_beside_rows_that_are_kept(quality, tmp_path, monkeypatch):
    run = compare([blobs()], [attention("attention")], [0], tmp_path, progress=False)
    name = run[0].dataset
    old = [
        {"dataset": name, "method": method, "seed": 0, "nll": 9.0}
        for method in ("attention", "mlp")
    ]
    former = {"rows": old, "versions": [{"nearwise": "0"}], "hardware": []}
    monkeypatch.setitem(quality.BARS, name, quality.Bar())
    summary = quality.summarize(tmp_path, [name], ["mlp"], "command", former)
    found = {row["method"]: row["nll"] for row in summary["rows"]}
    assert found["mlp"] == 9.0
    assert found["attention"] < 9.0
    assert {"nearwise": "0"} in summary["versions"]
