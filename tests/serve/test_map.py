"""The map: where rows lie, their colors, and what is told of some of them."""

import csv
import io

import numpy as np
import pandas as pd
import pytest

from nearwise import AttnKNNClassifier, AttnKNNRegressor, review
from nearwise.estimators import memory_map
from nearwise.estimators.column_profile import ColumnProfile, short
from nearwise.estimators.inputs.columns import ColumnWarning
from nearwise.estimators.map_values import MapValues, column_values, prediction_values
from nearwise.estimators.memory_map import rounded
from tests.serve.conftest import json_rows, problem
from tests.serve.test_page import question


def fitted(X, y):
    return AttnKNNClassifier(preset="instant", estimator=None, random_state=0).fit(X, y)


def values(client, by, column=None):
    given = {"by": by} | ({} if column is None else {"column": column})
    return client.get("/map/values", params=given).json()


@pytest.fixture(scope="module")
def mixed():
    """A table with each kind of column."""
    rng = np.random.default_rng(0)
    n = 120
    y = np.arange(n) % 2
    frame = pd.DataFrame(
        {
            "size": y * 3 + rng.normal(size=n),
            "town": np.where(y == 1, rng.choice(["Rome", "Oslo"], n), "Lima"),
            "day": pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(n), "D")),
            "code": [f"n{i}" for i in range(n)],
        }
    )
    frame["day"] = frame["day"].dt.strftime("%Y-%m-%d")
    frame.loc[:9, "size"] = np.nan
    with pytest.warns(ColumnWarning, match="code"):
        return fitted(frame, np.array(["no", "yes"])[y]).fitted_, frame


# --- layout ---------------------------------------------------------------------------------------


def test_the_layout_names_each_label_once(client, model):
    found = client.get("/map").json()
    labels = [found["classes"][at] for at in found["label"]]
    assert labels == model._fitted.labels_at().tolist()
    assert len(found["x"]) == len(found["y"]) == len(found["id"]) == len(labels)


def test_points_are_written_to_a_ten_thousandth_of_the_extent():
    points = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    for scale in (1e-6, 1.0, 1e6):
        scaled = points * np.float32(scale)
        found = rounded(scaled)
        assert np.abs(found - scaled).max() <= 1e-4 * np.ptp(scaled)
        assert max(len(f"{value:g}") for value in found.ravel().tolist()) < 14
    np.testing.assert_array_equal(rounded(np.zeros((3, 2))), 0)


def test_keys_of_one_number_lie_on_a_line_and_equal_ones_on_a_point():
    y = np.arange(60) % 2
    model = fitted(np.arange(60.0)[:, None], y).fitted_
    line, keys = memory_map.memory_map(model), model.bank.keys["features"].numpy()
    np.testing.assert_allclose(line.points[:, 0], keys[:, 0] - keys.mean(), atol=1e-6)
    assert line.points[:, 0].any() and not line.points[:, 1].any()
    np.testing.assert_array_equal(line.project(keys[:3]), line.points[:3])
    assert line.explained_variance.tolist() == [1, 0]
    for method in memory_map.METHODS:
        point = memory_map.memory_map(fitted(np.ones((60, 3)), y).fitted_, method)
        assert not point.points.any() and not point.explained_variance.any()


def test_of_a_large_memory_a_part_is_drawn_and_its_colors_are_of_the_same_rows(client, monkeypatch):
    monkeypatch.setattr(memory_map, "MOST_ROWS", 20)
    found = client.get("/map").json()
    assert len(found["id"]) == 20 and found["id"] == sorted(found["id"])
    assert found["n_remembered"] == client.service.live.now.fitted.n_remembered > 20
    town = values(client, "column", "town")
    for row, code in zip(found["id"], town["values"], strict=True):
        assert client.get(f"/rows/{row}").json()["row"]["town"] == town["categories"][code]
    assert len(values(client, "doubt")["values"]) == 20


def test_a_new_row_lies_where_an_equal_one_does_and_its_neighbors_are_named(client, model):
    found = client.get("/map").json()
    row = int(model.memory_.ids[5])
    placed = client.post("/page/map/query", json=question(client, row)).json()
    at = found["id"].index(row)
    assert (placed["x"], placed["y"]) == pytest.approx((found["x"][at], found["y"][at]), abs=1e-3)
    _, near = model.kneighbors(None, 8)
    assert placed["neighbors"] == near[5].tolist()


# --- colors ---------------------------------------------------------------------------------------


