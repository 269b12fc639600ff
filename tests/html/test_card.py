"""Cards: what they say of an answer follows from its numbers."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nearwise.html import environment, make_card, neighbor_table
from nearwise.html.card import SURENESS, novelty_chips
from nearwise.html.numbers import percent, rounded_percent
from tests.estimators.cases import CHEAP, attn_knn, blobs, fitted
from tests.estimators.numbers.cases import fitted as fitted_numbers
from tests.estimators.numbers.cases import table
from tests.store.folders import small_table


@pytest.fixture(scope="module")
def explained():
    frame, y = small_table(90)
    classifier = attn_knn(**CHEAP).fit(frame[:70], y[:70])
    return classifier.explain(frame[70:], 5, trust=True)


def test_weights_no_neighbor_and_the_others_are_all_of_the_attention(explained):
    for e in explained:
        card = make_card(e)
        held = sum(one.weight for one in card.neighbors)
        assert held + card.null_mass + card.others == pytest.approx(1, abs=1e-5)
        assert [one.id for one in card.neighbors] == [one.id for one in e.neighbors]
        assert card.neighbors[0].bar == 1 and percent(e.null_mass) in card.attention


def test_a_headline_has_answer_sureness_and_set(explained):
    for e in explained:
        words = make_card(e).headline.split(" · ")
        assert words[0] == f"{e.target} = {e.label}"
        assert words[1].endswith(f"({rounded_percent(e.proba.max())})")
        names = ", ".join(map(str, e.prediction_set))
        assert words[2] == (f"set {{{names}}}" if names else "empty set")
        is_unusual = e.novelty_p_value <= 0.05
        assert is_unusual == any("unusual" in word for word in words[3:])


def test_an_agreeing_neighbor_has_the_label_of_the_answer_and_a_flip_another_one(explained):
    for e in explained:
        for shown, one in zip(make_card(e).neighbors, e.neighbors, strict=True):
            assert shown.agrees == (one.label == e.label)
            assert shown.flips == (one.proba_without.argmax() != e.proba.argmax())
            best = one.proba_without.argmax()
            assert percent(one.proba_without[best]) in shown.without
            assert shown.flips == (str(e.classes[best]) in shown.without)


def test_differences_are_cells_that_differ(explained):
    for e in explained:
        for shown, one in zip(make_card(e).neighbors, e.neighbors, strict=True):
            for name, theirs, own in shown.differs:
                assert theirs != own
                assert str(one.row[name])[:3] == theirs[:3] or one.row[name] != one.row[name]


def test_the_first_difference_is_the_largest_for_the_range_of_its_column():
    row = {"a": 0.0, "b": 100.0, "town": "Rome"}
    near = {"a": 1.0, "b": 101.0, "town": "Rome"}, {"a": 0.1, "b": 200.0, "town": "Oslo"}
    neighbors = [SimpleNamespace(row=one) for one in near]
    found = neighbor_table(SimpleNamespace(neighbors=neighbors, left_out=()), row)
    names = [[found.columns[at] for at in one] for one in found.telling]
    assert names[0] == ["a", "b"] and set(names[1][:2]) == {"b", "town"} and names[1][2] == "a"


def test_an_embedding_has_no_columns_to_compare():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 70)), np.arange(80) % 2
    found = fitted(X, y).explain(X[:2], 3)
    assert found.to_frame().columns.tolist()[-1] == "proba_without"
    for e in found:
        assert all(not one.differs for one in make_card(e).neighbors)
        assert neighbor_table(e, e.row).columns == [] and "x17" not in e._repr_html_()


def test_a_column_named_image_is_a_column_of_a_table():
    X = pd.DataFrame({"a": np.arange(40.0), "image": [f"https://a.org/{i}.png" for i in range(40)]})
    model = attn_knn(**CHEAP).fit(X, np.arange(40) // 20, show=X["image"])
    for e in model.explain(X[:2], 3):
        assert "<img" not in e._repr_html_() and "https://a.org/" in e._repr_html_()
        assert any(one.differs for one in make_card(e).neighbors)


def test_explanations_are_a_list_with_a_short_display_and_a_table(explained):
    some = explained[:3]
    assert isinstance(explained, list) and type(some) is type(explained)
    lines = repr(explained).splitlines()
    assert lines[0] == "<Explanations of 20 rows>" and lines[-1] == "  ... and 10 more"
    assert max(map(len, lines)) < 120 and repr(explained[0]) == f"<Explanation {lines[1][5:]}>"
    table = some.to_frame()
    assert table["row"].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert table["id"].tolist() == [one.id for e in some for one in e.neighbors]
    assert some._repr_html_().count('class="card"') == 3
    assert "The first 10 of 20" in explained._repr_html_()
    assert explained[:0].to_frame().empty


def test_a_column_named_row_keeps_its_values_beside_the_position():
    rng = np.random.default_rng(0)
    X, y = pd.DataFrame({"row": rng.normal(size=40), "b": rng.normal(size=40)}), np.arange(40) % 2
    found = fitted(X, y).explain(X[:2], 3).to_frame()
    assert found["row"].tolist() == [0] * 3 + [1] * 3
    assert found["row (column)"].tolist() == X["row"].to_numpy()[found["id"]].tolist()


def test_a_printed_explanation_is_a_line_per_neighbor(explained):
    lines = str(explained[0]).splitlines()
    assert lines[0] == explained[0].headline and len(lines) == 2 + 5 + 1
    for line, one in zip(lines[2:], explained[0].neighbors, strict=False):
        assert line.startswith(str(one.id)) and percent(one.weight) in line


@pytest.mark.parametrize(("least", "words", "_"), SURENESS)
def test_words_for_a_probability_begin_at_its_bound(least, words, _):
    (e,) = fitted(*blobs()).explain(blobs()[0][:1], 2)
    rest = (1 - least) / (len(e.classes) - 1)
    if rest <= least:  # the largest of the probabilities
        proba = np.full(len(e.classes), rest)
        proba[0] = least
        object.__setattr__(e, "proba", proba)
        assert make_card(e).chips[0].text.startswith(f"{words} (")


def test_a_row_is_unusual_up_to_a_p_value_of_a_twentieth():
    texts = [[chip.text for chip in novelty_chips(p)] for p in (0.01, 0.05, 0.051, None)]
    assert texts == [["very unusual row"], ["unusual row"], [], []]
    assert novelty_chips(float("nan")) == []


def test_a_card_of_a_number_has_its_interval_and_targets_inside_agree():
    for e in fitted_numbers().explain(table()[0][120:130], 4):
        card = make_card(e)
        assert card.claim.startswith(f"{e.target} = ") and " to " in card.chips[0].text
        for shown, one in zip(card.neighbors, e.neighbors, strict=True):
            assert shown.agrees == (e.interval[0] <= one.target <= e.interval[1])


def test_classes_below_half_a_percent_are_folded_but_few_classes_never(explained):
    parts = environment().get_template("parts.html").module
    assert str(parts.probabilities(explained[0])).count('<th scope="row">') == 2
    rng = np.random.default_rng(0)
    model = fitted(rng.normal(size=(300, 4)) + np.arange(300)[:, None] % 12, np.arange(300) % 12)
    (e,) = model.explain(np.zeros((1, 4)), 3)
    shown = str(parts.probabilities(e))
    rows = re.findall(r'<th scope="row"><span class="clamped" title="(\d+)"', shown)
    likely = {str(e.classes[at]) for at in np.flatnonzero(e.proba >= 0.005)}
    assert set(rows) <= likely | {str(e.label)} and len(rows) <= 10
    assert rows[0] == str(e.label)
