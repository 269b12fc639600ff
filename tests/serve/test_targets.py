"""A service of several targets: answers of all, the model of each, rows that change together."""

import re
import shutil
from contextlib import ExitStack, contextmanager

import jsonschema
import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient

from nearwise import AttnKNNClassifier, AttnKNNRegressor
from nearwise.estimators.live_target import LiveTarget
from nearwise.estimators.storage.targets_folder import target_folders
from nearwise.html.numbers import percent
from nearwise.serve import Service, create_targets_app
from nearwise.serve.keys import make_key, read_keys
from tests.serve.conftest import problem, served_app
from tests.serve.test_page_in_browser import fits, opened

NAMES = ["sea", "sun set", "boat/ship"]
ROW = {"a": 1.0, "b": -1.0, "town": "Lima"}


def _table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(90, 2)), columns=["a", "b"])
    X["town"] = np.where(rng.random(90) > 0.5, "Lima", "Oslo")
    return X, np.column_stack([X["a"] > 0, X["b"] > 0, X["town"] == "Lima"]).astype(int)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    where, (X, y) = tmp_path_factory.mktemp("targets"), _table()
    labels = pd.DataFrame(y, columns=NAMES)
    AttnKNNClassifier(preset="instant", random_state=0).fit(X, labels).save(where / "labels")
    numbers = pd.DataFrame({"low": X["a"] * 2, "high": X["a"] + 100})
    AttnKNNRegressor(preset="instant", random_state=0).fit(X, numbers).save(where / "numbers")
    return where


def _services(folder):
    return {name: Service(LiveTarget(path)) for name, path in target_folders(folder).items()}


def _app(folder, **options):
    return create_targets_app(_services(folder), name="tags", **options)


@contextmanager
def _client(folder, **options):
    with TestClient(_app(folder, **options), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(folders):
    with _client(folders / "labels") as client:
        yield client


def test_all_targets_are_predicted_at_once_as_by_the_loaded_model(client, folders):
    found = client.post("/predict", json={"rows": [ROW, ROW | {"a": -1.0}], "confidence": 0.8})
    model = AttnKNNClassifier.load(folders / "labels")
    wanted = model.predict_proba(pd.DataFrame([ROW, ROW | {"a": -1.0}]))
    targets = found.json()["targets"]
    assert list(targets) == NAMES
    for name, proba in zip(NAMES, wanted, strict=True):
        given = [one["proba"]["1"] for one in targets[name]["predictions"]]
        np.testing.assert_allclose(given, proba[:, 1], rtol=1e-6)
        assert all("set" in one for one in targets[name]["predictions"])
    described = client.get("/openapi.json").json()
    schema = described["paths"]["/predict"]["post"]["responses"]["200"]["content"]
    schema = schema["application/json"]["schema"] | {"components": described["components"]}
    jsonschema.validate(found.json(), schema)


def test_each_target_is_a_service_at_the_path_that_is_listed(client):
    listed = client.get("/targets").json()["targets"]
    assert [one["name"] for one in listed] == NAMES
    for one in listed:
        summary = client.get(f"{one['path']}/model").json()
        assert (summary["target_name"], summary["n_rows"]) == (one["name"], one["n_rows"])
        home = client.get(one["path"])  # redirected
        assert home.status_code == 200 and home.url.path.endswith("/page/start")
        described = client.get(f"{one['path']}/openapi.json").json()
        assert described["servers"][0]["url"] == one["path"]
        answer = client.post(f"{one['path']}/explain", json={"rows": [ROW]})
        assert len(answer.json()["predictions"][0]["neighbors"]) == 5
    assert client.get("/v2/health/ready").json()["ready"] is True


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"rows": [{"a": 1.0}]}, 422, "Row 0 lacks"),
        ({"rows": []}, 422, "empty"),
        ({"rows": [ROW], "max_risk": 2}, 422, "max_risk"),
        ({"features": [[1.0]]}, 422, "X is an array"),
    ],
)
def test_mistakes_are_problems_and_change_nothing(client, body, status, said):
    assert said in problem(client.post("/predict", json=body), status)