def test_the_change_with_which_a_row_came_is_missing_for_the_fit(client):
    added = client.post(
        "/rows", json={"rows": [{"age": 1, "income": 2, "town": "Rome"}], "labels": ["yes"]}
    ).json()
    found = values(client, "change")
    came = dict(zip(client.get("/map").json()["id"], found["values"], strict=True))
    assert came.pop(added["ids"][0]) == 1 and set(came.values()) == {None}
    assert found["missing"] == "came with the fit" and found["memory_version"] == 1


def test_doubt_and_predictions_are_those_of_the_review(client, model):
    ids = client.get("/map").json()["id"]
    issues = review(client.service.live.model).issues().set_index("id").loc[ids]
    found = values(client, "doubt")
    assert found["values"] == pytest.approx(issues["suspicion"].tolist(), abs=1e-5)
    assert found["ends"] == [0, 1]
    right = values(client, "right")
    wrong = (issues["given"] != issues["suggested"]).tolist()
    assert right["categories"] == ["right", "wrong"]
    assert right["values"] == [int(one) for one in wrong]
    sure = values(client, "confidence")["values"]
    assert sure == pytest.approx(issues["proba_suggested"].tolist(), abs=1e-5)


def test_with_a_noise_model_predictions_know_nothing_of_the_rows_own_label():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = y[:, None] * 2 + rng.normal(size=(200, 3))
    y[:15] = 1 - y[:15]
    model = AttnKNNClassifier(cv=3, estimator=None, label_noise=0.1, random_state=0).fit(X, y)
    issues, proba = review(model).issues(), model.predict_proba(None)
    sure = prediction_values(model.fitted_, "confidence", issues)
    np.testing.assert_allclose(sure.values, proba.max(axis=1), atol=1e-5)
    suggested = issues.set_index("id").loc[model.memory_.ids.tolist(), "proba_suggested"]
    assert np.abs(suggested - sure.values).max() > 0.01  # those know the given labels
    right = prediction_values(model.fitted_, "right", issues)
    np.testing.assert_array_equal(right.values, proba.argmax(axis=1) != y)


