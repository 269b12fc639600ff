"""Answers of the page have a route in JSON: model, review, effect, trust, hypothetical changes."""

import numpy as np
import pytest

from nearwise import review
from nearwise.estimators import AttnKNNClassifier
from nearwise.estimators.noise.findings import KINDS
from nearwise.estimators.uncertainty.column_shares import column_shares
from nearwise.serve import Limits, what_if
from nearwise.serve.page.asking import answer as page_answer
from tests.estimators.cases import attn_knn
from tests.estimators.image_cases import BRIEF, patches
from tests.serve.conftest import json_rows, problem
from tests.serve.test_page import question


def test_the_model_is_summarized(client, model):
    _, rows = json_rows(2)
    client.post("/rows", json={"rows": rows, "labels": ["yes", "no"]})
    found = client.get("/model").json()
    assert (found["name"], found["task"], found["input"]) == ("table", "classification", "rows")
    assert (found["target_name"], found["memory_version"]) == (model._fitted.target_name, 1)
    assert (found["read_only"], found["capacity"]) == (False, None)
    assert found["fitted_at"] == model._fitted.fitted_at
    assert found["n_rows"] == sum(one["n_rows"] for one in found["classes"]) == 50
    assert [one["label"] for one in found["classes"]] == model.classes_.tolist()
    uses = {one["name"]: one["use"] for one in found["columns"]}
    assert uses == {"age": "number", "income": "number", "town": "category"}
    trust = client.get("/trust").json()
    for name in ("accuracy", "nll"):
        measured = found["quality"][name]
        assert measured["estimate"] == pytest.approx(trust[name], rel=1e-5)
        assert measured["low"] < measured["estimate"] < measured["high"]
    assert found["quality"]["n_rows"] == trust["n_rows"]


def test_a_summary_tells_of_a_service_that_changes_nothing_and_of_a_capacity(asked, tmp_path):
    settings = {"settings": {"capacity": 80}, "estimator": None, "random_state": 0}
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = AttnKNNClassifier(preset="instant", **settings)
    model.fit(X, (X[:, 0] > 0).astype(int)).save(tmp_path / "m")
    with asked(tmp_path / "m", read_only=True) as client:
        found = client.get("/model").json()
        assert (found["read_only"], found["capacity"], found["input"]) == (True, 80, "features")


def test_the_review_has_every_finding_in_pages_of_one_kind(client, model):
    wanted = review(model).findings()
    whole = client.get("/review").json()
    assert [one["what"] for one in whole["findings"]] == wanted["what"].tolist()[:100]
    assert whole["n_findings"] == len(wanted) == sum(whole["counts"].values())
    assert whole["counts"]["label"] >= 3  # the case is one where there are some
    for kind in KINDS:
        page = client.get("/review", params={"kind": kind, "limit": 2, "offset": 1}).json()
        of_kind = wanted[wanted["kind"] == kind]
        assert page["n_findings"] == whole["counts"][kind] == len(of_kind)
        assert [one["what"] for one in page["findings"]] == of_kind["what"].tolist()[1:3]
        assert {one["kind"] for one in page["findings"]} <= {kind}
    first = whole["findings"][0]
    assert first["ids"] == list(wanted["ids"][0]) and first["suggested"] in model.classes_
    client.post(f"/issues/{first['id']}", json={"action": "keep"})
    left = client.get("/review").json()["findings"]
    assert first["id"] not in {one["id"] for one in left if one["kind"] == "label"}
    problem(client.get("/review?kind=labels"), 422)


def test_the_effect_of_changes_is_null_until_there_is_one(client):
    assert client.get("/review/effect").json() == {"effect": None, "memory_version": 0}
    _, rows = json_rows(1)
    client.post("/rows", json={"rows": rows, "labels": ["yes"]})
    found = client.get("/review/effect").json()
    measured = client.service.effect()
    assert found == {"effect": measured._asdict(), "memory_version": 1}


def test_trust_is_that_of_the_review(client, model):
    found, trust = client.get("/trust").json(), review(model).trust()
    assert (found["n_rows"], found["ece"]) == (trust.n_rows, pytest.approx(trust.ece))
    assert [one["count"] for one in found["reliability"]] == trust.reliability.count.tolist()
    np.testing.assert_allclose([one["risk"] for one in found["risk"]], trust.risk.risk, atol=1e-6)
    shares = {one["confidence"]: one["shares"] for one in found["set_sizes"]}
    assert shares.keys() == trust.set_sizes.keys() and {0.8, 0.9} <= shares.keys()
    assert found["confusion"] == trust.confusion.tolist()
    assert [one["label"] for one in found["classes"]] == model.classes_.tolist()
    recall = np.diag(trust.confusion) / trust.confusion.sum(axis=1)
    assert [one["recall"] for one in found["classes"]] == pytest.approx(recall)
    for level, wanted in trust.set_sizes.items():
        np.testing.assert_allclose(shares[level], wanted, atol=1e-6)


def explained(client, body):
    (found,) = client.post("/explain", json=body).json()["predictions"]
    return found


def test_a_remembered_row_is_explained_without_itself(client, model):
    found = explained(client, {"remembered": 3, "n_neighbors": 4})
    given = model._fitted.rows.iloc[[3]]
    model.remove([3], forget_classes=True)
    proba = dict(zip(model.classes_, model.predict_proba(given)[0], strict=True))
    assert found["proba"] == pytest.approx(proba, abs=1e-6)
    ids = [one.id for one in model.explain(given, 4)[0].neighbors]
    assert [one["id"] for one in found["neighbors"]] == ids and 3 not in ids


