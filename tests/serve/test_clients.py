"""Clients that are generated of /openapi.json compile, and ask a running service."""

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nearwise.serve.keys import make_key, read_keys
from tests.serve.conftest import served

CLIENTS = Path(__file__).parent / "clients"
NODE_PACKAGES = ("openapi-typescript@7", "openapi-fetch@0.17", "typescript@5")
COMPILER = {"strict": True, "noUncheckedIndexedAccess": True, "target": "es2022"}
pytestmark = pytest.mark.slow


def run(*command, cwd, **environment):
    """Run a program, which must succeed; its output."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def service(folder):
    with served(folder) as url:
        yield url


@pytest.fixture
def description(service, tmp_path):
    """The description of the service, as a file."""
    with urllib.request.urlopen(f"{service}/openapi.json") as answer:
        content = answer.read()
    path = tmp_path / "openapi.json"
    path.write_bytes(content)
    return path


def check(found, service):
    """What both clients were answered; the same as without a client."""
    row = {"age": 1, "income": None, "town": "Rome"}
    body = json.dumps({"rows": [row], "confidence": 0.8}).encode()
    request = urllib.request.Request(
        f"{service}/predict", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        (wanted,) = json.loads(answer.read())["predictions"]
    assert (found["label"], found["sets"]) == (wanted["label"], wanted["set"])
    assert found["novelty"] and found["shares"] == 5
    assert found["undone"] == "remove" and found["findings"] >= 3
    assert "not remembered" in found["missing"]


def test_a_client_in_typescript(service, description, tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", ".", *NODE_PACKAGES]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"npm cannot install {', '.join(NODE_PACKAGES)}: {done.stderr[-300:]}")
    shutil.copy(CLIENTS / "client.ts", tmp_path)
    settings = {"compilerOptions": COMPILER | {"module": "nodenext"}, "files": ["client.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(settings))
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    programs = tmp_path / "node_modules/.bin"
    run(programs / "openapi-typescript", description.name, "-o", "nearwise.d.ts", cwd=tmp_path)
    run(programs / "tsc", cwd=tmp_path)
    found = json.loads(run("node", "client.js", service, cwd=tmp_path))
    assert found.pop("refusal") == 422
    check(found, service)


def test_a_client_in_python(service, description, tmp_path):
    generator = shutil.which("openapi-python-client")
    if generator is None:
        pytest.skip("needs openapi-python-client on the path, such as by pipx")
    pytest.importorskip("httpx")
    pytest.importorskip("attrs")
    run(generator, "generate", "--path", description, "--meta", "none", cwd=tmp_path)
    shutil.copy(CLIENTS / "client.py", tmp_path)
    run(
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "client.py",
        cwd=tmp_path,
    )
    check(json.loads(run(sys.executable, "client.py", service, cwd=tmp_path)), service)


@contextmanager
def website(folder):
    """A web site of its own origin."""
    server = ThreadingHTTPServer(
        ("localhost", 0), partial(SimpleHTTPRequestHandler, directory=folder)
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


ASK = """async ([url, key]) => {
    const headers = {"Content-Type": "application/json", "Authorization": `Bearer ${key}`};
    const body = JSON.stringify({rows: [{age: 1, income: null, town: "Rome"}]});
    try {
        const answer = await fetch(url + "/predict", {method: "POST", headers, body});
        return [answer.status, await answer.json()];
    } catch (error) {
        return [0, String(error)];
    }
}"""


def test_a_page_of_an_allowed_origin_in_a_browser(browser, folder, tmp_path):
    key, sites = make_key(tmp_path / "keys.json", "app", "read"), tmp_path / "site"
    sites.mkdir()
    (sites / "index.html").write_text("<!doctype html><title>An application</title>")
    with website(sites) as origin, website(sites) as other:
        access = {"keys": read_keys(tmp_path / "keys.json"), "allow_origins": [origin]}
        with served(folder, **access) as base:
            page = browser.new_page()
            page.goto(origin)
            status, found = page.evaluate(ASK, [base, key])
            assert status == 200 and found["predictions"][0]["label"] in ("yes", "no")
            status, found = page.evaluate(ASK, [base, "nw_wrong"])
            assert status == 401 and "unknown" in found["detail"]  # the page can read the problem
            page.goto(other)
            assert page.evaluate(ASK, [base, key])[0] == 0
            page.close()