def test_errors_and_widths_of_numbers_are_those_of_the_review(asked, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    model = AttnKNNRegressor(preset="instant", estimator=None, random_state=0)
    model.fit(X, X[:, 0] * 10).save(tmp_path / "m")
    issues = review(model).issues().set_index("id").sort_index()
    with asked(tmp_path / "m") as client:
        gaps = (issues["given"] - issues["suggested"]).abs()
        assert values(client, "error")["values"] == pytest.approx(gaps.tolist(), rel=1e-5)
        widths = issues["high"] - issues["low"]
        assert values(client, "width")["values"] == pytest.approx(widths.tolist(), rel=1e-5)
        assert "predicts numbers" in problem(client.get("/map/values?by=right"), 422)


def test_rows_that_trained_the_model_have_no_value(asked, tmp_path, monkeypatch):
    from nearwise.estimators.model.class_predictor import ClassPredictor

    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    fitted(X, y).save(tmp_path / "m")
    with asked(tmp_path / "m") as client:
        part = client.service.live.now.fitted.predictor.judged.clone()
        part[:10] = False
        monkeypatch.setattr(ClassPredictor, "judged", property(lambda self: part))
        for by in ("doubt", "right", "confidence"):
            found = values(client, by)
            assert found["values"][:10] == [None] * 10 and None not in found["values"][10:]
            assert found["missing"] == "not predicted without its label"


def test_columns_are_numbers_dates_or_categories(mixed):
    model, frame = mixed
    every = np.arange(len(frame))
    size = column_values(model, "size", every)
    assert size.kind == "number"
    np.testing.assert_array_equal(size.values, frame["size"])
    town = column_values(model, "town", every)
    assert [town.categories[int(code)] for code in town.values] == frame["town"].tolist()
    counts = frame["town"].value_counts()
    assert list(town.categories) == counts.index.tolist()  # most frequent first
    day = column_values(model, "day", every[5:])
    assert day.kind == "date"
    np.testing.assert_array_equal(day.values[:2], [18_267, 18_268])  # of 2020-01-06
    code = column_values(model, "code", every[:3])  # left out of the model
    assert sorted(code.categories) == ["n0", "n1", "n2"]
    with pytest.raises(ValueError, match="no column 'x'"):
        column_values(model, "x", every)


def test_rare_categories_of_a_column_are_joined(monkeypatch, mixed):
    monkeypatch.setattr("nearwise.estimators.map_values._MOST_CATEGORIES", 2)
    found = column_values(mixed[0], "code", np.arange(5))
    assert len(found.categories) == 3 and found.categories[-1] == "other values"
    assert sorted(found.values) == [0, 1, 2, 2, 2]


def test_a_missing_value_is_null_and_others_are_short():
    found = MapValues("number", np.array([1 / 3, np.nan, 1e300])).to_json()
    assert found["values"] == [0.333333, None, 1e300]
    assert MapValues("category", np.array([np.nan, 1.0])).to_json()["values"] == [None, 1]


def test_what_is_no_coloring_is_refused(client):
    for path in ("?by=x", "?by=column", "?by=doubt&column=age", "?by=column&column=x", "?by=error"):
        problem(client.get(f"/map/values{path}"), 422)


# --- some rows ------------------------------------------------------------------------------------


def test_columns_in_which_rows_differ_most_come_first(mixed):
    model, frame = mixed
    profile = ColumnProfile.of(model)
    late = np.arange(100, 120)
    first = profile.against_the_rest(late)[0]
    assert first.column == "day" and first.here.startswith("2020-04") and first.size > 1
    romans = np.flatnonzero(frame["town"] == "Rome")
    first = profile.against_the_rest(romans)[0]
    assert (first.column, first.here, first.elsewhere) == ("town = Rome", "100 %", "0 %")
    large = np.flatnonzero(frame["size"] > 3)
    (size,) = [one for one in profile.against_the_rest(large, 9) if one.column == "size"]
    means = frame["size"][large].mean(), frame["size"].drop(large).mean()
    assert (size.here, size.elsewhere) == tuple(map(short, means))


def test_all_rows_none_and_equal_rows_differ_in_nothing(mixed):
    profile = ColumnProfile.of(mixed[0])
    for rows in (np.arange(120), np.arange(0)):
        assert profile.against_the_rest(rows) == []
    flat = ColumnProfile.of(fitted(np.ones((40, 2)), np.arange(40) % 2).fitted_)
    assert flat.against_the_rest(np.arange(5)) == []
    assert [value for _, value in flat.of_row(0)] == ["1", "1"]


def test_the_tip_has_what_is_unusual_of_a_row(client, asked, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 5))
    X[7, 3] = 40
    fitted(X, np.arange(60) % 2).save(tmp_path / "m")
    with asked(tmp_path / "m") as arrays:
        tip = arrays.get("/page/map/tip/7").json()
        assert tip["columns"][0][1] == "40" and len(tip["columns"]) == 3
        assert (tip["id"], tip["label"], tip["picture"]) == (7, 1, None)
    problem(client.get("/page/map/tip/123456"), 404)


def test_numbers_are_short():
    shown = [2019, 63.27184, 123456.7, 0.000012345, -1.5, 4e12]
    assert [short(one) for one in shown] == [
        "2019", "63.27", "123500", "1.234e-05", "-1.5", "4e+12",
    ]  # fmt: skip


def test_rows_removed_since_are_left_out_of_list_comparison_and_file(client, model):
    row = int(model.memory_.ids[5])
    gone = int(model.memory_.ids[6])
    client.delete(f"/rows/{gone}")
    body = {"ids": f"{row},{gone},99999,x"}
    listed = client.post("/page/map/rows", json=body).text
    assert "1 row<" in listed and f'"ask?row={row}"' in listed
    assert client.post("/page/map/columns", json=body).json()["differences"]
    (found,) = csv.DictReader(io.StringIO(client.post("/page/map/export", json=body).text))
    known = client.get(f"/rows/{row}").json()
    assert int(found["id"]) == row and found["label"] == known["label"]
    assert float(found["age"]) == pytest.approx(known["row"]["age"])
    assert found["town"] == known["row"]["town"]


def test_a_file_of_a_selection_keeps_a_column_named_as_its_own(asked, tmp_path):
    frame, _ = json_rows(60)
    frame = frame.assign(label=np.arange(60.0))
    y = np.where(np.arange(60) % 2, "a, b", 'c "d"')
    fitted(frame, y).save(tmp_path / "m")
    with asked(tmp_path / "m") as client:
        text = client.post("/page/map/export", json={"ids": "3,1"}).text
    head, *rows = csv.reader(io.StringIO(text))
    assert head[:2] == ["id", "label"] and head.count("label") == 2
    assert [row[:2] for row in rows] == [["3", "a, b"], ["1", "a, b"]]
    assert rows[0][-1] == "3.0"
