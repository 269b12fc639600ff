"""A service on a model of its own, asked in this process."""

import shutil
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn
from fastapi.testclient import TestClient

from nearwise.estimators import AttnKNNClassifier, LiveModel
from nearwise.serve import Limits, Service, create_app
from tests.store.folders import saved_pair, small_table


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Folders of a model of arrays and one of a table with a base."""
    return saved_pair(tmp_path_factory.mktemp("serve"))


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved / "table", tmp_path / "table.model")


@pytest.fixture
def model(folder):
    """The model as it was before the service changed anything."""
    return AttnKNNClassifier.load(folder)


@pytest.fixture
def asked(folder):
    """Open a service on the folder, and a client of it."""

    @contextmanager
    def open_service(where=folder, keys=(), hosts=None, *, origins=(), limits=None, **options):
        service = Service(LiveModel(where), limits or Limits(), **options)
        access = {"keys": keys, "hosts": hosts, "allow_origins": origins}
        app = create_app(service, name="table", **access)
        with TestClient(app, raise_server_exceptions=False) as client:
            client.service = service
            yield client

    return open_service


@pytest.fixture
def client(asked):
    with asked() as client:
        yield client


def json_rows(n=6, seed=9):
    """Rows of the table as JSON has them: null where a value is missing."""
    frame, _ = small_table(n, seed=seed)
    return frame, [
        {name: None if value != value else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def problem(response, status):
    """The detail of an answer that must be a problem of that status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    content = response.json()
    assert (content["status"], content["type"]) == (status, "about:blank")
    return content["detail"]


def until(asked, n=400):
    """What is asked until it is true, for a few seconds at most."""
    for _ in range(n):
        found = asked()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come about")


@contextmanager
def served(folder, **options):
    """Serve a folder by a server of its own, at a free port of this machine."""
    with served_app(create_app(Service(LiveModel(folder)), **options)) as base:
        yield base


@contextmanager
def served_app(app):
    """Serve an application by a server of its own, at a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
