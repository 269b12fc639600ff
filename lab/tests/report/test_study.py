"""The suite's report: complete, the same every time, made from the records alone."""

import shutil

import pypdf
import pytest
from nearwise_lab.experiments import RecordsError, read_records
from nearwise_lab.experiments.places import Place
from nearwise_lab.report import FORMATS, render_report
from nearwise_lab.report.study import Study
from nearwise_lab.report.study_claims import CLAIMS
from nearwise_lab.report.study_report import published_table, study_document
from nearwise_lab.report.study_reported import REPORTED
from nearwise_lab.report.summary import seed_words
from nearwise_lab.results.measures import mean_with_interval

from lab.tests.report.pages import check_page
from lab.tests.report.records import SKILL, read_json, row, write

pytestmark = pytest.mark.slow  # runs of the study, half a minute and more

FILES = ("report.html", "report.pdf", "results.md", "results.tex", "results.csv", "results.json")


@pytest.fixture(scope="module")
def study(rendered):
    return Study(read_records(rendered), rendered)


def test_the_page_shows_every_part_and_every_row_that_was_run(rendered, study):
    page = (rendered / "report.html").read_text(encoding="utf-8")
    check_page(page)
    for part in (
        "what became of the claims", "reported accuracy", "with these defects", "Here: knn loss",
        "neighbors of a row agree", "difference from uniform", "reliability",
        "risk and coverage", "training of attention", "attention: confusion", "Map of the memory",
        "Where attention was wrong", "k-sweep (n = 120 train, 60 test), seeds 0, 1",
        "symmetric label noise in the memory only", "long-tail", "error of the vote",
        "long-tail in the memory only", "at ratio 0.1 (memory)",
        "what each part does", "Efficiency of search", "a test",
        "contributions of base and neighbors to attention",
        "1 row failed: ValueError: &lt;it&gt; broke.",
        "Not run for v1 on toys: weights-noise, weights-tail, k-sweep",
    ):  # fmt: skip
        assert part in page, part
    assert "<it>" not in page
    assert "Not run for v0.5 on toys" not in page  # "weights" is not asked of a replay
    for record in study.records:
        assert (record.method.partition(":")[2].replace("-", " ") or record.method) in page


def test_the_title_says_data_set_n_and_seeds(study):
    heading = study.main("toys", "v0.5").heading("toys", "toys, v0.5")
    assert heading == "toys, v0.5 (n = 120 train, 60 test), seeds 0, 1"
    words = [seed_words(s) for s in ([3], [2, 0, 1], [0, 4])]
    assert words == ["seed 3", "seeds 0-2", "seeds 0, 4"]


def test_tables_hold_every_method_and_the_right_numbers(study):
    tables = {t.title: t for t in study_document(study).tables()}
    table = tables["toys, v0.5: results"]
    assert {name for name, _ in table.rows} == set(SKILL)
    values = [r.nll for r in study.records if (r.preset, r.method, r.experiment)
              == ("v0.5", "uniform", "main")]  # fmt: skip
    mean = mean_with_interval(values)
    shown = dict(table.rows)["uniform"][table.columns.index("NLL") - 1]
    assert shown.text == f"{mean.mean:.4f} ± {mean.half:.4f}"
    assert "null mass" in tables["toys, v1: results"].columns
    sweep = tables["toys, v0.5: k-sweep"]
    assert [name for name, _ in sweep.rows][:2] == ["k = 1: uniform", "k = 1: attention"]
    rows = dict(tables["toys, v0.5: difference from uniform"].rows)
    assert set(rows) == set(SKILL) - {"uniform"}
    found = study.main("toys", "v0.5").paired("toys", "attention", "uniform", "accuracy")
    assert rows["attention"][0].text.startswith(f"{found.mean:+.4f}")


def test_the_study_s_numbers_stand_beside_the_replay(study):
    rows = dict(published_table(study, "toys").rows)
    reported = next(r for r in REPORTED if r.presets == ("v0.5",) and r.method == "uniform")
    assert [c.text for c in rows["v0.5: uniform"][:3]] == ["0.8682", "2.053", "0.1297"]
    assert reported.accuracy == 0.8682
    assert rows["v0.5: uniform"][4].text.startswith("1.5000")  # clipped as there
    assert [c.text for c in rows["v1: attention"][:3]] == ["-", "-", "-"]
    assert "v0.5: attention+k-ensemble" not in rows  # not run, and another data set


def test_ours_stands_only_beside_what_was_reported():
    records = [row("uniform"), row("uniform", preset="v1"), row("distance-tuned", preset="v1")]
    names = [name for name, _ in published_table(Study(records), "toys").rows]
    assert names == ["v0.5: uniform", "v1: uniform"]
    assert published_table(Study(records[1:]), "toys") is None


