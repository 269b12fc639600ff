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
            other = {"/metrics": "text/plain", "/rows/{id}/picture": "image/png"}.get(path)
            if other is not None:
                assert list(answer["content"]) == [other]
                continue
            schema = resolved(described, answer["content"]["application/json"]["schema"])
            assert schema["type"] == "object" and schema["properties"], (method, path)
            assert schema["additionalProperties"] is False
            assert operation["summary"] and "_" not in operation["summary"]
            n_described += 1
    assert n_described >= 27
    names = described["components"]["schemas"]
    assert {"proba", "neighbors", "memory_version"} <= {
        name for schema in names.values() for name in schema.get("properties", ())
    }


def parts_of(schema):
    """Every part of a schema that describes a value."""
    yield schema
    nested = [*schema.get("properties", {}).values()]
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        nested += schema.get(name, [])
    nested += [
        schema[name]
        for name in ("items", "additionalProperties")
        if isinstance(schema.get(name), dict)
    ]
    for one in nested:
        yield from parts_of(one)


def references(part):
    if isinstance(part, dict):
        yield from ([part["$ref"]] if isinstance(part.get("$ref"), str) else [])
        part = part.values()
    if isinstance(part, dict | list) or type(part).__name__ == "dict_values":
        for one in part:
            yield from references(one)


def found_at(described, reference):
    part = described
    for name in reference.removeprefix("#/").split("/"):
        part = part[name]
    return part


def test_every_reference_leads_to_a_part_and_every_part_has_a_type(client):
    described = client.get("/openapi.json").json()
    referred = {*references(described)}
    assert len(referred) > 40
    for reference in referred:
        assert found_at(described, reference)
    used = {one.rpartition("/")[2] for one in referred if "/schemas/" in one}
    schemas = described["components"]["schemas"]
    assert used == schemas.keys()  # nothing is left over either
    free = {("InputTensor", "data"), ("OutputWish", "parameters")}  # the protocol leaves them open
    for name, schema in schemas.items():
        for member, about in schema.get("properties", {}).items():
            for part in parts_of(about):
                typed = {"type", "$ref", "anyOf", "oneOf", "enum", "const"} & part.keys()
                assert typed or (name, member) in free, (name, member)
            assert "default" not in about, (name, member)  # generators take it for required


def test_operations_have_names_for_clients_and_problems_are_described_once(client):
    described = client.get("/openapi.json").json()
    operations = [one for path in described["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len({*names}) == len(names) and all(one.isidentifier() for one in names)
    assert {"predict", "explain", "add_rows", "undo_change", "get_model", "review"} <= {*names}
    tags = [one["name"] for one in described["tags"]]
    assert all(one["tags"][0] in tags for one in operations)
    for one in operations:
        others = one["responses"].keys() - two_hundreds(one).keys()
        assert others == {"default"}
        assert one["responses"]["default"] == {"$ref": "#/components/responses/Problem"}
        for parameter in one.get("parameters", ()):
            assert parameter["description"], (one["operationId"], parameter["name"])
    shared = described["components"]["responses"]["Problem"]
    schema = shared["content"]["application/problem+json"]["schema"]
    schema |= {"components": described["components"]}
    for refused in (
        client.get("/rows/100000"),
        client.post("/predict", json={"rows": [], "x": 1}),
        client.post("/v2/models/table/infer", json={}),
        client.get("/nothing"),
    ):
        assert f"- {refused.status_code}: " in described["info"]["description"]
        jsonschema.validate(refused.json(), schema)
    assert described["servers"][0]["url"] == "/"


def test_a_body_holds_rows_in_exactly_one_form(client):
    described = client.get("/openapi.json").json()
    forms = {
        "rows": [{"age": 1, "income": None, "town": "Rome"}],
        "features": [[1, None]],
        "images": ["aGVsbG8="],
        "remembered": 3,
    }
    n_bodies = 0
    for path in ("/predict", "/explain", "/rows", "/feedback", "/map"):
        content = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        more = {"labels": ["no"]} if path in ("/rows", "/feedback") else {}
        checked = jsonschema.Draft202012Validator(
            content["schema"] | {"components": described["components"]}
        )
        known = [one for one in forms if one != "remembered" or path == "/explain"]
        assert not checked.is_valid(more)
        for one in known:
            assert checked.is_valid(more | {one: forms[one]}), (path, one)
            assert not checked.is_valid(more | {one: None})
            for other in {*forms} - {one}:
                assert not checked.is_valid(more | {one: forms[one], other: forms[other]})
        n_bodies += 1
    assert n_bodies == 5


def test_what_is_there_on_request_is_optional_and_the_rest_required(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    optional = {
        name: {*schema["properties"]} - {*schema.get("required", ())}
        for name, schema in schemas.items()
        if "properties" in schema
    }
    assert optional["Prediction"] == optional["Explanation"] == {"set", "novelty_p", "accepted"}
    assert optional["Neighbor"] == {"column_shares", "show"}
    assert optional["Predictions"] == optional["Explanations"] == {"selection"}
    assert optional["MemoryMap"] == optional["MapValues"] == set()
    assert optional["Changed"] == optional["ClassifierSummary"] == set()
    assert schemas["Change"]["properties"]["time"]["format"] == "date-time"
    for name in ("started", "finished"):
        kinds = schemas["Job"]["properties"][name]["anyOf"]
        assert {"type": "string", "format": "date-time"} in kinds


def test_a_key_is_described_where_one_is_needed(asked, tmp_path):
    make_key(tmp_path / "keys.json", "one", "read")
    for keys in ((), read_keys(tmp_path / "keys.json")):
        with asked(keys=keys) as client:
            described = client.get("/openapi.json").json()
            for path, operations in described["paths"].items():
                for operation in operations.values():
                    is_open = not keys or path.startswith("/v2/health")
                    assert ("security" in operation) != is_open
            assert ("securitySchemes" in described["components"]) == bool(keys)


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
    for path in ("/model", "/review", "/review/effect", "/trust", "/map"):
        asked("GET", path)
    asked("POST", "/map", {"rows": [row]})
    what_if = {"without": [4], "relabel": {"5": "no"}, "column_shares": True}
    asked("POST", "/explain", {"remembered": 3} | more | what_if)
    for by in ("doubt", "right", "confidence", "change"):
        holds(described, "get", "/map/values", client.get("/map/values", params={"by": by}))
    for column in ("income", "town"):
        given = {"by": "column", "column": column}
        holds(described, "get", "/map/values", client.get("/map/values", params=given))
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
        assert n_asked == 8


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
