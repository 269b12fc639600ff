"""Who may ask what: keys, hosts, origins, sizes, types; and what clients send stays data."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from nearwise.serve import Limits, make_key, read_keys
from nearwise.serve.guards import Guards, checked_origins, host_name
from nearwise.serve.keys import ANYONE, SCOPES, holder_of
from nearwise.serve.monitoring import Monitoring
from tests.serve.conftest import json_rows, problem

READ = [("GET", "/rows/0"), ("GET", "/changes"), ("GET", "/metrics"), ("GET", "/v2/models/table")]
WRITE = [("DELETE", "/rows/0"), ("POST", "/changes/1/undo")]
ADMIN = [("POST", "/compact"), ("POST", "/refresh")]
OPEN = [("GET", "/v2/health/live"), ("GET", "/v2/health/ready"), ("GET", "/openapi.json")]


@pytest.fixture
def keys(tmp_path):
    """A file with a key of each scope, and the keys."""
    path = tmp_path / "keys.json"
    return path, {scope: make_key(path, scope, scope) for scope in SCOPES}


def test_each_scope_opens_what_it_names_and_no_more(asked, keys):
    path, made = keys
    with asked(keys=read_keys(path)) as client:
        for scope, key in made.items():
            for sent in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key}):
                for needed, routes in (("read", READ), ("write", WRITE), ("admin", ADMIN)):
                    for method, route in routes:
                        found = client.request(method, route, headers=sent)
                        if SCOPES.index(scope) < SCOPES.index(needed):
                            assert f"not for {needed}" in problem(found, 403)
                        else:
                            assert found.status_code not in (401, 403)


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic YTpi"},
        {"X-API-Key": "\xff"},
        {"X-API-Key": ""},
    ],
)
def test_without_a_known_key_only_health_and_the_description_are_open(asked, keys, sent):
    path, _ = keys
    sent = {name: value.encode("latin-1") for name, value in sent.items()}
    with asked(keys=read_keys(path)) as client:
        for method, route in READ + WRITE + ADMIN:
            found = client.request(method, route, headers=sent)
            assert "Bearer" in problem(found, 401)
            assert found.headers["www-authenticate"] == "Bearer"
        for method, route in OPEN:
            assert client.request(method, route, headers=sent).status_code == 200


def test_every_route_but_the_open_ones_asks_for_a_key(asked, keys):
    path, _ = keys
    with asked(keys=read_keys(path)) as client:
        described = client.get("/openapi.json").json()["paths"]
        assert len(described) >= 20
        for route, methods in described.items():
            for method in methods:
                if (method.upper(), route) in OPEN:
                    continue
                url = route.format(id=0, version=1, model="table")
                problem(client.request(method, url, content=b"{"), 401)  # and the body is not read


def test_a_keys_file_never_holds_a_key(keys):
    path, made = keys
    text = path.read_text()
    assert not any(key in text for key in made.values())
    assert {holder_of(key, read_keys(path)).scope for key in made.values()} == set(SCOPES)
    assert holder_of("nw_other", read_keys(path)) is None
    with pytest.raises(ValueError, match="called 'read'"):
        make_key(path, "read", "admin")
    with pytest.raises(ValueError, match="not a name"):
        make_key(path, "a b", "read")
    assert len(set(made.values())) == 3 and all(ANYONE.may(scope) for scope in SCOPES)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a keys file"),
        ("[]", "holds no key"),
        ('[{"name": "a", "scope": "all", "sha256": "00"}]', "scope"),
        (json.dumps([{"name": "a", "scope": "read", "sha256": "0" * 64}] * 2), "two keys"),
    ],
)
def test_a_keys_file_that_is_none_is_refused(tmp_path, content, says):
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=says):
        read_keys(path)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"Host": "evil.example"}, 403),  # a name that was made to lead here
        ({"Host": "evil.example:8080"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost:8080"}, 200),
        ({"Host": "[::1]:8080"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
        ({"Host": "localhost", "Origin": "https://localhost"}, 403),
        ({"Host": "localhost", "Origin": "chrome-extension://localhost"}, 403),
        ({"Host": "testserver", "Origin": "https://testserver"}, 200),  # through a TLS proxy
        ({"Host": "testserver", "Origin": "chrome-extension://testserver"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),  # a link to it
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_pages_of_other_sites_reach_nothing(asked, sent, status):
    with asked(hosts={"LocalHost", "::1", "testserver"}) as client:
        found = client.get("/v2/health/live", headers=sent)
        assert found.status_code == status


APP = "https://app.example.org"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "cors",
}


@pytest.mark.parametrize("has_keys", [False, True])
def test_pages_of_an_allowed_origin_may_ask_what_their_key_may(asked, keys, has_keys):
    path, made = keys
    _, rows = json_rows(1)
    known = read_keys(path) if has_keys else ()
    cors = {"Origin": APP, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    with asked(keys=known, hosts={"testserver"}, origins=[APP.upper()]) as client:
        before = client.options("/predict", headers=PREFLIGHT | {"Origin": APP})
        assert before.status_code == 204 and before.content == b""
        assert before.headers["access-control-allow-origin"] == APP
        assert "POST" in before.headers["access-control-allow-methods"]
        for name in ("Authorization", "Content-Type", "Idempotency-Key", "X-API-Key"):
            assert name in before.headers["access-control-allow-headers"]
        sent = {"Authorization": f"Bearer {made['read']}"} if has_keys else {}
        found = client.post("/predict", json={"rows": rows}, headers=cors | sent)
        refused = client.post("/predict", json={"rows": []}, headers=cors | sent)
        unknown = client.post("/predict", json={"rows": rows}, headers=cors)
        assert (found.status_code, refused.status_code) == (200, 422)
        assert unknown.status_code == (401 if has_keys else 200)
        for one in (found, refused, unknown):  # else the page could not read the problem
            assert one.headers["access-control-allow-origin"] == APP
            assert one.headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in one.headers
        elsewhere = cors | {"Host": "evil.example"}
        assert "--allow-host" in problem(client.get("/changes", headers=elsewhere), 403)


@pytest.mark.parametrize("origin", ["https://evil.example", f"{APP}.evil.example", "null", ""])
def test_a_preflight_from_elsewhere_is_told_how_its_origin_is_allowed(asked, origin):
    for origins in ((), [APP]):
        with asked(origins=origins) as client:
            refused = client.options("/predict", headers=PREFLIGHT | {"Origin": origin})
            assert "--allow-origin" in problem(refused, 403)
            assert "access-control-allow-origin" not in refused.headers


def test_every_origin_is_allowed_only_where_keys_are_needed(asked, keys):
    path, _ = keys
    with asked(keys=read_keys(path), origins=["*"]) as client:
        found = client.get("/changes", headers={"Origin": "https://anyone.example"})
        assert "A key is needed" in problem(found, 401)
        assert found.headers["access-control-allow-origin"] == "https://anyone.example"
    with pytest.raises(ValueError, match="Name the origins, or require keys"):
        checked_origins(["*"], has_keys=False)


@pytest.mark.parametrize(
    "origin", ["app.example.org", f"{APP}/", f"{APP}/page", "null", "", "https://*.example.org"]
)
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(ValueError, match="not the origin of a page"):
        checked_origins([origin], has_keys=True)


def test_a_body_that_does_not_come_is_not_waited_for():
    async def never():
        await asyncio.sleep(60)

    async def reads(scope, receive, send):
        await receive()

    sent = []

    async def send(message):
        sent.append(message)

    monitoring = Monitoring(None)
    guards = Guards(reads, None, (), 100, monitoring, 0.05, lambda: False)
    scope = {
        "type": "http", "method": "POST", "path": "/predict", "headers": [], "scheme": "http",
    }  # fmt: skip
    asyncio.run(guards(scope, never, send))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/predict"),
        ("POST", "/explain"),
        ("POST", "/rows"),
        ("POST", "/feedback"),
        ("PATCH", "/rows/1"),
        ("POST", "/issues/1"),
        ("POST", "/v2/models/table/infer"),
        ("POST", "/page/ask/answer"),
    ],
)
def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_fault(client, caplog, method, path):
    parts = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return parts.pop(0)

    async def send(message):
        raise AssertionError(f"nobody is there to get {message}")

    scope = {
        "type": "http", "method": method, "path": path, "headers": [], "query_string": b"",
        "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    asyncio.run(client.app(scope, receive, send))
    assert caplog.records == []
    text = client.get("/metrics").text
    assert f'method="{method}"' in text and 'status="499"' in text and 'status="500"' not in text


def test_keys_that_are_made_at_once_are_all_kept(tmp_path):
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: make_key(path, f"k{i}", "read"), range(16)))
    assert {holder_of(key, read_keys(path)).name for key in made} == {f"k{i}" for i in range(16)}


def test_a_host_is_told_from_its_port():
    names = {
        "a": "a", "A:80": "a", "[::1]:9": "::1", "::1": "", "a:b": "", "[x]": "", "": "",
    }  # fmt: skip
    assert {host: host_name(host) for host in names} == names


def test_too_much_is_refused_before_it_is_read(asked):
    _, rows = json_rows(3)
    with asked(limits=Limits(max_rows=2, max_body=500)) as client:
        assert "3 rows" in problem(client.post("/predict", json={"rows": rows}), 413)
        assert "3 rows" in problem(
            client.post("/rows", json={"rows": rows, "labels": ["no"] * 3}), 413
        )
        assert "500 bytes" in problem(client.post("/predict", json={"rows": rows * 9}), 413)

        def chunks():  # no Content-Length tells
            for _ in range(100):
                yield b"[" * 50

        sent = {"Content-Type": "application/json"}
        streamed = client.post("/predict", content=chunks(), headers=sent)
        assert "500 bytes" in problem(streamed, 413)


@pytest.mark.parametrize(
    "sent",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {"Content-Type": "application/json", "Inference-Header-Content-Length": "3"},
    ],
)
def test_bodies_of_other_types_are_refused(client, sent):
    problem(client.post("/predict", content=b"{}", headers=sent), 415)


def test_every_answer_is_sealed(client):
    for url in ("/v2/health/live", "/docs", "/nothing", "/rows/100000", "/docs/start.js"):
        headers = client.get(url).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_the_documentation_needs_no_other_host(client):
    page = client.get("/docs").text
    for url in ("/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/start.js"):
        assert f'"{url[1:]}"' in page  # relative, for an application that is mounted in another
        assert client.get(url).status_code == 200
    assert "http" not in page.replace("HTTP", "")
    assert "<script>" not in page
    problem(client.get("/docs/core.py"), 422)
    problem(client.get("/docs/..%2Fcore.py"), 404)


def test_what_a_cell_holds_comes_back_as_json_alone(client):
    text = "</script><img src=x onerror=alert(1)>\u2028\ud7ff\x00"
    row = {"age": 1.0, "income": 2.0, "town": text}
    ids = client.post("/rows", json={"rows": [row], "labels": ["yes"]}).json()["ids"]
    found = client.get(f"/rows/{ids[0]}")
    assert found.json()["row"]["town"] == text
    assert found.headers["content-type"] == "application/json"
    assert found.content.isascii()


def test_faults_are_logged_and_not_told(client, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("a secret")

    monkeypatch.setattr(client.service.predictions, "_work", broken)
    _, rows = json_rows(1)
    assert "secret" not in problem(client.post("/predict", json={"rows": rows}), 500)
    assert "a secret" in caplog.text


def test_figures_count_what_was_asked(client):
    _, rows = json_rows(4)
    client.post("/predict", json={"rows": rows})
    client.get("/rows/100000")
    client.get("/made/up/by/a/client")
    for method in ("BREW", "PROPFIND", "LINK"):
        client.request(method, "/predict")
    text = client.get("/metrics").text
    assert 'nearwise_requests_total{method="POST",route="/predict",status="200"} 1.0' in text
    assert 'nearwise_requests_total{method="GET",route="/rows/{id}",status="404"} 1.0' in text
    assert "made" not in text
    assert 'method="other",route="/predict",status="405"} 3.0' in text
    assert not any(method in text for method in ("BREW", "PROPFIND", "LINK"))
    assert "nearwise_rows_total 4.0" in text
    n_rows = len(client.service.live.model.memory_)
    assert f"nearwise_memory_rows {float(n_rows)}" in text
