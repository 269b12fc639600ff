"""What notebooks show: complete, escaped, and of the numbers that the objects hold."""

import html
import pickle
import re

import numpy as np
import pandas as pd
import pytest

from nearwise import review
from nearwise.html import STYLE, Chart, environment, neighbor_table, picture
from nearwise.html.charts import up_to_a_tick
from nearwise.html.rendering import cell, percent
from tests.estimators.cases import CHEAP, attn_knn, blobs, fitted
from tests.store.folders import small_table

HOSTILE = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def model():
    frame, y = small_table(60)
    frame = frame.assign(note=np.where(np.arange(60) % 3 == 0, HOSTILE, "plain"))
    return attn_knn(**CHEAP).fit(frame, np.where(y == "yes", "yes & <b>", "no")), frame


def test_an_explanation_shows_what_it_holds_and_its_frame_too(model):
    classifier, frame = model
    (found,) = classifier.explain(frame[:1], 4)
    shown = found._repr_html_()
    for one in found.neighbors:
        assert f'<th scope="row">{one.id}</th>' in shown
        assert f"{one.distance:.3g}" in shown
    table = found.to_frame()
    assert table["id"].tolist() == [one.id for one in found.neighbors]
    assert table["town"].tolist() == [one.row["town"] for one in found.neighbors]
    assert found.row["town"] == frame["town"][0]


def test_cells_that_differ_are_marked_and_the_others_are_not(model):
    classifier, frame = model
    (found,) = classifier.explain(frame[:1], 8)
    table = environment().globals["neighbor_table"](found, found.row)
    for neighbor, cells in zip(found.neighbors, table.cells, strict=True):
        for name, (value, differs, _) in zip(table.columns, cells, strict=True):
            queried = found.row[name]
            same = value == queried or (pd.isna(value) and pd.isna(queried))
            assert differs is not same, (neighbor.id, name)


@pytest.fixture(scope="module")
def with_ids():
    """A model that leaves out the first and the third column, and its table."""
    frame, y = small_table(60)
    frame.insert(0, "RowNumber", np.arange(60))
    frame.insert(2, "CustomerId", 10_000 + np.arange(60))
    classifier = attn_knn(**CHEAP).fit(frame, y)
    kinds = classifier.report_.columns
    assert [name for name in kinds if kinds[name] == "left out"] == ["RowNumber", "CustomerId"]
    return classifier, frame


@pytest.mark.parametrize("with_shares", [False, True])
@pytest.mark.parametrize("given", ["as they are", "without them"])
def test_columns_that_the_model_does_not_use_come_last_and_are_never_marked(
    with_ids, with_shares, given
):
    classifier, frame = with_ids
    rows = frame[:1] if given == "as they are" else frame[:1].drop(columns=["RowNumber"])
    (found,) = classifier.explain(rows, 4)
    shares = None
    if with_shares:  # columns in the order of the neighbors' rows
        shares = np.tile([0.0, 0.1, 0.0, 0.3, 0.6], (4, 1))
    table = neighbor_table(found, found.row, shares)
    assert table.columns[3:] == ["RowNumber", "CustomerId"]
    assert table.unused == [False] * 3 + [True] * 2
    for cells in table.cells:
        assert [(differs, shade) for _, differs, shade in cells[3:]] == [(False, 0)] * 2
    if with_shares:
        assert table.columns[:3] == ["town", "income", "age"]
    shown = found._repr_html_()
    assert shown.count("(not used)") == 2 and shown.index(">age<") < shown.index(">RowNumber ")


def test_columns_that_differ_come_before_those_that_do_not(model):
    classifier, frame = model
    (found,) = classifier.explain(frame[:1], 8)
    table = neighbor_table(found, found.row)
    n_differing = [sum(cells[at][1] for cells in table.cells) for at in range(len(table.columns))]
    assert n_differing == sorted(n_differing, reverse=True)


def test_what_neighbors_hold_together_and_the_answer_without_each_are_shown(model):
    classifier, frame = model
    (found,) = classifier.explain(frame[:1], 4)
    shown = found._repr_html_()
    held = sum(one.weight for one in found.neighbors)
    assert f"These 4 neighbors have {percent(held)} of the attention" in shown
    assert f"others {percent(1 - held - found.null_mass)}" in shown
    best = found.proba.argmax()
    for one in found.neighbors:
        without = html.escape(percent(one.proba_without[best]))
        assert f'<td class="number">{without}</td>' in shown


def own_part(shown):
    """HTML of nearwise in the display of a model, without scikit-learn's diagram above it."""
    return shown[shown.index(f"<style>{STYLE}") :]


def shown_in_notebooks(classifier, rows):
    """HTML of everything that draws itself in a notebook."""
    return {
        "explanation": classifier.explain(rows[:1], 4)[0]._repr_html_(),
        "sets": classifier.predict_set(rows[:3])._repr_html_(),
        "trust": review(classifier).trust()._repr_html_(),
        "model": own_part(classifier._repr_mimebundle_()["text/html"]),
    }


