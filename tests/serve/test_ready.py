"""A service gets ready while it answers, and layouts that take long can be left."""

import asyncio
import re
import threading
import time

import pytest

from nearwise.estimators.memory_map import memory_map
from nearwise.serve import Limits, service
from nearwise.serve.layouts import AbandonedError, Layouts
from nearwise.serve.page import ask as page_ask
from nearwise.serve.page.asking import answer
from tests.serve.conftest import json_rows, until
from tests.serve.test_page import neighbors_of

FORM = {"c0": "1", "c1": "0.5", "c2": "0"}


@pytest.fixture
def slow(monkeypatch):
    """Getting ready takes until the event is set; it is half done then."""
    free = threading.Event()
    steps = (service.WARM_UP[0], ("a step that takes long", lambda _: free.wait(30)))
    monkeypatch.setattr(service, "WARM_UP", steps)
    yield free
    free.set()


def step_of(client):
    return client.get("/v2/health/ready").json()["getting_ready"]


def test_a_service_that_gets_ready_predicts_and_says_how_far_it_is(asked, slow):
    _, rows = json_rows(2)
    with asked() as client:
        until(lambda: (step_of(client) or {}).get("progress") == 0.5)
        assert step_of(client)["step"] == "a step that takes long"
        assert client.get("/v2/health/ready").json()["ready"] is True
        assert client.post("/predict", json={"rows": rows}).status_code == 200
        assert client.post("/rows", json={"rows": rows, "labels": ["no", "yes"]}).is_success
        assert client.get("/page/ask/form").is_success
        slow.set()
        until(lambda: step_of(client) is None)


def test_a_question_while_a_service_gets_ready_is_asked_again_until_it_is_answered(asked, slow):
    with asked(limits=Limits(deadline=0.2)) as client:
        until(lambda: (step_of(client) or {}).get("progress") == 0.5)
        form = FORM | {"off": ["3", "4"], "as.5": "1"}
        part = client.post("/page/ask/answer", json=form)
        assert part.status_code == 200
        assert "Getting ready" in part.text and "a step that takes long" in part.text
        assert 'hx-post="ask/answer"' in part.text  # with what was switched off
        kept = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', part.text)
        assert kept == [("off", "3"), ("off", "4"), ("as.5", "1")]
        slow.set()
        until(lambda: neighbors_of(client.post("/page/ask/answer", json=FORM).text))


def test_a_question_that_takes_longer_than_the_deadline_is_asked_again(asked, monkeypatch):
    free = threading.Event()
    with asked(limits=Limits(deadline=0.2)) as client:
        until(lambda: step_of(client) is None)
        lane = client.service._asks
        work = lane._work
        monkeypatch.setattr(lane, "_work", lambda requests: free.wait(20) and work(requests))
        assert "Still working" in client.post("/page/ask/answer", json=FORM).text
        free.set()
        until(lambda: neighbors_of(client.post("/page/ask/answer", json=FORM).text))


def test_a_question_that_always_takes_longer_than_the_deadline_is_worked_on_once(
    asked, monkeypatch
):
    n_calls = []

    def slowly(version, form):
        n_calls.append(form)
        time.sleep(0.5)
        return answer(version, form)

    monkeypatch.setattr(page_ask, "answer", slowly)
    with asked(limits=Limits(deadline=0.15)) as client:
        until(lambda: step_of(client) is None)
        until(lambda: neighbors_of(client.post("/page/ask/answer", json=FORM).text))
        assert len(n_calls) == 1
        until(lambda: neighbors_of(client.post("/page/ask/answer", json=FORM).text))
        assert len(n_calls) == 2  # what was answered is forgotten
        client.post("/page/ask/answer", json=FORM)
        rows = {"rows": [{"age": 1, "income": 1, "town": "Rome"}], "labels": ["yes"]}
        until(lambda: client.post("/rows", json=rows).is_success)
        part = until(
            lambda: (
                "Version" in (found := client.post("/page/ask/answer", json=FORM).text) and found
            )
        )
        assert "Version 0 of" not in part  # nor is an answer of a former version given


