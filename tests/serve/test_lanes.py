"""Lanes: bounded, fair, joined by group; what is cancelled or fails touches nobody else."""

import threading
import time

import pytest

from nearwise.serve import Limits
from nearwise.serve.batching import Lane, QueueFullError
from tests.forks import in_a_child
from tests.serve.conftest import json_rows, problem, until


@pytest.fixture
def held():
    """A lane that works when it is let, and the batches it was given."""
    free, batches = threading.Event(), []

    def work(requests):
        assert free.wait(20)
        batches.append(list(requests))
        return [ValueError(one) if one == "bad" else one for one in requests]

    lane = Lane("test", work, max_waiting=5, max_rows=4)
    lane.submit("first")
    while lane.n_waiting:
        time.sleep(0.001)
    yield lane, free, batches
    free.set()
    lane.close()


def test_those_that_wait_are_joined_by_group_up_to_the_rows_that_fit(held):
    lane, free, batches = held
    answers = [
        lane.submit(name, group=group, n_rows=n_rows)
        for name, group, n_rows in (
            ("a1", "a", 2), ("b1", "b", 1), ("a2", "a", 3), ("a3", "a", 2), ("b2", "b", 9),
        )
    ]  # fmt: skip
    free.set()
    assert [one.result(20) for one in answers] == ["a1", "b1", "a2", "a3", "b2"]
    assert batches == [["first"], ["a1", "a3"], ["b1"], ["a2"], ["b2"]]


def test_a_full_queue_says_so_at_once(held):
    lane, _, _ = held
    for _ in range(5):
        lane.submit("x")
    with pytest.raises(QueueFullError):
        lane.submit("x")


def test_what_is_cancelled_is_left_out_and_what_fails_fails_alone(held):
    lane, free, batches = held
    gone, bad, good = (lane.submit(name, group=1) for name in ("gone", "bad", "good"))
    assert gone.cancel()
    free.set()
    with pytest.raises(ValueError, match="bad"):
        bad.result(20)
    assert good.result(20) == "good"
    assert batches[1:] == [["bad", "good"]]


def test_closing_answers_what_waits_and_takes_no_more(held):
    lane, free, _ = held
    waiting = lane.submit("last")
    free.set()
    lane.close()
    assert waiting.result(0) == "last"
    with pytest.raises(QueueFullError):
        lane.submit("x")


def test_a_fault_reaches_those_who_wait_and_the_lane_goes_on():
    calls = []

    def work(requests):
        calls.append(requests)
        if len(calls) == 1:
            raise SystemError("broken")
        return requests

    lane = Lane("test", work, max_waiting=5)
    with pytest.raises(SystemError):
        lane.submit(1).result(20)
    assert lane.submit(2).result(20) == 2
    lane.close()


def test_a_full_service_answers_429_and_goes_on(asked, monkeypatch):
    _, rows = json_rows(1)
    with asked(limits=Limits(max_queue=2, deadline=0.3)) as client:
        lane, free = client.service.predictions, threading.Event()
        work = lane._work
        monkeypatch.setattr(lane, "_work", lambda requests: free.wait(20) and work(requests))
        late = [client.post("/predict", json={"rows": rows}) for _ in range(3)]
        full = client.post("/predict", json={"rows": rows})
        assert "waiting" in problem(full, 429)
        assert full.headers["retry-after"] == "1"
        for one in late:
            assert "deadline" in problem(one, 504)
        free.set()
        until(lambda: client.post("/predict", json={"rows": rows}).status_code == 200)


def test_a_lane_answers_in_a_forked_child_too():
    lane = Lane("doubling", lambda numbers: [2 * one for one in numbers], max_waiting=3)
    assert lane.submit(1).result(30) == 2

    def work():
        assert lane.submit(4).result(30) == 8
        lane.close()

    in_a_child(work)
    assert lane.submit(2).result(30) == 4
    lane.close()
