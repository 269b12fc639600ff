"""What a row holds that the model reads as something else is said to whoever sent the row."""

import warnings

import numpy as np
import pandas as pd
import pytest

from nearwise.estimators import AttnKNNClassifier
from nearwise.serve.service import Ask
from nearwise.warn import RowsWarning
from tests.serve.conftest import problem

GOOD = {"age": 1.0, "income": 0.5, "town": "Rome"}
GAPS = {"age": None, "income": None, "town": None}
ODD = [
    pytest.param({**GOOD, "town": "Atlantis"}, "Categories that were not", id="unknown category"),
    pytest.param({**GOOD, "town": "rome"}, "Categories that were not", id="other case"),
    pytest.param({**GOOD, "town": True}, "Categories that were not", id="true for a category"),
    pytest.param({**GOOD, "age": None}, "Missing values in columns", id="a new gap"),
    pytest.param({**GOOD, "age": ""}, "Missing values in columns", id="text read as a gap"),
    pytest.param({**GOOD, "town": None}, "Missing values in columns", id="a new gap of categories"),
    pytest.param({**GOOD, "age": True}, "True or false in columns", id="true for a number"),
    pytest.param({**GOOD, "income": False}, "True or false in columns", id="false for a number"),
    pytest.param(GAPS, "Rows without any known value", id="nothing but nulls"),
]


def tensors(row):
    """The row as the Open Inference Protocol has it."""
    kinds = {bool: "BOOL", str: "BYTES", type(None): "FP64", float: "FP64"}
    return [
        {
            "name": name,
            "shape": [1],
            "datatype": "BYTES" if name == "town" else kinds[type(value)],
            "data": [str(value) if name == "town" and value is not None else value],
        }
        for name, value in row.items()
    ]


def said_by_the_model(model, row):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.predict(pd.DataFrame([row]))
    assert all(issubclass(one.category, RowsWarning) for one in said)
    return [str(one.message) for one in said]


@pytest.mark.parametrize(("row", "says"), ODD)
def test_every_answer_says_what_python_says_of_a_row(client, model, row, says):
    wanted = said_by_the_model(model, row)
    assert any(says in one for one in wanted)
    for path, more in (
        ("/predict", {}),
        ("/explain", {}),
        ("/rows", {"labels": ["yes"]}),
        ("/feedback", {"labels": ["yes"]}),
    ):
        found = client.post(path, json={"rows": [row]} | more)
        assert found.status_code in (200, 201), found.text
        assert found.json()["warnings"] == wanted, path
    found = client.post("/v2/models/table/infer", json={"inputs": tensors(row)})
    assert found.status_code == 200, found.text
    assert says in found.json()["parameters"]["warnings"]


def test_of_a_row_as_the_model_knows_them_nothing_is_said(client):
    found = client.post("/predict", json={"rows": [GOOD]}).json()
    assert found["warnings"] == []
    protocol = client.post("/v2/models/table/infer", json={"inputs": tensors(GOOD)}).json()
    assert set(protocol["parameters"]) == {"memory_version"}


def test_the_page_shows_what_was_read_as_something_else(client):
    part = client.post("/page/ask/answer", json={"c0": "", "c1": "1", "c2": "0"}).text
    assert "Missing values in columns that had none in training: age (1)" in part
    part = client.post("/page/ask/answer", json={}).text
    assert "Rows without any known value" in part


def test_the_log_is_not_filled_with_what_clients_send(client, recwarn):
    form = {"c0": "", "c1": "", "c2": ""}
    for path in ("/page/ask/answer", "/page/map/query"):
        assert client.post(path, json=form).status_code == 200
    client.post("/predict", json={"rows": [GAPS]})
    client.post("/rows", json={"rows": [GAPS], "labels": ["yes"]})
    client.post("/page/review/queue", json={})
    assert [one for one in recwarn if issubclass(one.category, RowsWarning)] == []


def test_values_of_a_column_that_had_none_are_told_to_be_ignored(asked, tmp_path):
    table = pd.DataFrame({"size": np.arange(40.0) % 7, "empty": [None] * 40})
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(table, ["a", "b"] * 20).save(tmp_path / "m")
    with asked(tmp_path / "m") as client:
        answer = client.post("/predict", json={"rows": [{"size": 3, "empty": 5}]})
    (said,) = answer.json()["warnings"]
    assert "that had none in training: empty (1)" in said


def test_a_client_reads_only_of_its_own_rows(asked, saved):
    """Requests that wait are answered together; what is said of one is not said to the others."""
    with asked(saved / "arrays") as client:
        lane = client.service.predictions
        X = client.service.live.model._fitted.rows[:3].copy()
        X[1, 2] = np.nan
        requests = [(Ask(), lambda _, row=row: row[None], lambda found: found) for row in X]
        found = lane._work(requests)
        assert [bool(one.warnings) for one in found] == [False, True, False]


def test_truth_values_are_as_they_were_where_the_model_learned_from_them(asked, tmp_path):
    frame = pd.DataFrame({"flag": np.arange(60) % 2 == 0, "size": np.arange(60.0)})
    model = AttnKNNClassifier(preset="instant", random_state=0)
    model.fit(frame, np.where(frame["flag"], "a", "b")).save(tmp_path / "flags.model")
    with asked(tmp_path / "flags.model") as client:
        for row in ({"flag": True, "size": 3.0}, {"flag": None, "size": 3.0}):
            found = client.post("/predict", json={"rows": [row]}).json()
            assert not any("True or false" in one for one in found["warnings"])
        found = client.post("/predict", json={"rows": [{"flag": True, "size": False}]}).json()
        assert "size (1)" in found["warnings"][0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", '{"rows": [{"age": 1, "income": 1, "town": "Rome", "age": 2}]}'),
        ("/predict", '{"rows": [{"age": 1, "income": 1, "town": "Rome", "\\u0061ge": 2}]}'),
        ("/predict", '{"rows": [{"age": 1, "income": 1, "town": "Rome"}], "rows": []}'),
        ("/explain", '{"n_neighbors": 1, "rows": [], "n_neighbors": 2}'),
        ("/rows", '{"labels": ["no"], "rows": [{"age": 1, "age": 1}], "labels": ["yes"]}'),
        ("/issues/1", '{"action": "keep", "action": "remove"}'),
        ("/v2/models/table/infer", '{"inputs": [], "inputs": []}'),
        ("/page/ask/answer", '{"c0": "1", "c0": "2"}'),
    ],
)
def test_a_name_that_is_given_twice_is_refused(client, path, body):
    sent = {"content-type": "application/json"}
    assert "twice" in problem(client.post(path, content=body, headers=sent), 422)
    assert client.get("/changes").json()["changes"] == []


def test_what_a_row_lacks_is_told_without_columns_that_nobody_needs(asked, tmp_path):
    n = 60
    frame = pd.DataFrame({"RowNumber": np.arange(n), "age": np.arange(n) % 7, "size": 1.5})
    frame["size"] += np.arange(n) % 5
    model = AttnKNNClassifier(preset="instant", random_state=0)
    model.fit(frame, np.where(np.arange(n) % 2, "a", "b")).save(tmp_path / "ids.model")
    assert model.report_.columns["RowNumber"] == "left out"
    with asked(tmp_path / "ids.model") as client:
        for row in ({"age": 1}, {"age": 1, "sise": 2}):
            said = problem(client.post("/predict", json={"rows": [row]}), 422)
            assert "'size'" in said and "RowNumber" not in said
        row = {"age": 1, "size": 2.5}
        assert client.post("/predict", json={"rows": [row]}).json()["warnings"] == []
