"""The suite's report: complete, self-contained, the same every time, and made without the rest."""

import base64
import csv
import io
import re
import shutil
from collections import Counter

import numpy as np
import pypdf
import pytest
from matplotlib.image import imread
from nearwise_lab.experiments import RecordsError, read_records
from nearwise_lab.report import FORMATS, render_report
from nearwise_lab.report.study import Place, Study
from nearwise_lab.report.study.parts import seed_words
from nearwise_lab.report.study.published import REPORTED
from nearwise_lab.report.study.tables import experiment_table, published_table, uniform_table
from nearwise_lab.report.tables import to_latex
from nearwise_lab.results.gallery import make_page_gallery
from nearwise_lab.results.measures import mean_with_interval
from records import CLASSES, SKILL, gallery, read_json, row, write

pytestmark = pytest.mark.slow  # runs of the study, half a minute and more

FILES = ("report.html", "report.pdf", "results.md", "results.tex", "results.csv", "results.json")


@pytest.fixture(scope="module")
def study(rendered):
    return Study(read_records(rendered), rendered)


@pytest.fixture(scope="module")
def page(rendered):
    return (rendered / "report.html").read_text(encoding="utf-8")


def test_all_forms_are_written(rendered):
    assert all((rendered / name).stat().st_size > 500 for name in FILES)


def test_the_page_needs_no_network_and_ids_are_unique(page):
    markup, _, script = page.partition("<script>")
    addresses = re.findall(r'(?:src|href|url\()\s*=?\s*["\']?([^"\')\s>]+)', markup)
    assert addresses
    assert all(a.startswith(("data:", "#")) for a in addresses)
    assert not re.search(r"<script|fetch|XMLHttp|import\(|http", script)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_page_shows_every_part(page):
    for part in (
        "what became of the claims", "reported accuracy", "with these defects", "Here: knn loss",
        "neighbors of a row agree", "difference from uniform k-NN", "reliability",
        "risk and coverage", "training of attention", "attention: confusion", "map of the memory",
        "Where attention (v0.5) was wrong", "k-sweep (n = 120 train, 60 test), seeds 0, 1",
        "symmetric label noise in the memory only", "long-tail", "long-tail in the memory only",
        "at ratio 0.1 (memory)", "error of the vote",
        "what each part does", "purity against accuracy", "Efficiency of search", "a test",
        "what the two halves of attention add", "1 row failed: ValueError: &lt;it&gt; broke.",
        "Not run for v1 on toys: k-sweep",
    ):  # fmt: skip
        assert part in page, part
    assert "<it>" not in page


def test_the_title_says_data_set_n_and_seeds(study):
    heading = study.heading("toys", study.main("toys", "v0.5"), "v0.5")
    assert heading == "toys, v0.5 (n = 120 train, 60 test), seeds 0, 1"
    assert [seed_words(s) for s in ([3], [2, 0, 1], [0, 4])] == [
        "seed 3",
        "seeds 0-2",
        "seeds 0, 4",
    ]


def test_tables_hold_every_method_and_the_right_numbers(study):
    table = experiment_table(study, "toys", "main", "v0.5")
    assert [name for name, _ in table.rows] == list(SKILL)
    values = [r.nll for r in study.records if r.preset == "v0.5" and r.method == "uniform"
              and r.experiment == "main"]  # fmt: skip
    mean = mean_with_interval(values)
    cells = dict(table.rows)["uniform"]
    place = table.columns.index("NLL") - 1
    assert cells[place].text == f"{mean.mean:.4f} ± {mean.half:.4f}"
    ours = experiment_table(study, "toys", "main", "v1")
    assert "null mass" in ours.columns
    sweep = experiment_table(study, "toys", "k-sweep", "v0.5")
    assert [name for name, _ in sweep.rows][:2] == ["k = 1: uniform", "k = 1: attention"]


def test_differences_are_taken_from_uniform(study):
    table = uniform_table(study, "toys", "v0.5")
    names = [name for name, _ in table.rows]
    assert names == [m for m in SKILL if m != "uniform"]
    results = study.main("toys", "v0.5")
    found = results.paired("toys", "attention", "uniform", "accuracy")
    assert table.rows[names.index("attention")][1][0].text.startswith(f"{found.mean:+.4f}")


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


