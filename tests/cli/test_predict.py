"""``nearwise predict``: every row once, in order, in every format, with its neighbors if asked."""

import json

import numpy as np
import pandas as pd
import pytest

from nearwise import AttnKNNClassifier
from nearwise.html.numbers import cell


def test_one_prediction_a_row_is_the_class_of_the_largest_probability(nearwise, tables, trained):
    result = nearwise("predict", trained, tables / "new.csv")
    assert result.exit_code == 0
    alone = result.table()
    assert list(alone.columns) == ["prediction"] and len(alone) == 20
    table = nearwise("predict", trained, tables / "new.csv", "--proba").table()
    assert (table["prediction"] == alone["prediction"]).all()
    proba = table[["proba_no", "proba_yes"]]
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-6)
    largest = proba.idxmax(axis=1).str.removeprefix("proba_")
    assert (largest == table["prediction"]).all()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_formats_hold_the_same_values(nearwise, tables, trained, tmp_path, suffix):
    out = tmp_path / f"p.{suffix}"
    assert nearwise("predict", trained, tables / "new.csv", "-o", out, "--proba").exit_code == 0
    readers = {"csv": pd.read_csv, "tsv": lambda p: pd.read_csv(p, sep="\t")}
    table = readers.get(suffix, pd.read_parquet)(out)
    expected = nearwise("predict", trained, tables / "new.csv", "--proba").table()
    pd.testing.assert_frame_equal(table, expected, check_dtype=False, rtol=1e-6)


def test_columns_are_matched_by_name_in_any_order(nearwise, tables, trained, tmp_path):
    frame = pd.read_csv(tables / "new.csv")
    frame[list(reversed(frame.columns))].to_csv(tmp_path / "r.csv", index=False)
    shuffled = nearwise("predict", trained, tmp_path / "r.csv", "--proba").out
    assert shuffled == nearwise("predict", trained, tables / "new.csv", "--proba").out


def test_extra_columns_are_ignored_with_a_note_and_kept_ones_without(nearwise, tables, trained):
    noted = nearwise("predict", trained, tables / "new.csv")
    assert "'row'" in noted.err
    kept = nearwise("predict", trained, tables / "new.csv", "--copy", "row")
    assert "note" not in kept.err
    assert list(kept.table().columns) == ["row", "prediction"]
    assert list(kept.table()["row"]) == [f"r2-{i}" for i in range(20)]


def test_explain_adds_the_weightiest_neighbors_as_columns(nearwise, tables, trained):
    train = pd.read_csv(tables / "train.csv")
    ask = ("predict", trained, tables / "new.csv")
    table = nearwise(*ask, "--explain", "--neighbors", "3").table()
    assert (table["prediction"] == nearwise(*ask).table()["prediction"]).all()
    names = ("id", "label", "weight", "distance", "differs")
    fields = [f"neighbor_{i}_{name}" for i in (1, 2, 3) for name in names]
    assert list(table.columns) == [
        "prediction",
        "base_proba",
        "neighbor_proba",
        "null_mass",
        *fields,
    ]
    assert (table["neighbor_1_weight"] >= table["neighbor_2_weight"]).all()
    labels = train["label"].iloc[table["neighbor_1_id"]]
    assert list(labels) == list(table["neighbor_1_label"])
    model = AttnKNNClassifier.load(trained)
    X = pd.read_csv(tables / "new.csv")[list(model.feature_names_in_)]
    for line, one in zip(table.to_dict("records"), model.explain(X, 3), strict=True):
        best = one.proba.argmax()
        assert line["base_proba"] == pytest.approx(one.base_proba[best], abs=1e-6)
        assert line["neighbor_proba"] == pytest.approx(one.neighbor_proba[best], abs=1e-6)
        for i, neighbor in enumerate(one.neighbors):
            for part in line[f"neighbor_{i + 1}_differs"].split("), "):
                name, value = part.split(" ")[:2]
                assert value in (cell(neighbor.row[name]), "(here")


def test_explain_as_json_lines_shows_rows_and_what_would_be_without_them(
    nearwise, tables, trained, tmp_path
):
    out = tmp_path / "why.jsonl"
    result = nearwise(
        "predict", trained, tables / "new.csv", "-o", out, "--explain", "--neighbors", "0"
    )
    assert result.exit_code == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == 20
    first = records[0]
    halves = {"base_proba", "neighbor_proba"}
    assert set(first) == {"prediction", "proba", "null_mass", "neighbors"} | halves
    assert sum(first["proba"].values()) == pytest.approx(1, abs=1e-6)
    neighbor = first["neighbors"][0]
    assert set(neighbor["row"]) == {"width", "height", "color"}
    assert sum(neighbor["proba_without"].values()) == pytest.approx(1, abs=1e-6)
    weights = [n["weight"] for n in first["neighbors"]]
    assert weights == sorted(weights, reverse=True)
