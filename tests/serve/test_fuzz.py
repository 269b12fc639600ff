"""Ten thousand requests as no client should send them: no fault, no crash, no growth."""

import json
import resource
import string
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.serve.conftest import json_rows
from tests.serve.test_description import holds

schemathesis = pytest.importorskip("schemathesis")
pytestmark = pytest.mark.slow
N_SCHEMA, N_BODIES, N_BYTES = 300, 2_500, 2_500  # examples: per route, and in all
EASY = {"deadline": None, "suppress_health_check": list(HealthCheck)}

text = st.text(st.characters(exclude_categories=()), max_size=5)  # lone surrogates too
cells = st.none() | st.booleans() | st.integers() | st.floats() | text
odd = st.recursive(cells, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner))
names = st.sampled_from(["age", "income", "town", "x"])
bodies = st.fixed_dictionaries(
    {},
    optional={
        "rows": st.lists(st.dictionaries(names, cells | odd, max_size=4), max_size=3) | odd,
        "features": st.lists(st.lists(cells, max_size=4), max_size=3) | odd,
        "images": st.lists(st.text(string.ascii_letters, max_size=8), max_size=2) | odd,
        "labels": st.lists(cells, max_size=3) | odd,
        "confidence": cells,
        "coverage": cells,
        "novelty": cells,
        "n_neighbors": cells,
        "new_classes": cells,
        "inputs": odd,
        "label": cells,
        "action": st.sampled_from(["relabel", "keep", "remove", "?"]),
    },
)
WITH_BODY = ("/predict", "/explain", "/rows", "/feedback", "/issues/1", "/v2/models/table/infer")


def answered(client, method, url, **sent):
    response = client.request(method, url, **sent)
    assert response.status_code < 500 or response.status_code == 503, response.text
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["detail"]
    return response


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_bodies_that_are_nearly_right(client):
    held = []

    @settings(max_examples=N_BODIES, **EASY)
    @given(st.sampled_from(WITH_BODY), bodies)
    def ask(url, body):
        answered(
            client, "POST", url,
            content=json.dumps(body), headers={"content-type": "application/json"},
        )  # fmt: skip
        held.append(memory())

    ask()
    assert held[-1] < held[len(held) // 5] * 1.2
    _, rows = json_rows(1)
    assert client.post("/predict", json={"rows": rows}).status_code == 200


def test_bytes_that_are_no_json(client):
    @settings(max_examples=N_BYTES, **EASY)
    @given(
        st.sampled_from(WITH_BODY),
        st.binary(max_size=200) | st.text('[]{}":,0123456789.eE-+ntrufalse\\', max_size=80),
    )
    def ask(url, content):
        raw = content if isinstance(content, bytes) else content.encode()
        answered(client, "POST", url, content=raw, headers={"content-type": "application/json"})

    ask()
    _, rows = json_rows(1)
    assert client.post("/predict", json={"rows": rows}).status_code == 200


def test_requests_made_of_the_description(client):
    described = client.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(described)
    n_requests = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in ("/refresh", "/compact"):  # jobs that keep writers waiting
            continue
        modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
        for mode in modes:

            @settings(max_examples=N_SCHEMA // 2, **EASY)
            @given(operation.as_strategy(generation_mode=mode))
            def ask(case):
                nonlocal n_requests
                n_requests += 1
                arguments = case.as_transport_kwargs(base_url="http://testserver")
                sent = arguments.get("headers") or {}  # any characters, as bytes
                arguments["headers"] = {
                    name: str(value).encode("utf-8", "replace") for name, value in sent.items()
                }
                response = answered(
                    client,
                    arguments["method"],
                    arguments["url"],
                    **{
                        name: arguments[name]
                        for name in ("headers", "params", "json")
                        if arguments.get(name) is not None
                    },
                )
                path = case.operation.path
                if response.is_success and path != "/metrics":
                    holds(described, case.operation.method.lower(), path, response)

            if mode is modes[0]:
                ask()
            else:
                with suppress(Unsatisfiable):  # of a route that takes nothing, nothing is wrong
                    ask()
    assert n_requests > 18 * N_SCHEMA / 2
