"""Changes over HTTP are durable when they are answered, made once, and can be taken back."""

import threading

import numpy as np
import pytest
from fastapi.testclient import TestClient

from nearwise import review
from nearwise.estimators import AttnKNNClassifier, LiveModel
from nearwise.serve import Limits, Service, create_app, make_key, read_keys, service
from tests.estimators.cases import attn_knn
from tests.forks import in_a_child
from tests.serve.conftest import json_rows, problem, until
from tests.store.folders import small_table


def test_rows_come_change_and_go_and_are_on_the_disk(client, folder, model):
    frame, rows = json_rows(3)
    n_rows = len(model.memory_)
    added = client.post("/rows", json={"rows": rows, "labels": ["yes", "no", "yes"]})
    assert added.status_code == 201
    ids = added.json()["ids"]
    assert added.json() == {
        "kind": "add", "ids": ids, "evicted": [], "warnings": [], "memory_version": 1,
    }  # fmt: skip
    shown = client.get(f"/rows/{ids[1]}").json()
    assert shown == {
        "id": ids[1], "label": "no", "weight": 1.0, "row": rows[1], "memory_version": 1,
    }  # fmt: skip
    assert client.patch(f"/rows/{ids[1]}", json={"label": "yes"}).json()["memory_version"] == 2
    assert client.delete(f"/rows/{ids[2]}").json() == {
        "kind": "remove", "ids": [ids[2]], "evicted": [], "memory_version": 3,
    }  # fmt: skip
    there = AttnKNNClassifier.load(folder)  # nothing has been closed yet
    assert len(there.memory_) == n_rows + 2
    proba = client.post("/predict", json={"rows": rows}).json()["predictions"]
    np.testing.assert_allclose(
        [one["proba"]["yes"] for one in proba], there.predict_proba(frame)[:, 1], atol=1e-6
    )
    assert client.post("/changes/3/undo").json()["memory_version"] == 4
    kinds = [
        (c["version"], c["kind"], c["undoes"]) for c in client.get("/changes").json()["changes"]
    ]
    assert kinds == [(4, "add", 3), (3, "remove", None), (2, "relabel", None), (1, "add", None)]
    assert len(client.get("/changes?limit=2").json()["changes"]) == 2


def test_a_label_that_is_none_is_refused_unless_it_is_said_to_be_new(client):
    _, rows = json_rows(1)
    body = {"rows": rows, "labels": ["yse"]}
    assert "Did you mean 'yes'" in problem(client.post("/rows", json=body), 422)
    assert client.post("/rows", json=body | {"new_classes": True}).status_code == 201
    assert "yse" in client.post("/predict", json={"rows": rows}).json()["predictions"][0]["proba"]
    for wrong in (1, True):
        refused = client.post("/rows", json=body | {"labels": [wrong], "new_classes": True})
        assert "kind the model was fitted with" in problem(refused, 422)
    assert "2 labels" in problem(client.post("/rows", json=body | {"labels": ["yes"] * 2}), 422)


def test_a_request_sent_again_under_its_key_is_made_once(client):
    _, rows = json_rows(2)
    sent = {"Idempotency-Key": "r1"}
    body = {"rows": rows, "labels": ["yes", "no"]}
    first, again = (client.post("/rows", json=body, headers=sent).json() for _ in range(2))
    assert first == again
    other = client.post("/rows", json=body | {"labels": ["no", "no"]}, headers=sent)
    assert "another request" in problem(other, 409)
    sent = {"Idempotency-Key": "r2"}
    url = f"/rows/{first['ids'][0]}"
    sent_once = [
        ("PATCH", url, {"label": "no"}, {"Idempotency-Key": "r3"}),
        ("DELETE", url, None, sent),
        ("POST", "/issues/3", {"action": "remove"}, {"Idempotency-Key": "r4"}),
    ]
    done_once = [client.request(m, u, json=b, headers=h).json() for m, u, b, h in sent_once]
    # sent again, when the rows are gone already
    assert done_once == [client.request(m, u, json=b, headers=h).json() for m, u, b, h in sent_once]
    for method, where, body, _ in sent_once:
        assert "not remembered" in problem(client.request(method, where, json=body), 404)


def test_a_request_sent_again_is_answered_with_the_same_warnings(client):
    body = {"rows": [{"age": 1, "income": 1, "town": "Atlantis"}], "labels": ["yes"]}
    for path in ("/rows", "/feedback"):
        sent = {"Idempotency-Key": path}
        first, again = (client.post(path, json=body, headers=sent).json() for _ in range(2))
        assert first == again and "Categories that were not" in first["warnings"][0]