@pytest.fixture
def folder(folders, tmp_path):
    return shutil.copytree(folders / "labels", tmp_path / "labels")


def test_labels_change_alone_and_rows_only_with_all_targets(folder):
    with _client(folder) as client:
        path = client.get("/targets").json()["targets"][1]["path"]
        rows = {"rows": [ROW], "labels": [1]}
        for answer in (
            client.delete(f"{path}/rows/3"),
            client.post(f"{path}/rows", json=rows),
            client.post(f"{path}/feedback", json=rows),
            client.post(f"{path}/issues/3", json={"action": "remove"}),
        ):
            assert "POST /rows" in problem(answer, 422)
        old = client.get(f"{path}/rows/3").json()["label"]
        assert client.patch(f"{path}/rows/3", json={"label": 1 - old}).status_code == 200
        assert client.post(f"{path}/changes/1/undo").status_code == 200
        started = client.post(f"{path}/compact")
        assert client.get(started.headers["location"]).json()["kind"] == "compact"
    model = AttnKNNClassifier.load(folder)  # without a warning about differing rows
    assert [len(one.memory_) for one in model.estimators_] == [90] * 3


LABELED = {"rows": [ROW, ROW], "labels": {"sea": [1, 0], "sun set": [0, 0], "boat/ship": [1, 1]}}


def test_rows_are_added_to_and_removed_from_all_targets(folder):
    with _client(folder) as client:
        added = client.post("/rows", json=LABELED, headers={"Idempotency-Key": "one"})
        assert (added.status_code, added.json()) == (201, {"kind": "add", "ids": [90, 91]})
        again = client.post("/rows", json=LABELED, headers={"Idempotency-Key": "one"})
        assert again.json() == added.json()
        assert client.delete("/rows/90").json() == {"kind": "remove", "ids": [90]}
        problem(client.delete("/rows/90"), 404)
        problem(client.post("/targets/sea/changes/1/undo"), 422)  # would be of one target
        paths = [one["path"] for one in client.get("/targets").json()["targets"]]
        found = [client.get(f"{path}/rows/91").json()["label"] for path in paths]
        assert found == [0, 0, 1]
    model = AttnKNNClassifier.load(folder)
    assert [len(one.memory_) for one in model.estimators_] == [91] * 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"labels": {"sea": [1, 0]}}, "lacks 'sun set'"),
        ({"labels": LABELED["labels"] | {"mud": [1, 1]}}, "'mud'"),
        ({"labels": LABELED["labels"] | {"boat/ship": [1]}}, "one each"),
        ({"labels": LABELED["labels"] | {"boat/ship": [1, 7]}}, "7 is not one of"),
        ({"rows": [ROW, {"a": 1.0}]}, "Row 1 lacks"),
    ],
)
def test_rows_that_one_target_cannot_take_are_added_to_none(folder, wrong, said):
    with _client(folder) as client:
        assert said in problem(client.post("/rows", json=LABELED | wrong), 422)
        assert {one["n_rows"] for one in client.get("/targets").json()["targets"]} == {90}


@pytest.mark.parametrize("key", [None, "mine"])
def test_an_addition_that_stops_halfway_is_completed_under_its_key(folder, key):
    headers = {} if key is None else {"Idempotency-Key": key}
    services = _services(folder)
    with TestClient(create_targets_app(services), raise_server_exceptions=False) as client:
        last = services["boat/ship"]
        write, last.live._log.write = last.live._log.write, _full
        said = problem(client.post("/rows", json=LABELED, headers=headers), 503)
        assert "'boat/ship'" in said and "2 of 3 targets" in said
        last.live._log.write = write
        assert "Idempotency-Key" in problem(client.post("/rows", json=LABELED), 409)
        key = key or re.search(r"Idempotency-Key (\w+)", said)[1]
        done = client.post("/rows", json=LABELED, headers={"Idempotency-Key": key})
        assert done.json()["ids"] == [90, 91]
        assert {one["n_rows"] for one in client.get("/targets").json()["targets"]} == {92}


def _full(*_):
    raise OSError(28, "No space left on device")