def test_a_step_that_fails_is_logged_and_the_service_goes_on(asked, monkeypatch, caplog):
    def broken(_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(service, "WARM_UP", (("a step", broken),))
    with asked() as client:
        until(lambda: step_of(client) is None)
        assert "no such thing" in caplog.text
        assert client.post("/page/ask/answer", json=FORM).is_success


def test_what_the_first_question_needs_is_there_before_it(client, monkeypatch):
    until(lambda: step_of(client) is None)
    predictor = client.service.live.now.fitted.predictor
    monkeypatch.setattr(
        type(predictor), "predict_left_out", lambda *_: pytest.fail("computed by the question")
    )
    assert neighbors_of(client.post("/page/ask/answer", json=FORM).text)


# --- layouts --------------------------------------------------------------------------------------


async def stays():
    return False


async def leaves():
    return True


def test_a_layout_does_not_keep_other_readers_waiting(asked, monkeypatch):
    free, started = threading.Event(), threading.Event()

    def slowly(fitted, method="pca", report=None):
        if method == "tsne":
            report(0.25)
            started.set()
            free.wait(30)
        return memory_map(fitted)

    monkeypatch.setattr(service, "memory_map", slowly)
    with asked(limits=Limits(deadline=5)) as client:
        asking = threading.Thread(target=lambda: client.get("/map", params={"method": "tsne"}))
        asking.start()
        try:
            assert started.wait(10)
            assert client.get("/page/map/progress").json() == {"progress": 0.25}
            assert "decided" in client.post("/page/review/queue", json={}).text
            assert client.get("/map").is_success
            assert client.get("/page/trust/view").is_success
        finally:
            free.set()
            asking.join()


def test_a_map_by_pca_does_not_wait_for_slow_reads(asked):
    free = threading.Event()
    with asked(limits=Limits(deadline=5)) as client:
        until(lambda: step_of(client) is None)
        client.service._readings.submit(lambda: free.wait(30))
        try:
            assert client.get("/map").is_success
        finally:
            free.set()


def test_a_layout_that_nobody_waits_for_is_given_up():
    reached, ended = threading.Event(), threading.Event()

    def endless():
        try:
            while True:
                layouts.report(0.1)
                reached.set()
                time.sleep(0.001)
        finally:
            ended.set()

    def work(requests):
        found = []
        for one in requests:
            try:
                found.append(one())
            except AbandonedError as error:
                found.append(error)
        return found

    layouts = Layouts(work, 5)
    with pytest.raises(TimeoutError):
        asyncio.run(layouts.answer(endless, 0.2, stays))
    assert reached.is_set() and not ended.is_set()  # whoever waited has a minute to ask again
    with pytest.raises(TimeoutError):
        asyncio.run(layouts.answer(endless, 5, leaves))
    assert ended.wait(10)
    assert layouts.progress is None
    assert asyncio.run(layouts.answer(lambda: "next", 5, stays)) == "next"
    with pytest.raises(TimeoutError):
        asyncio.run(layouts.answer(endless, 0.2, stays))
    layouts.close()  # without waiting for the end of what has none


def test_t_sne_reports_its_progress_and_is_ended_by_what_that_raises(client):
    pytest.importorskip("openTSNE")
    fitted, shares = client.service.live.now.fitted, []
    found = memory_map(fitted, "tsne", shares.append)
    assert shares == sorted(shares) and 0 < shares[0] < 0.1 and shares[-1] == 1
    before = len(shares)
    found.project(fitted.bank.keys["features"][:2].float().numpy())
    assert len(shares) == before

    def give_up(_):
        raise AbandonedError

    with pytest.raises(AbandonedError):
        memory_map(fitted, "tsne", give_up)