def test_hypothetical_changes_are_answered_as_on_the_page_and_nothing_is_saved(client):
    version = client.service.live.now
    form = question(client, 3)
    first, second, third, *_ = [one.id for one in page_answer(version, form).before.neighbors]
    classes = version.fitted.classes.tolist()
    form |= {"off": [str(first), str(third)], f"as.{second}": "0"}
    wanted = page_answer(version, form)
    changes = {"without": [first, third], "relabel": {str(second): classes[0]}}
    body = {"remembered": 3, "n_neighbors": 8, "confidence": 0.9, "novelty": True}
    found = explained(client, body | changes)
    assert found["proba"] == pytest.approx(wanted.explanation.to_dict()["proba"], abs=1e-6)
    assert found["novelty_p"] == pytest.approx(wanted.novelty_p)
    assert found["set"] == wanted.explanation.prediction_set
    ids = [one["id"] for one in found["neighbors"]]
    assert ids == [one.id for one in wanted.explanation.neighbors]
    assert not {first, third} & {*ids}
    (relabelled,) = [one for one in found["neighbors"] if one["id"] == second]
    assert relabelled["label"] == classes[0]
    assert client.get("/changes").json() == {"changes": [], "memory_version": 0}


def test_new_rows_are_explained_without_some_rows(client, model):
    frame, rows = json_rows(3)
    usual = client.post("/explain", json={"rows": rows}).json()["predictions"]
    gone = sorted({one["neighbors"][0]["id"] for one in usual})
    found = client.post("/explain", json={"rows": rows, "without": gone}).json()["predictions"]
    model.remove(gone, forget_classes=True)
    wanted = [one.to_dict()["proba"] for one in model.explain(frame, 1)]
    assert [one["proba"] for one in found] == [pytest.approx(one, abs=1e-6) for one in wanted]


def test_column_shares_are_the_largest_first(client, model):
    frame, rows = json_rows(3)
    body = {"rows": rows, "n_neighbors": 4, "column_shares": True}
    found = client.post("/explain", json=body).json()["predictions"]
    for at, one in enumerate(found):
        ids = [neighbor["id"] for neighbor in one["neighbors"]]
        wanted = column_shares(model._fitted, frame.iloc[[at]], ids)
        for neighbor, shares in zip(one["neighbors"], wanted, strict=True):
            named = dict(zip(frame.columns, shares, strict=True))
            assert neighbor["column_shares"] == pytest.approx(
                {name: share for name, share in named.items() if share > 0}
            )
            listed = list(neighbor["column_shares"].values())
            assert listed == sorted(listed, reverse=True)
    plain = client.post("/explain", json={"rows": rows}).json()["predictions"]
    assert "column_shares" not in plain[0]["neighbors"][0]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"remembered": 10_000}, 404, "not remembered"),
        ({"remembered": 3, "without": [10_000]}, 404, "not remembered"),
        ({"remembered": 3, "relabel": {"4": "yse"}}, 422, "Did you mean 'yes'"),
        ({"remembered": 3, "relabel": {"x": "yes"}}, 422, "relabel"),
        ({"remembered": 3, "rows": [{}]}, 422, "give one of rows, features, images, remembered"),
        ({"without": [3]}, 422, "got none"),
        ({"remembered": 3, "without": list(range(48))}, 422, ""),
        ({"remembered": -1}, 422, "remembered"),
    ],
)
def test_changes_that_cannot_be_made_are_refused(client, body, status, says):
    assert says in problem(client.post("/explain", json=body), status)


def test_shares_of_very_many_columns_are_refused_before_they_are_computed(client, monkeypatch):
    _, rows = json_rows(4)
    body = {"rows": rows, "n_neighbors": 5, "column_shares": True}
    monkeypatch.setattr(what_if, "_MOST_SPLIT", 59)
    assert "60 numbers" in problem(client.post("/explain", json=body), 413)
    with_limit = Limits(max_rows=3)
    monkeypatch.setattr(client.service, "limits", with_limit)
    assert "4 rows" in problem(client.post("/explain", json=body), 413)


def test_an_image_is_explained_without_itself_and_has_no_columns(asked, tmp_path):
    attn_knn(**BRIEF).fit(*patches(100)).save(tmp_path / "m")
    with asked(tmp_path / "m") as client:
        found = explained(client, {"remembered": 3, "n_neighbors": 4})
        assert 3 not in {one["id"] for one in found["neighbors"]}
        refused = client.post("/explain", json={"remembered": 3, "column_shares": True})
        assert "no columns" in problem(refused, 422)
        assert client.get("/model").json()["input"] == "images"


def test_rows_are_placed_on_the_map_where_remembered_ones_of_the_same_values_lie(client, model):
    laid = client.get("/map").json()
    row = client.get(f"/rows/{laid['id'][0]}").json()["row"]
    (point,) = client.post("/map", json={"rows": [row]}).json()["points"]
    assert (point["x"], point["y"]) == pytest.approx((laid["x"][0], laid["y"][0]), abs=1e-3)


@pytest.mark.parametrize("path", ["/model", "/review", "/review/effect", "/trust"])
def test_every_answer_tells_its_version(client, path):
    client.delete("/rows/0")
    assert client.get(path).json()["memory_version"] == 1