def test_latex_is_escaped(rendered, study):
    text = (rendered / "results.tex").read_text(encoding="utf-8")
    assert r"\toprule" in text
    for line in text.splitlines():
        assert not re.search(r"(?<!\\)[%#_^]", line.replace(r"\textasciicircum{}", "")), line
    table = published_table(study, "toys")
    assert "<" not in to_latex(table).replace("textless", "")


def test_the_csv_and_the_json_say_the_same(rendered, study):
    rows = list(csv.DictReader(io.StringIO((rendered / "results.csv").read_text(encoding="utf-8"))))
    assert {r["kind"] for r in rows} == {"mean", "difference", "claim", "reported"}
    one = next(
        r for r in rows
        if (r["kind"], r["preset"], r["experiment"], r["method"], r["measure"])
        == ("mean", "v0.5", "main", "attention", "ece")
    )  # fmt: skip
    assert float(one["mean"]) == study.main("toys", "v0.5").mean("toys", "attention", "ece").mean
    stored = read_json(rendered / "results.json")
    assert len(stored["rows"]) == len(rows)
    assert {c["preset"] for c in stored["claims"]} == {"v0.5", "v1"}
    assert stored["failed"][0]["reason"] == "ValueError: <it> broke."
    halves = {r["reference"] for r in rows if r["preset"] == "v1"}
    assert {"uniform", "attention:base-alone", "attention:neighbors-alone"} <= halves


def test_a_replay_does_not_ask_for_weights_of_the_classifier(rendered):
    text = (rendered / "results.md").read_text(encoding="utf-8")
    for sentence in re.findall(r"Not run for v0\.5[^.]*", text):
        assert "weights" not in sentence
    assert "Not run for v1 on toys: k-sweep" in text


def test_the_same_records_give_the_same_bytes_and_stay_as_they_are(rendered):
    before = {name: (rendered / name).read_bytes() for name in (*FILES, "records.jsonl")}
    render_report(rendered)
    for name, data in before.items():
        assert (rendered / name).read_bytes() == data, name


def test_the_pdf_has_pages_and_text(rendered):
    pages = pypdf.PdfReader(rendered / "report.pdf").pages
    assert len(pages) > 10
    text = "\n".join(page.extract_text() for page in pages)
    for part in (
        "the study replayed",
        "claim",
        "attention+tta",
        "continued",
        "How this was measured",
    ):
        assert part in text, part


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
    assert "No predictions lie beside these records" in html
    assert "No sample of the memory was kept" in html


def test_efficiency_alone_gives_a_report(tmp_path, study):
    records = [r for r in study.records if r.experiment == "efficiency"]
    html = render_report(write(tmp_path, records), formats=["html"]).read_text(encoding="utf-8")
    assert "Efficiency of search" in html


def test_a_single_row_and_only_failures_give_a_report(tmp_path, study):
    html = render_report(write(tmp_path / "a", [row("uniform")]), formats=["html"]).read_text()
    assert "toys, v0.5: main" in html
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
    assert numbers == [0.1, 1.0]
    assert Place("ablation", "v1", "without=mixup").label == "without mixup"


@pytest.mark.parametrize("shape", [(4, 4, 3), (4, 4, 1), (4, 4)])
def test_uint8_images_are_shown_as_they_are(shape):
    stored = gallery(shape)
    (example,) = make_page_gallery("toys", "attention", 0, stored).wrong
    pixels = imread(io.BytesIO(base64.b64decode(example.row.image.partition(",")[2])))
    times = pixels.shape[0] // 4
    given = np.asarray(stored["rows"][0]["row"]).reshape(4, 4, -1)
    shown = np.round(255 * pixels[::times, ::times, :3])
    assert np.abs(shown - given).max() <= 1
    assert example.true == CLASSES[0]


@pytest.mark.slow
def test_a_comparison_can_be_a_pdf_too(compared, tmp_path):
    shutil.copytree(compared, tmp_path / "c")
    before = sorted(p.name for p in (tmp_path / "c").iterdir())
    render_report(tmp_path / "c", formats=FORMATS)
    assert (tmp_path / "c" / "report.pdf").read_bytes().startswith(b"%PDF")
    render_report(tmp_path / "c")
    after = {p.name for p in (tmp_path / "c").iterdir()}
    assert after - set(before) <= {*FILES, "figures"}
    forms = Counter(p.suffix for p in (tmp_path / "c" / "figures").iterdir())
    assert set(forms) == {".pdf", ".svg", ".png"}
    assert len(set(forms.values())) == 1
