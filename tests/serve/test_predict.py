"""Predictions over HTTP are the model's own, alone and joined, with all that can be asked."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from nearwise.estimators import LiveModel
from nearwise.serve import Service
from nearwise.serve.classes import answers
from nearwise.serve.service import Ask, Limits
from tests.estimators.cases import attn_knn
from tests.estimators.image_cases import BRIEF, patches
from tests.serve.conftest import json_rows, problem
from tests.store.folders import plain_model


def test_predictions_are_those_of_the_model(client, model):
    frame, rows = json_rows()
    found = client.post("/predict", json={"rows": rows}).json()
    proba = model.predict_proba(frame)
    assert found["memory_version"] == 0
    assert [one["label"] for one in found["predictions"]] == model.predict(frame).tolist()
    got = [[one["proba"][label] for label in ("no", "yes")] for one in found["predictions"]]
    np.testing.assert_allclose(got, proba, atol=1e-9)
    assert set(found["predictions"][0]) == {"label", "proba"}


def test_what_else_can_be_asked_is_what_the_model_says(client, model):
    frame, rows = json_rows(12)
    body = {"rows": rows, "confidence": 0.8, "novelty": True, "coverage": 0.7}
    found = client.post("/predict", json=body).json()
    sets = [model.classes_[row].tolist() for row in model.predict_set(frame, 0.8)]
    chosen = model.predict_selective(frame, coverage=0.7)
    answered = found["predictions"]
    assert [one["set"] for one in answered] == sets
    assert [one["accepted"] for one in answered] == chosen.accepted.tolist()
    np.testing.assert_allclose([one["novelty_p"] for one in answered], model.novelty_p_value(frame))
    assert found["selection"]["threshold"] == pytest.approx(chosen.threshold)
    assert found["selection"]["risk_bound"] == pytest.approx(chosen.risk_bound)


def test_explanations_show_the_neighbors(client, model):
    frame, rows = json_rows(3)
    found = client.post("/explain", json={"rows": rows, "n_neighbors": 4}).json()["predictions"]
    for got, wanted in zip(found, model.explain(frame, 4), strict=True):
        assert [n["id"] for n in got["neighbors"]] == [n.id for n in wanted.neighbors]
        np.testing.assert_allclose(
            [n["weight"] for n in got["neighbors"]], [n.weight for n in wanted.neighbors], atol=1e-6
        )
        assert set(got["neighbors"][0]["row"]) == {"age", "income", "town"}
        assert got["null_mass"] == pytest.approx(wanted.null_mass, abs=1e-6)


def test_embeddings_are_rows_of_numbers(asked, saved):
    model = plain_model()
    X = model._fitted.rows[:4]
    with asked(saved / "arrays") as client:
        found = client.post("/predict", json={"features": X.tolist()}).json()
        got = [list(one["proba"].values()) for one in found["predictions"]]
        np.testing.assert_allclose(got, model.predict_proba(X), atol=1e-6)
        assert "3 features" in problem(client.post("/predict", json={"features": [[1, 2, 3]]}), 422)
        assert "1 to 2" in problem(client.post("/predict", json={"features": [[1], [1, 2]]}), 422)


def test_images_are_files_in_base64(asked, tmp_path):
    images, labels = patches(100)
    model = attn_knn(**BRIEF).fit(images, labels)
    folder = tmp_path / "images.model"
    model.save(folder)
    pixels = model._fitted.rows[0]

    def encoded(array):
        file = io.BytesIO()
        Image.fromarray(array.squeeze()).save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode()

    with asked(folder) as client:
        found = client.post("/predict", json={"images": [encoded(pixels)]}).json()
        got = list(found["predictions"][0]["proba"].values())
        np.testing.assert_allclose(got, model.predict_proba(pixels[None])[0], atol=1e-6)
        larger = encoded(np.repeat(np.repeat(pixels, 2, 0), 2, 1))
        assert "resize" in problem(client.post("/predict", json={"images": [larger]}), 422)
        body = {"images": [larger], "resize": True}
        assert client.post("/predict", json=body).status_code == 200
        assert "not a file in" in problem(client.post("/predict", json={"images": ["%"]}), 422)
        broken = base64.b64encode(b"not an image").decode()
        assert "image 0" in problem(client.post("/predict", json={"images": [broken]}), 422)
        assert "images" in problem(client.post("/predict", json={"features": [[1.0]]}), 422)


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"rows": [{"age": 1, "income": 2, "twon": "Rome"}]}, 422, "Did you mean 'town'"),
        ({"rows": [{"age": 1, "income": 2}]}, 422, "lacks 'town'"),
        ({"rows": []}, 422, "empty"),
        ({"rows": None}, 422, "one of rows"),
        ({"features": [[1, 2, 3]]}, 422, "one of rows"),
        ({"rows": [{"age": [1], "income": 2, "town": "x"}]}, 422, "age"),
        ({"rows": [{"age": "old", "income": 2, "town": "x"}]}, 422, "age"),
        ({"confidence": 1.5}, 422, "less than 1"),
        ({"coverage": 0.5, "max_risk": 0.1}, 422, "give one of them"),
        ({"max_risk": 1e-9}, 422, "risk"),
        ({"confidence": 0.9999}, 422, "rows to judge by"),
        ({"nothing": 1}, 422, "nothing"),
        ({"images": ["aa"], "rows": None}, 422, "not take images"),
    ],
)
def test_what_a_model_cannot_take_is_explained(client, change, status, says):
    _, rows = json_rows(2)
    body = {name: v for name, v in ({"rows": rows} | change).items() if v is not None}
    assert says in problem(client.post("/predict", json=body), status)


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        (b'{"rows": [', 400, "not readable JSON"),
        (b"[" * 100_000, 400, ""),
        (b'{"rows": [{"age": NaN}]}', 422, "age"),
        (b'{"rows": [{"age": 1e999, "income": 1, "town": "x"}]}', 422, "age"),
        (b'{"rows": [{"age": 1' + b"0" * 400 + b', "income": 1, "town": "x"}]}', 422, "age"),
        (b'{"rows": [{"\\ud800": 1}]}', 400, "not readable JSON"),
        (b'{"features": [[' + b"1" * 5_000 + b"]]}", 400, "not readable JSON"),
        (b'{"features": [["1", "2", "3"]]}', 422, "features"),
        (b"\xff\xfe", 400, ""),
        (b"", 400, "not readable JSON"),
        (b"3", 422, "body"),
    ],
)
def test_bodies_that_are_none_are_refused(client, content, status, says):
    sent = {"content-type": "application/json"}
    assert says in problem(client.post("/predict", content=content, headers=sent), status)


class BrokenError(Exception):
    """What no one foresaw."""


def test_requests_that_wait_are_answered_together_and_each_gets_its_own(folder, model):
    frame, _ = json_rows(30)
    service = Service(LiveModel(folder), Limits(max_rows=100))
    batches = []

    def counted(requests, predict=service.predictions._work):
        batches.append(len(requests))
        return predict(requests)

    service.predictions._work = counted
    parts = [frame.iloc[[i]] for i in range(30)]
    parts[7] = parts[7].assign(age="old")  # one that the model cannot take
    parts[9] = BrokenError("not foreseen")  # and one that nobody expects
    ask = Ask()

    def read(X):
        if isinstance(X, Exception):
            raise X
        return X

    try:
        with service.predictions._changed:  # nobody is answered before all wait
            waiting = [
                service.predictions.submit(
                    (ask, lambda _, X=X: read(X), lambda found: found), group=ask
                )
                for X in parts
            ]
        proba = model.predict_proba(frame)
        for i, one in enumerate(waiting):
            if i == 7:
                assert "age" in one.exception().detail
            elif i == 9:
                assert isinstance(one.exception(), BrokenError)
            else:
                np.testing.assert_allclose(one.result().values["proba"], proba[[i]], atol=1e-6)
    finally:
        service.close()
    assert max(batches) > 20


def test_answers_belong_to_one_version_while_rows_come_and_go(asked, folder):
    """Every answer is that of the version it names."""
    frame, rows = json_rows(4)
    with asked() as client, ThreadPoolExecutor(4) as pool:
        versions = {0: client.service.live.now}

        def write():
            for i in range(12):
                body = {"rows": [rows[i % 4]], "labels": ["yes" if i % 2 else "no"]}
                done = client.post("/rows", json=body)
                assert done.status_code == 201
                now = client.service.live.now
                versions[now.number] = now

        def read(_):
            found = []
            while not writing.done():
                found.append(client.post("/predict", json={"rows": rows}).json())
            return found

        writing = pool.submit(write)
        seen = [one for found in pool.map(read, range(3)) for one in found]
        writing.result()
    assert len({one["memory_version"] for one in seen}) > 2
    for number, version in versions.items():
        wanted = answers(version, [version.encoded(frame)], Ask()).records()
        for one in seen:
            if one["memory_version"] == number:
                for got, due in zip(one["predictions"], wanted, strict=True):
                    assert got["proba"] == pytest.approx(due["proba"], abs=1e-6)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"rows": [{"age": []}] * 200_000}, 422),
        ({"rows": [{"age": []}] * 60_000}, 422),
        ({"features": [[]] * 200_000}, 422),
        ({"features": [["x"] * 50_000] * 2}, 422),
        ({"rows": [{str(i): i for i in range(100_000)}]}, 422),
    ],
    ids=range(5),
)
def test_a_body_full_of_mistakes_is_answered_with_a_few(client, body, status):
    answer = client.post("/predict", json=body)
    problem(answer, status)
    assert len(answer.content) < 10_000


def test_more_neighbors_than_anyone_reads_are_refused(client):
    _, rows = json_rows(40)
    body = {"rows": rows, "n_neighbors": 1_000}
    assert "neighbors" in problem(client.post("/explain", json=body), 413)