def test_holders_of_keys_do_not_share_their_idempotency_keys(asked, tmp_path):
    _, rows = json_rows(2)
    path = tmp_path / "keys.json"
    made = {name: make_key(path, name, "write") for name in ("ann", "bob")}
    with asked(keys=read_keys(path)) as client:
        ids = []
        for name, row in zip(made, rows, strict=True):
            sent = {"Authorization": f"Bearer {made[name]}", "Idempotency-Key": "1"}
            body = {"rows": [row], "labels": ["yes"]}
            first, again = (client.post("/rows", json=body, headers=sent) for _ in range(2))
            assert first.status_code == 201 and first.json() == again.json()
            ids += first.json()["ids"]
            other = client.post("/rows", json=body | {"labels": ["no"]}, headers=sent)
            assert f"'1 of {name}' was used by another request" in problem(other, 409)
        assert len({*ids}) == 2


def test_an_undo_tells_the_new_ids_of_rows_and_what_they_replace(asked, tmp_path):
    frame, labels = small_table(40, seed=0)
    settings = {"settings": {"capacity": 40}, "estimator": None, "random_state": 0}
    AttnKNNClassifier(preset="instant", **settings).fit(frame, labels).save(tmp_path / "m")
    _, rows = json_rows(1)
    with asked(tmp_path / "m") as client:
        client.delete("/rows/3")
        client.post("/rows", json={"rows": rows, "labels": ["yes"]})
        undone = client.post("/changes/1/undo").json()
        (row,), (gone,) = undone["ids"], undone["evicted"]
        assert undone["kind"] == "add" and client.get(f"/rows/{row}").status_code == 200
        assert gone != row and client.get(f"/rows/{gone}").status_code == 404


def test_a_list_of_changes_has_the_first_ids_of_each(client):
    _, rows = json_rows(130)
    ids = client.post("/rows", json={"rows": rows, "labels": ["yes", "no"] * 65}).json()["ids"]
    (change,) = client.get("/changes").json()["changes"]
    assert (change["ids"], change["n_ids"]) == (ids[:100], 130)


def test_ids_of_a_former_model_are_not_taken_for_those_of_the_new_one(client, folder, model):
    client.delete("/rows/0")
    X = model._fitted.rows
    labels = model.classes_[model._fitted.label_positions]
    attn_knn(estimator=None, preset="instant").fit(X, labels).save(folder, overwrite=True)
    assert client.get("/changes").json()["changes"] == []
    assert "Another model" in problem(client.delete("/rows/3"), 409)
    assert client.delete("/rows/3").json()["memory_version"] == 1  # now that it was told
    assert len(AttnKNNClassifier.load(folder).memory_) == len(X) - 1


def test_rows_that_another_process_added_can_be_changed_at_once(client, folder):
    frame, _ = json_rows(1)
    with LiveModel(folder) as other:
        (row,) = other.add(frame, ["yes"]).ids
    assert client.patch(f"/rows/{row}", json={"label": "no"}).json()["memory_version"] == 2
    assert client.get(f"/rows/{row}").json()["label"] == "no"


def test_the_last_row_of_a_class_goes_where_that_is_meant(client):
    _, rows = json_rows(1)
    body = {"rows": rows, "labels": ["rare"], "new_classes": True}
    (row,) = client.post("/rows", json=body).json()["ids"]
    url, meant = f"/rows/{row}", {"label": "yes", "forget_classes": True}
    assert "forget_classes" in problem(client.patch(url, json={"label": "yes"}), 422)
    assert client.patch(url, json=meant).status_code == 200
    client.post("/changes/2/undo")
    assert "forget_classes" in problem(client.delete(url), 422)
    assert client.delete(f"{url}?forget_classes=true").status_code == 200


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
@pytest.mark.parametrize("row", [100_000, 2**62, 2**63, "x", -1])
def test_rows_that_are_not_there(client, method, row):
    body = {"json": {"label": "yes"}} if method == "PATCH" else {}
    status = 404 if row in (100_000, 2**62) else 422
    problem(client.request(method, f"/rows/{row}", **body), status)


def test_feedback_is_judged_then_remembered(client, model):
    frame, rows = json_rows(8)
    labels = ["yes", "no"] * 4
    answer = client.post("/feedback", json={"rows": rows, "labels": labels})
    assert answer.status_code == 201
    predicted = model.predict(frame)
    assert answer.json()["judged"]["predicted"] == predicted.tolist()
    summary = client.get("/feedback").json()
    assert summary["accuracy"] == np.mean(predicted == labels)
    assert summary["rows"] == 8
    assert client.get("/feedback?last=3").json()["rows"] == 3
    assert client.get(f"/rows/{answer.json()['ids'][0]}").json()["label"] == "yes"


