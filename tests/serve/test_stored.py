"""A service of a model whose memory is in a store."""

import re

import numpy as np
import pytest

from nearwise.estimators import AttnKNNClassifier, LiveModel, move_memory
from tests.serve.conftest import json_rows, problem

pytest.importorskip("lance")


@pytest.fixture
def moved(model, tmp_path):
    move_memory(model, tmp_path / "moved.model")
    return tmp_path / "moved.model"


@pytest.fixture
def client(asked, moved):
    with asked(moved) as client:
        yield client


def test_answers_are_those_of_the_model_that_was_moved(client, asked):
    _, rows = json_rows(6)
    body = {"rows": rows, "n_neighbors": 3}
    with asked() as before:
        for path in ("/predict", "/explain"):
            there = client.post(path, json=body if path == "/explain" else {"rows": rows})
            here = before.post(path, json=body if path == "/explain" else {"rows": rows})
            assert there.status_code == 200 and there.json() == here.json()


def test_changes_over_http_are_in_the_store(client, moved):
    _, rows = json_rows(3)
    added = client.post("/rows", json={"rows": rows, "labels": ["yes", "no", "yes"]})
    assert added.status_code == 201 and added.json()["memory_version"] == 1
    ids = added.json()["ids"]
    assert client.get(f"/rows/{ids[0]}").json()["label"] == "yes"
    assert client.patch(f"/rows/{ids[0]}", json={"label": "no"}).status_code == 200
    assert client.delete(f"/rows/{ids[1]}").status_code == 200
    problem(client.get(f"/rows/{ids[1]}"), 404)
    fed = client.post("/feedback", json={"rows": rows[:1], "labels": ["no"]})
    assert fed.status_code == 201 and client.get("/feedback").json()["rows"] == 1
    now = client.post("/predict", json={"rows": rows}).json()
    with LiveModel(moved) as other:
        assert [c.kind for c in other.history()] == ["add", "relabel", "remove", "feedback"]
        assert other.version == now["memory_version"] == 4
    kinds = [one["kind"] for one in client.get("/changes").json()["changes"]]
    assert sorted(kinds) == ["add", "feedback", "relabel", "remove"]


def test_what_needs_all_rows_is_refused_and_nothing_told_of_the_store(client, moved):
    of_map = ("/map", "/map/values?by=doubt", "/map/values?by=column&column=age")
    for path in ("/issues", *of_map):
        assert str(moved) not in problem(client.get(path), 422)
    assert str(moved) not in problem(client.post("/page/review/queue", json={}), 422)


def test_the_page_asks_about_a_row_without_itself_and_without_a_neighbor(client, moved):
    form = client.get("/page/ask/form?row=3").text
    assert 'value="3"' in form and client.get("/page/ask/form?draw=true").status_code == 200
    names = re.findall(r'name="(c\d+)"', form)
    values = dict.fromkeys(names, "") | {"remembered": "3"}
    shown = client.post("/page/ask/answer", json=values)
    assert shown.status_code == 200 and "Row 3 is remembered as" in shown.text
    near = re.findall(r'name="off" value="(\d+)"', shown.text)
    assert near and "3" not in near
    changed = client.post("/page/ask/answer", json=values | {"off": near[:2]})
    assert changed.status_code == 200 and "with these changes" in changed.text
    assert client.get("/page/trust/view").status_code == 200
    moved = AttnKNNClassifier.load(moved)
    assert moved.fitted_.n_remembered == client.service.live.model.fitted_.n_remembered
    assert np.isfinite(moved.predict_proba(moved._fitted.rows)).all()