def luminance(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return np.dot([0.2126, 0.7152, 0.0722], linear)


def test_colors_are_those_of_the_text_around_whatever_the_theme_of_the_system(model):
    for shown in shown_in_notebooks(*model).values():
        assert STYLE in shown and "prefers-color-scheme" not in shown
    color = re.search(r"[{;] color: ([^;]+);", STYLE)[1]
    assert color.endswith("inherit))")
    for fixed in re.findall(r"#[0-9a-f]{3,8}\b", STYLE):  # bars and lines
        for ground in ("#ffffff", "#111111"):
            low, high = sorted([luminance(fixed), luminance(ground)])
            assert (high + 0.05) / (low + 0.05) > 3, (fixed, ground)


def test_nothing_that_a_cell_or_label_holds_becomes_markup(model):
    classifier, frame = model
    (found,) = classifier.explain(frame[:1], 4)
    for shown in (
        found._repr_html_(),
        classifier.predict_set(frame[:3])._repr_html_(),
        own_part(classifier._repr_mimebundle_()["text/html"]),
    ):
        assert "<script>" not in shown and "<b>" not in shown
        assert html.escape("yes & <b>") in shown


def test_sets_are_an_array_that_knows_its_classes():
    X, y = blobs()
    model = fitted(X, y)
    sets = model.predict_set(X[:5])
    assert sets.dtype == bool and sets.shape == (5, len(model.classes_))
    assert sets.labels() == [model.classes_[np.asarray(one)].tolist() for one in sets]
    assert sets.to_frame()["size"].tolist() == np.asarray(sets).sum(axis=1).tolist()
    assert sets[:2].labels() == sets.labels()[:2]
    again = pickle.loads(pickle.dumps(sets))
    assert again.labels() == sets.labels()
    for computed in (sets.sum(axis=1), sets[:, ::-1], sets * 1, ~sets):
        with pytest.raises(ValueError, match="not an array of prediction sets"):
            computed.labels()


def test_gaps_of_every_kind_are_shown_as_gaps():
    frame, y = small_table(60)
    frame["count"] = pd.array([None if i % 5 == 0 else i % 7 for i in range(60)], dtype="Int64")
    frame["flag"] = pd.array([None if i % 6 == 0 else i % 2 == 0 for i in range(60)], "boolean")
    model = attn_knn(**CHEAP).fit(frame, y)
    shown = model.explain(frame[:1], 4)[0]._repr_html_()
    assert "<NA>" not in shown and "&lt;NA&gt;" not in shown


def test_a_fitted_model_shows_its_rows_and_an_unfitted_one_its_parameters():
    X, y = blobs()
    assert "AttnKNNClassifier" in attn_knn(**CHEAP)._repr_html_()
    model = fitted(X, y)
    shown = model._repr_html_()
    assert f"{len(model.memory_)} rows of {len(model.classes_)} classes" in shown
    assert shown.startswith(attn_knn(**CHEAP)._repr_html_()[:200]) and "sk-" in shown
    frame = review(model).rows()
    assert frame["id"].tolist() == model.memory_.ids.tolist()
    assert frame[model.fitted_.target_name].tolist() == y.tolist()
    np.testing.assert_array_equal(frame.iloc[:, 3:].to_numpy(), X)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0"), (0.0004, "<0.1"), (0.973, "97.3"), (0.9996, ">99.9"), (1.0, "100.0")],
)
def test_a_percentage_is_none_or_all_only_where_it_is(share, text):
    assert percent(share) == f"{text}\N{NO-BREAK SPACE}%"


def test_missing_cells_are_dashes():
    dash = "\N{EN DASH}"
    values = (None, float("nan"), 0.1, 3, "a")
    assert [cell(value) for value in values] == [dash, dash, "0.1", "3", "a"]


def test_a_chart_places_its_ends_at_the_edges_of_its_frame():
    chart = Chart("t", "x", "y", (0, 10), (2, 4))
    assert chart.at_x(0) == chart.left and chart.at_x(10) == chart.width - chart.right
    assert chart.at_y(2) == chart.height - chart.bottom and chart.at_y(4) == chart.top
    assert [text for _, text in chart.ticks("x")] == ["0", "2.5", "5", "7.5", "10"]
    assert len(chart.line(range(5000), range(5000)).split()) <= 400


@pytest.mark.parametrize("top", [1.0, 0.14, 0.01, 0.0123, 0.00031, 4000.0])
def test_ticks_leave_room_for_the_label_of_their_axis_and_reach_the_top(top):
    chart = Chart("t", "x", "y", (0, 1), (0, up_to_a_tick(top)))
    ticks = chart.ticks("y")
    assert ticks[-1][0] == pytest.approx(chart.y[1]) and chart.y[1] >= top
    longest = max(len(text) for _, text in ticks)
    assert chart.left - 6 - 6.7 * longest >= 13 + 4  # widest digits of 12 px; the label's half
    assert chart.left < 0.3 * chart.width


def test_tables_of_many_columns_scroll_by_themselves(model):
    for shown in (shown_in_notebooks(*model)[name] for name in ("trust", "explanation")):
        for at in (one.start() for one in re.finditer("<table", shown)):
            assert shown[:at].rstrip().endswith(">") and 'class="wide"' in shown[at - 120 : at]


def test_a_picture_is_the_pixels_that_were_given():
    import base64
    import io

    Image = pytest.importorskip("PIL.Image")
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    data = base64.b64decode(picture(pixels).partition(",")[2])
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), pixels)