def test_keys_are_needed_for_all_targets_and_for_each(folders, tmp_path):
    file = tmp_path / "keys.json"
    key = {"Authorization": f"Bearer {make_key(file, 'laptop', 'read')}"}
    with _client(folders / "labels", keys=read_keys(file)) as client:
        for url in ("/targets", "/targets/sea/model", "/page/targets/view"):
            problem(client.get(url), 401)
            assert client.get(url, headers=key).status_code == 200
        problem(client.post("/predict", json={"rows": [ROW]}), 401)
        problem(client.patch("/targets/sea/rows/1", json={"label": 1}, headers=key), 403)
        problem(client.post("/rows", json=LABELED, headers=key), 403)
        assert client.get("/page/targets").status_code == 200  # holds nothing of the model


def test_foreign_pages_and_large_bodies_are_refused_of_all_paths(folders):
    with _client(folders / "labels", hosts={"testserver"}) as client:
        for url in ("/predict", "/targets/sea/predict"):
            for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
                problem(client.post(url, json={"rows": [ROW]}, headers=headers), 403)
            long = {"rows": [ROW | {"town": "x" * 9_000_000}]}
            problem(client.post(url, json=long), 413)


def test_the_page_answers_for_all_targets_the_most_probable_label_first(client, folders):
    assert client.get("/").url.path == "/page/targets"
    listed = client.get("/page/targets/view").text
    assert all(f'title="{name}"' in listed for name in NAMES)
    X, _ = _table()
    given = {"c0": str(X["a"][3]), "c1": str(X["b"][3]), "c2": str(int(X["town"][3] == "Oslo"))}
    answer = client.post("/page/ask/answer", json=given | {"remembered": "3"}).text
    model = AttnKNNClassifier.load(folders / "labels")
    with_itself = [proba[0, 1] for proba in model.predict_proba(X[3:4])]
    model.remove([3])
    alone = [proba[0, 1] for proba in model.predict_proba(X[3:4])]
    order = re.findall(r'title="([^"]+)"', answer)
    assert order == [NAMES[at] for at in np.argsort(alone)[::-1]]
    assert percent(max(alone)) in answer  # the remembered row is no neighbor of itself
    assert percent(max(with_itself)) not in answer


def test_numbers_are_answered_with_intervals(folders):
    with _client(folders / "numbers") as client:
        answer = client.post("/predict", json={"rows": [ROW]}).json()["targets"]
        assert set(answer) == {"low", "high"} and answer["high"]["predictions"][0]["median"] > 90
        form = client.get("/page/ask/form?row=3").text
        assert 'name="c0"' in form
        part = client.post("/page/ask/answer", json={"c0": "1", "c1": "0", "c2": "0"}).text
        assert "90 % interval" in part and part.count("with-question") == 2
        assert "range" in client.get("/page/targets/view").text


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1400])
def test_a_question_goes_on_to_the_neighbors_of_a_target(browser, folders, width):
    with ExitStack() as stack:
        base = stack.enter_context(served_app(_app(folders / "labels")))
        page = stack.enter_context(opened(browser, base, width))
        page.goto(base)
        page.get_by_label("a", exact=True).fill("1.5")
        page.get_by_label("town").select_option("Oslo")
        page.get_by_role("button", name="Ask", exact=True).first.click()
        page.wait_for_selector("#answers")
        assert fits(page)
        page.wait_for_url("**/page/targets?given=*")
        page.locator("#answers tr", has_text="sun set").get_by_role("link").click()
        page.wait_for_selector("#answer .near")
        assert "/targets/sun+set/page/ask" in page.url
        assert page.get_by_label("a", exact=True).input_value() == "1.5"
        for view in ("Start", "Map", "Review", "Trust", "Ask"):
            page.get_by_role("navigation").get_by_role("link", name=view).click()
            page.wait_for_selector("main h1")
            page.wait_for_load_state("networkidle")
            assert fits(page), view
        page.get_by_role("link", name="All targets").click()
        page.wait_for_selector("text=boat/ship")
        assert page.url == f"{base}/page/targets"
