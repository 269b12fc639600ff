"""What /openapi.json says of each answer holds of real answers, and its examples are answered."""

import jsonschema
import numpy as np
import pandas as pd
import pytest

from nearwise.serve.keys import make_key, read_keys
from tests.estimators.cases import attn_knn
from tests.estimators.image_cases import BRIEF, patches


def two_hundreds(operation):
    return {code: one for code, one in operation["responses"].items() if code.startswith("2")}


def schema_of(described, method, path):
    (answer,) = two_hundreds(described["paths"][path][method]).values()
    schema = answer["content"]["application/json"]["schema"]
    return schema | {"components": described["components"]}


def holds(described, method, path, response):
    """Whether an answer is one of those that the description tells of."""
    operation = described["paths"][path][method]
    assert str(response.status_code) in two_hundreds(operation), response.text
    jsonschema.validate(response.json(), schema_of(described, method, path))


def resolved(described, schema):
    while "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def test_every_answer_is_an_object_with_typed_members(client):
    described = client.get("/openapi.json").json()
    n_described = 0
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            (answer,) = two_hundreds(operation).values()
            if path == "/metrics":
                assert list(answer["content"]) == ["text/plain"]
                continue
            schema = resolved(described, answer["content"]["application/json"]["schema"])
            assert schema["type"] == "object" and schema["properties"], (method, path)
            assert schema["additionalProperties"] is False
            assert operation["summary"] and "_" not in operation["summary"]
            n_described += 1
    assert n_described >= 22
    names = described["components"]["schemas"]
    assert {"proba", "neighbors", "memory_version"} <= {
        name for schema in names.values() for name in schema.get("properties", ())
    }


def test_answers_are_as_they_are_described(client):
    described = client.get("/openapi.json").json()

    def asked(method, path, body=None, **values):
        found = client.request(method, path.format(**values), json=body)
        holds(described, method.lower(), path, found)
        return found.json()

    row = {"age": 1.0, "income": None, "town": "Rome"}
    more = {"confidence": 0.8, "novelty": True}
    for path in ("/predict", "/explain"):
        asked("POST", path, {"rows": [row, row]})
        asked("POST", path, {"rows": [row]} | more | {"coverage": 0.9})
    (id,) = asked("POST", "/rows", {"rows": [row], "labels": ["yes"]})["ids"]
    asked("GET", "/feedback")
    asked("POST", "/feedback", {"rows": [row], "labels": ["no"]})
    asked("GET", "/feedback")
    asked("GET", "/rows/{id}", id=id)
    asked("PATCH", "/rows/{id}", {"label": "no"}, id=id)
    asked("POST", "/issues/{id}", {"action": "keep"}, id=id)
    asked("DELETE", "/rows/{id}", id=id)
    asked("POST", "/changes/{version}/undo", version=5)
    asked("GET", "/changes")
    asked("GET", "/issues")
    asked("GET", "/map")
    found = client.get("/map", params={"doubt": True})
    holds(described, "get", "/map", found)
    for path in ("/v2", "/v2/health/live", "/v2/health/ready"):
        asked("GET", path)
    for path in ("/v2/models/{model}", "/v2/models/{model}/ready"):
        asked("GET", path, model="table")
    tensors = [{"name": "age", "shape": [1], "datatype": "FP64", "data": [1.0]}]
    tensors += [{"name": "income", "shape": [1], "datatype": "FP64", "data": [None]}]
    tensors += [{"name": "town", "shape": [1], "datatype": "BYTES", "data": ["Atlantis"]}]
    asked("POST", "/v2/models/{model}/infer", {"inputs": tensors, "id": "a"}, model="table")
    for path in ("/compact", "/refresh"):
        job = asked("POST", path)["job"]
        asked("GET", "/jobs/{id}", id=job)
        while asked("GET", "/jobs/{id}", id=job)["state"] in ("waiting", "running"):
            pass


def _dates():
    n = 80
    frame = pd.DataFrame(
        {
            "id": np.arange(n),
            "when": pd.date_range("2024-01-01", periods=n).strftime("%d.%m.%Y"),
            "flag": np.arange(n) % 2 == 0,
            "zip": pd.Categorical(np.arange(n) % 3),
            "size": np.arange(n) % 11 / 7,
        }
    )
    return frame, np.where(np.arange(n) % 2 == 0, "a", "b")


def _images():
    return patches(100)


def _embeddings():
    X = np.random.default_rng(0).normal(size=(90, 70))
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    "made", [None, _dates, _images, _embeddings], ids=["table", "dates", "images", "embeddings"]
)
def test_the_example_of_each_body_is_of_this_model_and_is_answered(asked, folder, tmp_path, made):
    if made is not None:
        folder = tmp_path / "m.model"
        settings = BRIEF if made is _images else {"preset": "instant"}
        attn_knn(**settings).fit(*made()).save(folder)
    with asked(folder) as client:
        described = client.get("/openapi.json").json()
        n_asked = 0
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                if "requestBody" not in operation:
                    continue
                content = operation["requestBody"]["content"]["application/json"]
                schema = content["schema"] | {"components": described["components"]}
                jsonschema.validate(content["example"], schema)
                given = {one["name"]: one.get("example") for one in operation.get("parameters", ())}
                found = client.request(method, path.format(**given), json=content["example"])
                holds(described, method, path, found)
                assert not found.json().get("warnings"), found.text
                n_asked += 1
        assert n_asked == 7


def test_where_keys_are_needed_the_description_shows_nothing_of_the_model(asked, tmp_path):
    make_key(tmp_path / "keys.json", "one", "read")
    with asked(keys=read_keys(tmp_path / "keys.json")) as client:
        text = client.get("/openapi.json").text
        assert "Lima" not in text and '"town"' not in text and '"example"' not in text


def test_an_example_names_a_row_that_is_still_there(client):
    def shown():
        described = client.get("/openapi.json").json()
        (parameter, *_) = described["paths"]["/rows/{id}"]["get"]["parameters"]
        return parameter["example"]

    before = shown()
    assert client.delete(f"/rows/{before}").status_code == 200
    assert client.get(f"/rows/{shown()}").status_code == 200