def test_labels_that_look_wrong_are_listed_until_something_is_done(client, model):
    wanted = review(model).issues()
    wanted = wanted[wanted["given"] != wanted["suggested"]]
    found = client.get("/issues").json()
    assert [one["id"] for one in found["issues"]] == wanted["id"].tolist()
    assert len(wanted) >= 3  # the case is one where there are some
    first, second, third = wanted["id"].tolist()[:3]
    suggested = found["issues"][0]["suggested"]
    client.post(f"/issues/{first}", json={"action": "relabel", "label": suggested})
    assert client.get(f"/rows/{first}").json()["label"] == suggested
    kept = client.post(f"/issues/{second}", json={"action": "keep"})
    assert (kept.json()["ids"], kept.json()["memory_version"]) == ([second], 2)
    client.post(f"/issues/{third}", json={"action": "remove"})
    assert "not remembered" in problem(client.get(f"/rows/{third}"), 404)
    left = client.get("/issues").json()
    assert not {first, second, third} & {one["id"] for one in left["issues"]}
    assert left["memory_version"] == 3
    client.post("/changes/2/undo")
    assert second in [one["id"] for one in client.get("/issues").json()["issues"]]
    for wrong in ({"action": "relabel"}, {"action": "keep", "label": "yes"}, {"action": "x"}):
        problem(client.post(f"/issues/{first}", json=wrong), 422)


def done(client, job):
    def ended():
        found = client.get(job["status"]).json()
        return found["state"] in ("done", "failed") and found

    return until(ended)


def test_jobs_are_followed_and_predictions_go_on_meanwhile(client, folder, model):
    frame, rows = json_rows(4)
    client.post("/rows", json={"rows": rows, "labels": ["yes", "no", "yes", "no"]})
    started = client.post("/refresh")
    assert (started.status_code, started.headers["location"]) == (202, "/jobs/1")
    assert client.post("/predict", json={"rows": rows}).status_code == 200
    busy = client.delete("/rows/0")
    assert "A job is changing" in problem(busy, 503)
    assert busy.headers["retry-after"] == "1"
    found = done(client, started.json())
    assert (found["state"], found["kind"], found["memory_version"]) == ("done", "refresh", 2)
    model.add(frame, ["yes", "no", "yes", "no"])
    expected = model.refresh().predict_proba(frame)[:, 1]
    proba = client.post("/predict", json={"rows": rows}).json()["predictions"]
    np.testing.assert_allclose([one["proba"]["yes"] for one in proba], expected, atol=1e-6)
    assert done(client, client.post("/compact").json())["state"] == "done"
    assert LiveModel(folder).n_pending == 0
    assert "no job 99" in problem(client.get("/jobs/99"), 404)


@pytest.mark.parametrize(
    ("error", "says"),
    [(OSError("/secret: no space"), "the log says more"), (ValueError("cannot"), "cannot")],
)
def test_a_job_that_fails_says_why(client, monkeypatch, caplog, error, says):
    def fail(live):
        raise error

    monkeypatch.setattr(LiveModel, "compact", fail)
    found = done(client, client.post("/compact").json())
    assert found["state"] == "failed"
    assert says in found["problem"]
    assert "secret" not in found["problem"]
    assert ("compact failed" in caplog.text) == isinstance(error, OSError)


def test_one_job_at_a_time(client, monkeypatch):
    free = threading.Event()
    monkeypatch.setattr(LiveModel, "compact", lambda live: free.wait(20))
    job = client.post("/compact").json()
    assert "A job is changing" in problem(client.post("/refresh"), 503)
    free.set()
    assert done(client, job)["state"] == "done"


def test_a_long_journal_is_folded_in_and_undo_still_works(client, folder, monkeypatch):
    monkeypatch.setattr(service, "_LONGEST_REPLAY", 1e-5)
    client.delete("/rows/0")
    client.delete("/rows/1")
    until(lambda: LiveModel(folder).n_pending == 0)
    assert client.post("/changes/1/undo").json()["memory_version"] == 3