def test_everything_reported_has_its_source_row():
    assert len({(p, r.method) for r in REPORTED for p in r.presets}) == 24
    assert all(0.85 < r.accuracy < 0.96 and 0 < r.ece < 0.14 for r in REPORTED)


def test_numbers_and_verdicts_are_those_of_the_records(rendered, study):
    stored = read_json(rendered / "results.json")
    rows = stored["numbers"]
    assert {r["kind"] for r in rows} == {"mean", "difference", "reported"}
    one = next(
        r for r in rows
        if (r["kind"], r.get("preset"), r["experiment"], r["method"], r["measure"])
        == ("mean", "v0.5", "main", "attention", "ece")
    )  # fmt: skip
    assert one["mean"] == study.main("toys", "v0.5").mean("toys", "attention", "ece").mean
    assert len(stored["claims"]) == 2 * len(CLAIMS)
    assert stored["failed"][0]["reason"] == "ValueError: <it> broke."
    halves = {r.get("reference") for r in rows if r["preset"] == "v1"}
    assert {"uniform", "attention:base-alone", "attention:neighbors-alone"} <= halves
    assert sum(" claim," in f" {line}" for line in (rendered / "results.csv").open()) == 2 * len(
        CLAIMS
    )


def test_the_claim_tables_hold_every_claim_and_preset():
    records = [row("attention", preset=f"v0.{i}") for i in range(1, 7)]
    document = study_document(Study(records))
    tables = [t for t in document.tables() if "verdicts" in t.title]
    assert [len(t.columns) for t in tables] == [5, 3]
    assert all(len(t.rows) == len(CLAIMS) for t in tables)


def test_the_same_records_give_the_same_bytes_and_stay_as_they_are(rendered):
    before = {name: (rendered / name).read_bytes() for name in (*FILES, "records.jsonl")}
    assert all(len(data) > 500 for data in before.values())
    render_report(rendered, formats=FORMATS[:-1])
    for name, data in before.items():
        assert (rendered / name).read_bytes() == data, name


def test_the_pdf_has_pages_and_text_and_figures_are_files(rendered):
    pages = pypdf.PdfReader(rendered / "report.pdf").pages
    assert len(pages) > 10
    text = "\n".join(page.extract_text() for page in pages)
    for part in ("the study replayed", "claim", "attention+tta", "How this was measured"):
        assert part in text, part
    names = {p.name for p in (rendered / "figures").iterdir()}
    for form in ("pdf", "svg", "png"):
        assert f"map-toys-v0-5.{form}" in names
        assert f"error-toys-v0-5.{form}" in names


def test_only_what_is_asked_for_is_written(rendered, tmp_path):
    shutil.copy(rendered / "records.jsonl", tmp_path)
    assert render_report(tmp_path, formats=["csv"]) == tmp_path / "results.csv"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["records.jsonl", "results.csv"]
    with pytest.raises(ValueError, match=r"unknown format 'doc'\. Known: pdf, html"):
        render_report(tmp_path, formats=["doc"])


def test_records_alone_are_enough(rendered, tmp_path):
    shutil.copy(rendered / "records.jsonl", tmp_path)
    html = render_report(tmp_path, formats=["html"], title="Only <records>").read_text()
    assert "Only &lt;records&gt;" in html
    assert "predictions, so no diagrams" in html
    assert "sample of the memory, so no map" in html


def test_efficiency_alone_gives_a_report(tmp_path, study):
    records = [r for r in study.records if r.experiment == "efficiency"]
    html = render_report(write(tmp_path, records), formats=["html"]).read_text(encoding="utf-8")
    assert "Efficiency of search" in html


def test_a_single_row_and_only_failures_give_a_report(tmp_path, study):
    html = render_report(write(tmp_path / "a", [row("uniform")]), formats=["html"]).read_text()
    assert "toys, v0.5: results" in html
    failures = [r for r in study.records if r.status == "failed"]
    html = render_report(write(tmp_path / "b", failures), formats=["html", "pdf"]).read_text()
    assert "failed" in html


def test_a_folder_without_records_is_a_clear_error(tmp_path):
    with pytest.raises(RecordsError, match=r"no records\.jsonl"):
        render_report(tmp_path)
    write(tmp_path, [])
    with pytest.raises(ValueError, match="holds no finished rows yet"):
        render_report(tmp_path)


def test_places_are_in_the_order_of_what_was_varied(study):
    labels = [p.label for p in study.places("toys", "label-noise", "v0.5")]
    assert labels == ["0 %, everywhere", "30 % symmetric, everywhere", "0 %, memory",
                      "30 % symmetric, memory"]  # fmt: skip
    numbers = [p.number for p in study.places("toys", "long-tail", "v0.5")]
    assert numbers == [0.1, 1.0] * 2  # in the memory only, and everywhere
    assert Place("ablation", "v1", "without=mixup").label == "without mixup"
