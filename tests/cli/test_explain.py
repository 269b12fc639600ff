"""``nearwise explain`` shows an answer, its row and the neighbors behind it."""

import io

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from nearwise import AttnKNNClassifier
from nearwise.cli import card_view, console
from nearwise.cli.explaining import explain_remembered, explain_rows
from nearwise.cli.models import open_model
from nearwise.cli.tables import cut
from tests.estimators.cases import attn_knn
from tests.estimators.image_cases import QUICK, named_folder

HEADS = ["asked", "what", "id", "label", "weight", "without it", "note"]


def table_of(result):
    assert result.exit_code == 0, result.err
    assert "\x1b" not in result.out and "\xa0" not in result.out
    return pd.read_csv(io.StringIO(result.out), sep="\t", dtype={"asked": str})


def test_a_pipe_gets_one_table_of_rows_neighbors_and_the_rest(nearwise, tables, trained):
    found = table_of(nearwise("explain", trained, tables / "new.csv", "--rows", "0,3", "-n", "4"))
    assert found.columns.tolist()[:7] == HEADS
    assert {"width", "height", "color"} <= {*found.columns}
    model = AttnKNNClassifier.load(trained)
    X = pd.read_csv(tables / "new.csv")[list(model.feature_names_in_)]
    for asked, expected in zip(("0", "3"), model.explain(X.iloc[[0, 3]], 4), strict=True):
        own = found[found["asked"] == asked]
        assert own["what"].tolist() == [
            "row", *["neighbor"] * 4, "other neighbors", "no neighbor"
        ]  # fmt: skip
        assert own["id"].dropna().tolist() == [one.id for one in expected.neighbors]
        assert own["label"].iloc[0] == expected.label
        assert own["label"].iloc[1:5].tolist() == [one.label for one in expected.neighbors]
        assert own["weight"].sum() == pytest.approx(1, abs=0.001)
        assert "sure (" in own["note"].iloc[0] and "set {" in own["note"].iloc[0]
        assert own["width"].iloc[0] == pytest.approx(X["width"][int(asked)])


def test_the_first_five_rows_are_the_default(nearwise, tables, trained):
    found = table_of(nearwise("explain", trained, tables / "new.csv"))
    assert found["asked"].unique().tolist() == list("01234")


def test_a_remembered_row_is_left_out_of_its_own_neighbors(nearwise, tables, trained):
    found = table_of(nearwise("explain", trained, "--id", "17,3"))
    label = pd.read_csv(tables / "train.csv")["label"][17]
    own = found[found["asked"] == "17"]
    assert 17 not in own["id"].tolist() and f"remembered as {label}" in own["note"].iloc[0]
    assert found["asked"].unique().tolist() == ["17", "3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give a table or images as ROWS, or ids of rows in memory as --id. Neither is given."),
        (["NEW", "--id", "3"], "Give a table or images as ROWS"),
        (["NEW", "--id", "3"], "Both are given."),
        (["--id", "3", "--rows", "1"], "Give one"),
        (["--id", "99999"], "--id"),
        (["NEW", "--rows", "20"], "rows count from 0 to 19"),
        (["absent.csv"], "No file absent.csv"),
    ],
)
def test_wrong_requests_are_refused(nearwise, tables, trained, arguments, message):
    words = [tables / "new.csv" if word == "NEW" else word for word in arguments]
    result = nearwise("explain", trained, *words)
    assert result.exit_code == 2 and message in " ".join(result.err.split()) and not result.out


def drawn(found, width):
    """Cards as a terminal of some width shows them."""
    said = io.StringIO()
    terminal = Console(file=said, force_terminal=True, width=width, color_system=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "_console", lambda **_: terminal)
        console.show_cards(found)
    return said.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_card_fits_the_terminal(tables, trained, width):
    model = open_model(trained)
    X = pd.read_csv(tables / "new.csv")[list(model.feature_names_in_)]
    found = explain_rows(model, X[:1], {"0": "new.csv, row 0"}, 4)
    lines = drawn(found, width)
    assert lines[0] == "new.csv, row 0" and lines[1].startswith("label = ")
    assert all(len(line) <= width for line in lines)
    flat = " ".join(" ".join(lines).split())
    assert "━" in flat and "These 4 neighbors have" in flat and "no neighbor" in flat
    assert not any("…" in line for line in lines[:10])
    most = max(found[0].card.neighbors, key=lambda one: one.weight)
    assert sum(str(most.id) in line.split()[:1] for line in lines) == 1


def test_of_a_long_file_the_end_is_shown():
    assert cut("photos/of/animals/cat_17.png", 14) == "…ls/cat_17.png"
    assert cut("a sentence / that is long", 10) == "a sentenc…"


def test_columns_that_differ_are_marked(tables, trained):
    (one,) = explain_remembered(trained, [17], 3, None)
    for _, cells in card_view._extra_columns(one):
        query, *others = cells
        assert not query[1]
        assert all(differs == (text != query[0]) for text, differs in others)


def test_numbers_have_an_interval_and_their_target(nearwise, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=80), "kind": rng.choice(["a", "b"], 80)})
    frame["price"] = (10 * frame["x"] + rng.normal(size=80)).round(2)
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", tmp_path / "t.csv", "-t", "price", "-o", tmp_path / "m", "--preset", "instant")
    assert nearwise(*fit, "-q").exit_code == 0
    found = table_of(nearwise("explain", tmp_path / "m", tmp_path / "t.csv", "--rows", "2"))
    assert "price" in found and "(90 %)" in found["note"].iloc[0]
    assert {*found["price"].iloc[1:6]} <= {*frame["price"]}
    remembered = table_of(nearwise("explain", tmp_path / "m", "--id", "2", "-n", "3"))
    assert f"remembered as {frame['price'][2]}" in remembered["note"].iloc[0]


def test_images_are_named_by_their_files(nearwise, tmp_path):
    named_folder(tmp_path / "set", 80)
    attn_knn(**QUICK).fit(tmp_path / "set").save(tmp_path / "m")
    found = table_of(
        nearwise("explain", tmp_path / "m", tmp_path / "set", "--rows", "0", "-n", "3")
    )
    files = found["file"].dropna().tolist()
    assert len(files) == 3 and all((tmp_path / name).is_file() for name in files)
    assert all(
        name.split("/")[1] == label for name, label in zip(files, found["class"][1:4], strict=True)
    )