def test_a_read_only_service_changes_nothing(asked):
    _, rows = json_rows(1)
    with asked(read_only=True) as client:
        for method, path, body in (
            ("POST", "/rows", {"rows": rows, "labels": ["yes"]}),
            ("DELETE", "/rows/0", None),
            ("PATCH", "/rows/0", {"label": "yes"}),
            ("POST", "/compact", None),
        ):
            assert "read-only" in problem(client.request(method, path, json=body), 403)
        assert client.get("/changes").json() == {"changes": [], "memory_version": 0}
        assert client.post("/predict", json={"rows": rows}).status_code == 200


def test_a_follower_sees_what_others_change(asked, folder):
    with asked(read_only=True, follow=True) as client, LiveModel(folder) as other:
        other.remove([0])
        until(lambda: client.get("/rows/0").status_code == 404)
        assert client.get("/rows/1").json()["memory_version"] == 1


def test_a_change_that_takes_too_long_says_whether_it_may_be_made(asked, monkeypatch):
    free = threading.Event()

    def slow(live, *arguments, original=LiveModel.keep, **options):
        assert free.wait(20)
        return original(live, *arguments, **options)

    monkeypatch.setattr(LiveModel, "keep", slow)
    with asked(limits=Limits(deadline=0.2)) as client:
        sent = {"Idempotency-Key": "a"}
        under_way = client.post("/issues/1", json={"action": "keep"})
        waiting = client.post("/issues/2", json={"action": "keep"})
        named = client.post("/issues/2", json={"action": "keep"}, headers=sent)
        free.set()
        assert "may still be made. Look at /changes before" in problem(under_way, 504)
        assert "was not made. Send it again." in problem(waiting, 504)
        assert "again under the same Idempotency-Key" in problem(named, 504)
        for response in (under_way, waiting):  # none was sent
            assert "Idempotency-Key" not in problem(response, 504)
        until(lambda: client.service.live.version)
        assert client.service.live.kept() == {1}


def test_a_damaged_folder_is_not_the_clients_mistake(client, folder):
    client.delete("/rows/0")
    for file in folder.glob("journal.sqlite3*"):
        file.unlink()
    (folder / "journal.sqlite3").write_bytes(b"damaged" * 1_000)
    for method, url in (("DELETE", "/rows/1"), ("GET", "/changes")):
        detail = problem(client.request(method, url), 503)
        assert str(folder) not in detail
    _, rows = json_rows(1)
    assert client.post("/predict", json={"rows": rows}).json()["memory_version"] == 1


def test_a_folder_that_cannot_be_written_is_not_the_clients_mistake(client, monkeypatch):
    from nearwise.memory import Journal

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "append", full)
    detail = problem(client.delete("/rows/0"), 503)
    assert "folder" in detail
    assert "space" not in detail  # the log says more
    assert client.get("/rows/0").status_code == 200


def test_an_application_made_before_a_fork_answers_and_follows_after_it(folder):
    forked = Service(LiveModel(folder), follow=True)
    app = create_app(forked, name="table")
    _, rows = json_rows(2)

    def work():
        with TestClient(app) as client:
            assert client.post("/predict", json={"rows": rows}).status_code == 200
            body = {"rows": rows, "labels": ["yes", "no"]}
            assert client.post("/rows", json=body).status_code == 201
            assert client.post("/compact").status_code == 202
            assert forked._follower.is_alive()

    in_a_child(work)
    forked.close()
    assert len(AttnKNNClassifier.load(folder).memory_) == 50


def test_rows_and_feedback_have_groups_where_the_fit_had_and_only_there(asked, tmp_path):
    frame, labels = small_table(60, seed=0)
    model = AttnKNNClassifier(preset="instant", random_state=0)
    model.fit(frame, labels, groups=np.arange(60) // 3).save(tmp_path / "m")
    _, rows = json_rows(3)
    body = {"rows": rows, "labels": ["yes", "no", "yes"]}
    with asked(tmp_path / "m") as client:
        for url in ("/rows", "/feedback"):
            assert "new rows came without" in problem(client.post(url, json=body), 422)
            assert client.post(url, json=body | {"groups": ["x", "x", 7]}).status_code == 201
        assert "3 rows have 1 groups" in problem(
            client.post("/rows", json=body | {"groups": ["x"]}), 422
        )
        problem(client.post("/rows", json=body | {"groups": ["x", "x", None]}), 422)
    with asked() as client:
        refused = client.post("/rows", json=body | {"groups": ["x", "x", 7]})
        assert "fitted without groups" in problem(refused, 422)
    groups = AttnKNNClassifier.load(tmp_path / "m").memory_.columns["group"]
    assert len(groups) == 66 and len(groups.unique()) == 21  # 7 is one of the fit
