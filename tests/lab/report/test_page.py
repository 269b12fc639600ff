"""The page: self-contained, complete, well formed, made from the folder alone."""

import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from nearwise.lab.experiments import RecordsError, read_records
from nearwise.lab.report import demo as demo_module
from nearwise.lab.report import render_report
from nearwise.report.drawing import Picture, canvas, page_style, to_svg
from nearwise.report.figures import reliability_diagrams, risk_coverage, training_curves
from nearwise.report.gallery import make_page_gallery, png_uri
from nearwise.report.predictions import Predictions

VOID = {"meta", "img", "br", "hr", "input", "link", "col"}


class Checker(HTMLParser):
    """Collect tags, ids and texts; note tags that are not closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.ids, self.attributes, self.text = [], [], [], [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page(compared):
    return render_report(compared).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def checked(page):
    return Checker(page)


def test_the_page_needs_no_network(page):
    addresses = re.findall(r'(?:src|href|url\()\s*=?\s*["\']?([^"\')\s>]+)', page)
    assert addresses
    assert all(a.startswith(("data:", "#")) for a in addresses)
    assert "<script" not in page
    assert "@import" not in page


def test_the_page_is_well_formed_and_ids_are_unique(checked):
    assert len(checked.ids) == len(set(checked.ids))
    assert checked.tags.count("h1") == 1


def test_everything_has_a_text_for_those_who_cannot_see_it(checked):
    for tag, attributes in checked.attributes:
        if tag == "img":
            assert attributes["alt"]
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
    assert ("html", {"lang": "en"}) in checked.attributes


def test_names_are_escaped(page):
    assert "bayes &lt;1&gt;" in page
    assert "<1>" not in page
    assert "more &amp; less" in page


def test_the_page_shows_all_parts(checked):
    text = " ".join(checked.text)
    for part in (
        "Results", "Difference from attention", "What the neighbors add",
        "Do the probabilities mean what they say?", "Answer only when sure", "Training",
        "Where attention was", "failed", "this method never works", "How this was measured",
        "a test", "95 % t-interval",
    ):  # fmt: skip
        assert part in text, part
    assert checked.tags.count("svg") == 2 * 4


def test_tables_lie_beside_the_page(compared, page):
    for name in ("results.md", "results.tex", "results.csv"):
        assert "attention" in (compared / name).read_text()
    assert json.loads((compared / "results.json").read_text())["reference"] == "attention"


def test_the_page_is_the_same_every_time_and_changes_no_record(compared, page):
    before = (compared / "records.jsonl").read_bytes()
    assert render_report(compared).read_text(encoding="utf-8") == page
    assert (compared / "records.jsonl").read_bytes() == before


def test_records_alone_are_enough(compared, tmp_path):
    shutil.copy(compared / "records.jsonl", tmp_path)
    html = render_report(tmp_path, title="Only records").read_text(encoding="utf-8")
    assert "Only records" in html
    assert "Do the probabilities" not in html
    Checker(html)


def test_a_folder_without_records_says_what_to_do(tmp_path):
    with pytest.raises(RecordsError, match="Pass a folder written by"):
        render_report(tmp_path)


def test_only_failures_still_give_a_page(tmp_path):
    from fakes import blobs, broken

    from nearwise.lab.experiments import compare

    compare([blobs()], [broken()], [0], tmp_path, progress=False)
    html = render_report(tmp_path).read_text(encoding="utf-8")
    assert "this method never works" in html


def test_one_seed_is_compared_by_rows(one_seed):
    html = render_report(one_seed).read_text(encoding="utf-8")
    assert "paired by test row" in html


def test_the_demo_prints_its_table_and_its_page(tmp_path, capsys, monkeypatch):
    from fakes import attention, bayes

    monkeypatch.setattr(demo_module, "DEMO_METHODS", (bayes(), attention()))
    page = demo_module.run_demo(tmp_path / "demo", seed=1)
    printed = capsys.readouterr().out
    assert "neighbors alone" in printed
    assert page.name in printed.replace("\n", "")
    assert "data:image/png;base64," in page.read_text(encoding="utf-8")
    demo_module.run_demo(tmp_path / "demo", seed=1, progress=False)
    assert capsys.readouterr().out == ""
    assert len(read_records(tmp_path / "demo")) == 4


def test_a_figure_follows_the_page_s_colors_and_gives_the_same_text():
    def draw():
        with page_style():
            figure, axes = canvas(2, 2)
            axes[0][0].plot([0, 1], [0, 1])
            axes[0][0].set_title("a & b")
        return to_svg(figure, "x", 'alt "text" <here>')

    svg = draw()
    assert svg == draw()
    assert "var(--ink)" in svg
    assert "#010203" not in svg
    assert "DejaVu" not in svg
    assert "alt &quot;text&quot; &lt;here&gt;" in svg
    Checker(svg)


def test_figures_of_a_perfect_and_of_a_tiny_method():
    y = np.array([0, 1])
    sure = Predictions(y, np.eye(2)[y], np.arange(2), ["a", "b"])
    for picture in (
        reliability_diagrams("d", {"m": sure}, "m"),
        risk_coverage("d", {"m": sure}, "m"),
    ):
        assert isinstance(picture, Picture)
        Checker(picture.svg)


def test_curves_without_epochs_are_no_picture():
    assert training_curves("d", "m", [{"stage": "base"}]) is None


def test_a_digit_becomes_a_small_png():
    uri = png_uri(np.arange(64.0).reshape(8, 8), 0, 63)
    assert uri.startswith("data:image/png;base64,iVBOR")
    assert len(uri) < 4000


def gallery_row(**values):
    row = {
        "why": "wrong", "test_row": 1, "true": "b", "predicted": "a", "proba": [0.7, 0.3],
        "null_mass": 0.1, "row": [0.0, 5.0, "x"],
        "neighbors": [
            {"id": 0, "label": "a", "distance": 0.5, "weight": 0.6, "row": [0.0, 4.0, None]},
            {"id": 9, "label": "b", "distance": 0.7, "weight": 0.2, "row": None},
        ],
    }  # fmt: skip
    return row | values


def test_a_table_gallery_shows_the_columns_that_differ():
    stored = {"image_shape": None, "columns": ["p", "q", "r"], "classes": ["a", "b"]}
    gallery = make_page_gallery("d", "m", 0, stored | {"rows": [gallery_row()]})
    (example,) = gallery.wrong
    assert gallery.columns == ["p", "q", "r"]
    assert example.true_probability == 0.3
    assert example.other_mass == pytest.approx(0.1)
    assert example.neighbors[0].row.values == ["0", "4", "missing"]
    assert example.neighbors[1].row.values == ["", "", ""]
    assert [n.agrees for n in example.neighbors] == [False, True]


def test_embeddings_are_shown_by_label_weight_and_distance():
    stored = {"image_shape": None, "columns": None, "classes": ["a", "b"], "kind": "embeddings"}
    gallery = make_page_gallery("d", "m", 0, stored | {"rows": [gallery_row()]})
    assert gallery.columns == []
    assert gallery.wrong[0].neighbors[0].weight == 0.6


def test_a_wide_table_is_cut_to_eight_columns():
    rows = [gallery_row(row=list(range(20)), neighbors=[]), gallery_row(row=[0] * 20, neighbors=[])]
    stored = {"image_shape": None, "columns": None, "classes": ["a", "b"], "rows": rows}
    gallery = make_page_gallery("d", "m", 0, stored)
    assert gallery.columns == [f"f{i}" for i in range(1, 9)]


def test_a_report_says_what_it_is_doing(compared):
    told = []
    render_report(compared, formats=["html", "csv"], progress=told.append)
    assert told == ["tables and figures", "results.csv", "report.html"]
