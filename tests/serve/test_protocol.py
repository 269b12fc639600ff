"""The Open Inference Protocol v2, asked by a client that others wrote."""

import numpy as np
import pytest

from nearwise.serve.classes import outputs as outputs_of
from tests.serve.conftest import json_rows, problem, served
from tests.store.folders import plain_model


def column(http, name, values, datatype):
    tensor = http.InferInput(name, [len(values)], datatype)
    kind = object if datatype == "BYTES" else np.float64
    tensor.set_data_from_numpy(np.array(values, dtype=kind), binary_data=False)
    return tensor


def test_triton_s_client_finds_and_asks_the_model(folder, model):
    http = pytest.importorskip("tritonclient.http")
    frame, _ = json_rows(5)
    known = outputs_of(model.fitted_)
    with (
        served(folder, name="table") as address,
        http.InferenceServerClient(address.removeprefix("http://")) as client,
    ):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("table")
        about = client.get_model_metadata("table")
        assert [(one["name"], one["datatype"]) for one in about["inputs"]] == [
            ("age", "FP64"), ("income", "FP64"), ("town", "BYTES"),
        ]  # fmt: skip
        assert [one["name"] for one in about["outputs"]] == list(known)
        inputs = [
            column(http, "age", frame["age"], "FP64"),
            column(http, "income", frame["income"].fillna(1.0), "FP64"),
            column(http, "town", frame["town"], "BYTES"),
        ]
        outputs = [
            http.InferRequestedOutput(name, binary_data=False) for name in known if name != "act"
        ]
        found = client.infer("table", inputs, outputs=outputs, request_id="r1")
        frame = frame.assign(income=frame["income"].fillna(1.0))
        shown = model.explain(frame, 5)
        np.testing.assert_allclose(found.as_numpy("proba"), model.predict_proba(frame), atol=1e-6)
        assert found.as_numpy("label").astype(str).tolist() == model.predict(frame).tolist()
        ids = found.as_numpy("neighbor_id")
        assert ids.tolist() == [[n.id for n in one.neighbors] for one in shown]
        np.testing.assert_allclose(found.as_numpy("null_mass"), [one.null_mass for one in shown])
        sets = found.as_numpy("prediction_set")
        assert sets.tolist() == model.predict_set(frame, 0.9).tolist()
        np.testing.assert_allclose(found.as_numpy("novelty_p"), model.novelty_p_value(frame))
        assert found.get_response()["parameters"] == {"memory_version": 0}
        assert found.get_response()["id"] == "r1"
        with pytest.raises(Exception, match="no output"):
            client.infer("table", inputs, outputs=[http.InferRequestedOutput("x", False)])


def tensor(name="features", shape=(2, 2), datatype="FP32", data=None):
    data = [[0.0, 1.0], [2.0, 3.0]] if data is None else data
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": data}


@pytest.fixture
def arrays(asked, saved):
    with asked(saved / "arrays") as client:
        yield lambda *inputs, **more: client.post(
            "/v2/models/table/infer", json={"inputs": list(inputs), **more}
        )


def values(answer, name):
    assert answer.status_code == 200, answer.text
    (found,) = [one for one in answer.json()["outputs"] if one["name"] == name]
    return np.array(found["data"]).reshape(found["shape"]), found["datatype"]


def test_features_are_taken_flat_and_nested_and_labels_keep_their_type(arrays):
    model = plain_model()
    X = model._fitted.rows[:2]
    width = X.shape[1]
    nested = arrays(tensor(shape=(2, width), data=X.tolist()))
    flat = arrays(tensor(shape=(2, width), datatype="FP64", data=X.ravel().tolist()))
    labels, datatype = values(nested, "label")
    assert datatype == "INT64"
    assert labels.tolist() == model.predict(X).tolist()
    np.testing.assert_allclose(values(flat, "proba")[0], model.predict_proba(X), atol=1e-6)


def test_acting_needs_a_limit(arrays):
    X = plain_model()._fitted.rows[:4]
    sent = tensor(shape=X.shape, data=X.tolist())
    wish = [{"name": "act"}, {"name": "neighbor_label"}]
    assert "coverage" in problem(arrays(sent, outputs=wish), 422)
    answer = arrays(sent, outputs=wish, parameters={"coverage": 0.5, "n_neighbors": 3})
    chosen = plain_model().predict_selective(X, coverage=0.5)
    assert values(answer, "act")[0].tolist() == chosen.accepted.tolist()
    assert values(answer, "neighbor_label")[0].shape == (4, 3)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (tensor(shape=(3, 2)), "has 4"),
        (tensor(shape=(0, 2), data=[]), "no rows"),
        (tensor(shape=(4,)), "shape"),
        (tensor(datatype="FP128"), "is not one of"),
        (tensor(datatype="INT8", data=[[300, 1], [2, 3]]), "INT8"),
        (tensor(datatype="INT64", data=[[0.5, 1.0], [2.0, 3.0]]), "float"),
        (tensor(datatype="INT64", data=[[None, 1], [2, 3]]), "NoneType"),
        (tensor(data=[["1", "2"], ["3", "4"]]), "str"),
        (tensor(data=[[True, False], [True, False]]), "bool"),
        (tensor(data=[[0.0, 1.0], 2.0, 3.0]), "mix"),
        (tensor(shape=(-2, -2)), "greater than or equal"),
        (tensor(shape=(2, 2**31)), "has 4"),
        (tensor(name="other"), "columns"),
    ],
)
def test_tensors_that_do_not_hold_are_refused(arrays, sent, says):
    assert says in problem(arrays(sent), 422)


def test_an_output_is_given_once(arrays):
    X = plain_model()._fitted.rows[:2]
    sent = tensor(shape=X.shape, data=X.tolist())
    assert "twice" in problem(arrays(sent, outputs=[{"name": "proba"}] * 2), 422)


def test_columns_are_held_against_the_model(client):
    def infer(*inputs):
        return client.post("/v2/models/table/infer", json={"inputs": list(inputs)})

    age = tensor("age", [1], "FP64", [1.0])
    town = tensor("town", [1, 1], "BYTES", ["Rome"])
    income = tensor("income", [1], "FP64", [None])
    assert infer(age, town, income).status_code == 200
    assert "income" in problem(infer(age, town), 422)
    assert "twon" in problem(infer(age, tensor("twon", [1], "BYTES", ["x"]), income), 422)
    assert "same name" in problem(infer(age, age, town, income), 422)
    assert "different numbers" in problem(
        infer(age, town, tensor("income", [2], "FP64", [1.0, 2.0])), 422
    )
    assert "no model 'x'" in problem(client.get("/v2/models/x"), 404)
    assert client.get("/v2/models/table/ready").json() == {"name": "table", "ready": True}
    assert client.get("/v2").json()["name"] == "nearwise"
