"""``nearwise serve`` and ``nearwise key``, the service in a process of its own."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import fastapi  # noqa: F401  # without the extra "serve" none of this can be tested
import pytest

from nearwise.estimators import AttnKNNClassifier
from tests.store.folders import plain_model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve") / "m"
    plain_model().save(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "rows of mine.model")


class Served:
    """A service that runs in another process, and requests to it."""

    def __init__(self, folder, *options, descriptors=None):
        """`descriptors`: soft and hard limit of open files."""

        def limit():
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)

        command = [sys.executable, "-m", "nearwise", "serve", str(folder), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, *options], stderr=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, preexec_fn=limit,
        )  # fmt: skip
        self.said = ""
        while "Ctrl-C" not in self.said:
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.said}"
            self.said += line
        self.url = re.search(r"http://\S+:\d+", self.said)[0]

    def ask(self, path, body=None, method=None, **headers):
        content = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | headers
        request = urllib.request.Request(self.url + path, content, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(30)
        return self.process.stderr.read()


@pytest.fixture
def served():
    running = []

    def start(*arguments, **options):
        running.append(Served(*arguments, **options))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.wait()
        one.process.stderr.close()


def test_a_service_answers_remembers_and_drains(folder, served):
    X = plain_model()._fitted.rows[:2]
    service = served(folder)
    assert "Open Inference Protocol name: rows-of-mine" in service.said
    status, found = service.ask("/predict", {"features": X.tolist()})
    assert status == 200
    assert [one["label"] for one in found["predictions"]] == plain_model().predict(X).tolist()
    assert service.ask("/rows", {"features": X.tolist(), "labels": [0, 1]})[0] == 201
    late = []
    body = {"features": [X[0].tolist()] * 1_500, "n_neighbors": 20}
    asking = threading.Thread(target=lambda: late.append(service.ask("/explain", body)))
    asking.start()
    time.sleep(0.05)
    assert service.stop() == ""  # and no traceback
    asking.join()
    assert late[0][0] == 200
    assert len(late[0][1]["predictions"]) == 1_500
    assert len(AttnKNNClassifier.load(folder).memory_) == len(plain_model().memory_) + 2


def connected(service, sent=b"GET / HTTP/1.1\r\n"):
    """A connection that sends part of a request and waits."""
    one = socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), 30)
    one.sendall(sent)
    return one


def test_pages_of_named_origins_may_ask(folder, served):
    origins = "http://localhost:3000", "https://app.example.org"
    service = served(folder, *(word for one in origins for word in ("--allow-origin", one)))
    for origin in origins:
        assert service.ask("/changes", Origin=origin)[0] == 200
    status, found = service.ask("/changes", Origin="http://localhost:3001")
    assert status == 403 and "--allow-origin" in found["detail"]


def test_idle_connections_beyond_the_limit_of_descriptors_stop_nothing(folder, served):
    X = plain_model()._fitted.rows[:1].tolist()
    service = served(folder, descriptors=(128, 192))
    limits = Path(f"/proc/{service.process.pid}/limits").read_text()
    assert re.search(r"Max open files +192 +192", limits)  # raised to what the system allows
    idle = []
    try:
        for _ in range(5):
            idle += [connected(service) for _ in range(60)]
            assert service.ask("/v2/health/live")[0] == 200
            status, found = service.ask("/rows", {"features": X, "labels": [0]})
            assert status == 201, found  # the journal has descriptors left
            assert service.ask("/changes")[0] == 200
    finally:
        for one in idle:
            one.close()
    assert service.ask("/predict", {"features": X})[0] == 200


def test_headers_that_do_not_come_to_an_end_are_not_waited_for(folder, served):
    service = served(folder, "--deadline", "0.5")
    for before in (b"", b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with connected(service, before) as one:
            if before:
                answer = b""
                while not answer.endswith(b"}"):
                    answer += one.recv(4096)
                assert answer.startswith(b"HTTP/1.1 200")
            one.sendall(b"GET / HTTP/1.1\r\nHost:")
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(4096) == b""
        assert service.ask("/v2/health/live")[0] == 200


def test_keys_are_made_and_asked_for(folder, served, nearwise, tmp_path):
    keys = tmp_path / "keys.json"
    made = nearwise("key", "laptop", "--keys", keys, "--scope", "write")
    assert made.exit_code == 0
    key = made.out.strip()
    assert "laptop may write" in made.err
    service = served(folder, "--keys", str(keys))
    assert service.ask("/rows/0")[0] == 401
    sent = {"Authorization": f"Bearer {key}"}
    assert service.ask("/rows/0", **sent)[0] == 200
    assert service.ask("/rows/0", method="DELETE", **sent)[0] == 200
    assert service.ask("/compact", method="POST", **sent)[0] == 403


def test_a_follower_follows_a_writer(folder, served):
    writer, follower = served(folder), served(folder, "--follow", "--read-only")
    assert writer.ask("/rows/3", method="DELETE")[0] == 200
    for _ in range(100):
        if follower.ask("/rows/3")[0] == 404:
            break
        time.sleep(0.05)
    assert follower.ask("/rows/4")[1]["memory_version"] == 1
    assert follower.ask("/rows/4", method="DELETE")[0] == 403


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "0.0.0.0"], "can be reached from elsewhere"),
        (["--keys", "nothing.json"], "nothing.json"),
        (["--max-body", "8 MB"], "500KiB"),
        (["--allow-origin", "app.example.org"], "not the origin of a page"),
        (["--allow-origin", "*"], "Name the origins, or require keys"),
        (["--host", "host.invalid.example", "--keys", "KEYS"], "Cannot listen"),
    ],
)
def test_what_cannot_be_served_is_refused(folder, nearwise, tmp_path, options, says):
    nearwise("key", "a", "--keys", tmp_path / "k.json")
    options = [str(tmp_path / "k.json") if option == "KEYS" else option for option in options]
    found = nearwise("serve", folder, *options)
    assert found.exit_code in (1, 2)
    assert says in found.err


def test_a_taken_port_is_told_before_the_model_is_read_and_ctrl_c_is_no_fault(
    folder, served, nearwise
):
    service = served(folder)
    port = service.url.rpartition(":")[2]
    found = nearwise("serve", folder, "--port", port)
    assert f"port {port}" in found.err and "Opening" not in found.err
    assert "Traceback" not in service.stop(signal.SIGINT)


def test_the_example_asks_and_tells(served, nearwise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = Path(__file__).parents[2] / "examples" / "service"
    if not examples.is_dir():
        pytest.skip("examples/ is in the repository alone")
    subprocess.run([sys.executable, examples / "make_table.py"], check=True)
    options = ("--target", "species", "--preset", "instant", "--out", "iris.model")
    assert nearwise("fit", "iris.csv", *options).exit_code == 0
    service = served("iris.model")
    done = subprocess.run(
        [sys.executable, examples / "client.py", service.url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.count("weight") == 3
    assert "'rows': 1" in done.stdout
