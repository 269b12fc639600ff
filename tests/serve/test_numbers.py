"""A service of a regressor: numbers, intervals and neighbors are the model's, changes hold."""

import html
import re
import shutil

import jsonschema
import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from nearwise import AttnKNNRegressor, LiveModel, review
from nearwise.estimators import NumberQuery
from nearwise.estimators.uncertainty.intervals import calibration_numbers
from nearwise.html.numbers import number
from nearwise.serve import Service
from nearwise.serve.keys import make_key, read_keys
from nearwise.serve.page.asking import answer as page_answer
from nearwise.serve.service import Ask
from tests.estimators.numbers.cases import QUICK
from tests.html.test_rendering import own_part
from tests.serve.conftest import problem
from tests.serve.test_description import holds, schema_of
from tests.serve.test_page import neighbors_of, question


def table():
    """Give rows with a category whose name and values are hostile, and whole numbers."""
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    frame = X[["age", "bmi", "bp", "s5"]].round(4)
    frame["<b>sex</b>"] = np.where(X["sex"] > 0, "<script>alert(1)</script>", "plain")
    return frame, y.rename("progression")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Give the folder of a model of 120 rows; not to be changed."""
    X, y = table()
    folder = tmp_path_factory.mktemp("numbers") / "m"
    AttnKNNRegressor(**QUICK).fit(X[:120], y[:120]).save(folder)
    return folder


@pytest.fixture
def folder(kept, tmp_path):
    return shutil.copytree(kept, tmp_path / "numbers.model")


@pytest.fixture
def model(kept):
    return AttnKNNRegressor.load(kept)


NEW = slice(120, 124)


def rows():
    return table()[0][NEW].to_dict("records")


def test_predictions_are_those_of_the_model(client, model):
    X = table()[0][NEW]
    found = client.post("/predict", json={"rows": rows()}).json()["predictions"]
    assert [set(one) for one in found] == [{"prediction", "median"}] * 4
    np.testing.assert_allclose([one["prediction"] for one in found], model.predict(X))
    np.testing.assert_allclose([one["median"] for one in found], model.predict(X, output="median"))
    body = {"rows": rows(), "confidence": 0.8, "quantiles": [0.9, 0.1], "novelty": True}
    found = client.post("/predict", json=body).json()["predictions"]
    for name, wanted in {
        "interval": model.predict_interval(X, 0.8),
        "quantiles": model.predict_quantiles(X, quantiles=[0.9, 0.1]),
        "novelty_p": model.novelty_p_value(X),
    }.items():
        np.testing.assert_allclose([one[name] for one in found], wanted)


def test_explanations_show_the_rows_and_what_the_number_is_without_each(client, model):
    body = {"rows": rows(), "n_neighbors": 3, "confidence": 0.8, "quantiles": [0.5]}
    found = client.post("/explain", json=body).json()["predictions"]
    shown = model.explain(table()[0][NEW], 3, confidence=0.8)
    for got, wanted in zip(found, shown, strict=True):
        assert got["prediction"] == pytest.approx(wanted.prediction)
        assert got["interval"] == pytest.approx(list(wanted.interval))
        assert got["quantiles"] == pytest.approx([got["median"]])
        assert got["confidence"] == 0.8
        for one, other in zip(got["neighbors"], wanted.neighbors, strict=True):
            assert (one["id"], one["target"]) == (other.id, other.target)
            assert one["prediction_without"] == pytest.approx(other.prediction_without)
            assert one["interval_without"] == pytest.approx(list(other.interval_without))
            assert one["row"] == other.row


@pytest.mark.parametrize(
    ("url", "change", "says"),
    [
        ("/predict", {"max_risk": 0.5}, "max_risk: not known here; the members are rows"),
        ("/predict", {"coverage": 0.5, "max_width": 9}, "both were given"),
        ("/predict", {"class_prior": "uniform"}, "confidence, novelty"),
        ("/predict", {"quantiles": [0.5, 1.5]}, "less than 1"),
        ("/predict", {"quantiles": []}, "quantiles"),
        ("/predict", {"quantiles": ["0.5"]}, "valid number"),
        ("/predict", {"confidence": 0.9999}, "Remember more rows"),
        ("/rows", {"targets": [1.0]}, "4 rows have 1 targets"),
        ("/rows", {"targets": ["a"] * 4}, "valid number"),
        ("/rows", {"targets": [1e101, 1, 1, 1]}, "too large"),
        ("/rows", {"labels": [1.0] * 4}, "targets: Field required"),
        ("/rows", {"targets": [1.0] * 4, "new_classes": True}, "new_classes: not known here"),
    ],
)
def test_what_only_classes_have_and_what_is_no_number_is_refused(client, url, change, says):
    assert says in problem(client.post(url, json={"rows": rows()} | change), 422)
    assert client.get("/changes").json()["memory_version"] == 0


def test_what_only_classes_have_elsewhere_is_refused_by_a_sentence(client):
    for path in ("/trust", "/page/trust/view"):
        assert "GET /feedback" in problem(client.get(path), 422)
    assert "no classes" in problem(client.delete("/rows/3?forget_classes=true"), 422)


@pytest.mark.parametrize("limit", [{"coverage": 0.5}, {"max_width": 220.0}])
def test_rows_with_the_widest_intervals_are_not_acted_on(client, model, limit):
    X = table()[0][120:160]
    body = {"rows": X.to_dict("records"), "confidence": 0.8} | limit
    found = client.post("/predict", json=body).json()
    chosen = model.predict_selective(X, **limit, confidence=0.8)
    accepted = [one["accepted"] for one in found["predictions"]]
    assert accepted == chosen.accepted.tolist() and len({*accepted}) == 2
    assert found["selection"]["threshold"] == pytest.approx(chosen.threshold)
    assert found["selection"]["expected_error"] == pytest.approx(chosen.expected_error)


def test_targets_that_look_wrong_are_listed_until_something_is_done(client, model):
    X = table()[0]
    body = {"rows": X[120:122].to_dict("records"), "targets": [2_000, -1_500]}
    first, second = client.post("/rows", json=body).json()["ids"]
    found = client.get("/issues").json()["issues"]
    assert {one["id"] for one in found[:2]} == {first, second}
    wanted = review(AttnKNNRegressor.load(client.service.live.folder)).issues()
    wanted = wanted[wanted["suspicion"] > 0.5]
    assert [one["id"] for one in found] == wanted["id"].tolist()
    doubt = client.get("/map/values", params={"by": "doubt"}).json()["values"]
    assert dict(zip(client.get("/map").json()["id"], doubt, strict=True))[first] > 0.9
    case = client.post("/page/review/queue", json={"kind": "label", "row": str(first)}).text
    assert f'name="ids" value="{first}"' in case and "target 2000; the model says" in case
    client.post(f"/issues/{first}", json={"action": "relabel", "target": 150})
    assert client.get(f"/rows/{first}").json()["target"] == 150
    client.post("/page/review/decide", json={"ids": str(second), "action": "keep", "label": "1"})
    assert second not in {one["id"] for one in client.get("/issues").json()["issues"]}
    for wrong in ({"action": "relabel"}, {"action": "keep", "target": 1.0}, {"action": "x"}):
        problem(client.post(f"/issues/{first}", json=wrong), 422)


def test_the_effect_of_changes_is_measured_by_crps_on_rows_that_none_touched(client, folder):
    before = AttnKNNRegressor.load(folder)
    for row in range(8):
        client.patch(f"/rows/{row}", json={"target": 1_000})
    part = client.get("/page/review/effect").text
    after, y = AttnKNNRegressor.load(folder), table()[1][8:120]
    losses = [one.query(None).mixture.take(slice(8, 120)).crps(y) for one in (before, after)]
    shown = [float(one) for one in re.findall(r"[+-]?\d+\.\d{4,5}", part)]
    assert "CRPS of 112 rows" in part
    assert shown[0] == pytest.approx(losses[0].mean(), abs=6e-5)
    assert shown[1] == pytest.approx((losses[1] - losses[0]).mean(), abs=6e-5)


def test_rows_come_get_other_targets_and_go_in_the_journal(client, folder):
    X, _ = table()
    body = {"rows": rows()[:2], "targets": [100, 200.5]}
    added = client.post("/rows", json=body, headers={"Idempotency-Key": "a"}).json()
    assert added["ids"] == [120, 121] and added["memory_version"] == 1
    again = client.post("/rows", json=body, headers={"Idempotency-Key": "a"}).json()
    assert again == added
    assert client.patch("/rows/121", json={"target": 7.25}).status_code == 200
    assert client.get("/rows/121").json()["target"] == 7.25
    assert client.delete("/rows/120").status_code == 200
    problem(client.get("/rows/120"), 404)
    after = AttnKNNRegressor.load(folder)
    served = client.post("/predict", json={"rows": rows()}).json()["predictions"]
    np.testing.assert_allclose([one["prediction"] for one in served], after.predict(X[NEW]))
    assert client.post("/changes/2/undo").status_code == 200
    assert client.get("/rows/121").json()["target"] == 200.5
    kinds = [one["kind"] for one in client.get("/changes").json()["changes"]]
    assert kinds == ["relabel", "remove", "relabel", "add"]


def test_feedback_is_judged_by_the_model_as_it_was(client, model):
    X, y = table()
    body = {"rows": rows(), "targets": y[NEW].tolist()}
    judged = client.post("/feedback", json=body).json()["judged"]
    np.testing.assert_allclose(judged["predicted"], model.predict(X[NEW]))
    np.testing.assert_allclose(judged["crps"], model.crps(X[NEW], y[NEW]))
    low, high = model.predict_interval(X[NEW]).T
    assert judged["in_interval"] == ((low <= y[NEW]) & (y[NEW] <= high)).tolist()
    summary = client.get("/feedback").json()
    assert summary["rows"] == 4 and summary["mae"] == pytest.approx(
        np.abs(np.subtract(judged["predicted"], judged["target"])).mean()
    )


def test_requests_that_wait_are_answered_together_and_each_gets_its_own(folder, model):
    X, _ = table()
    service = Service(LiveModel(folder))
    try:
        with service.predictions._changed:  # nobody is answered before all wait
            asked = [
                service.predictions.submit(
                    (ask, lambda _, at=at: X[at : at + 1], lambda found: found), group=ask
                )
                for at in range(120, 140)
                for ask in [Ask(quantiles=(0.25,)), Ask(confidence=0.8)]
            ]
        found = [one.result().values for one in asked]
    finally:
        service.close()
    np.testing.assert_allclose(
        [one["prediction"][0] for one in found[::2]], model.predict(X[120:140])
    )
    levels = [one["quantiles"][0] for one in found[::2]]
    np.testing.assert_allclose(levels, model.predict_quantiles(X[120:140], [0.25]))
    ends = [one["interval"][0] for one in found[1::2]]
    np.testing.assert_allclose(ends, model.predict_interval(X[120:140], 0.8))


# --- the description ------------------------------------------------------------------------------


def test_answers_and_examples_are_as_they_are_described(client):
    described = client.get("/openapi.json").json()
    n_asked = 0
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]
                schema = content["schema"] | {"components": described["components"]}
                jsonschema.validate(content["example"], schema)
                given = {one["name"]: one.get("example") for one in operation.get("parameters", ())}
                found = client.request(method, path.format(**given), json=content["example"])
                holds(described, method, path, found)
                n_asked += 1
    assert n_asked == 8
    more = {"confidence": 0.8, "novelty": True, "quantiles": [0.1, 0.9]}
    for path in ("/predict", "/explain"):
        answer = client.post(path, json={"rows": rows()} | more)
        holds(described, "post", path, answer)
        answer = client.post(path, json={"rows": rows(), "max_width": 100.0})
        holds(described, "post", path, answer)
    what_if = {"without": [4], "relabel": {"5": 99.5}, "column_shares": True}
    holds(described, "post", "/explain", client.post("/explain", json={"remembered": 3} | what_if))
    of_map = ("/map", "/map/values?by=error", "/map/values?by=column&column=bmi")
    whole = ("/model", "/review", "/review/effect", "/v2/models/{model}")
    for path in ("/feedback", *of_map, "/changes", "/issues", *whole):
        found = client.get(path.format(model="table"))
        of_route = schema_of(described, "get", path.partition("?")[0])
        jsonschema.validate(found.json(), of_route)
    found = client.get("/rows/5")
    jsonschema.validate(found.json(), schema_of(described, "get", "/rows/{id}"))


def test_a_client_sees_the_fields_of_its_own_task_only(client, asked, saved):
    def names_in(service):
        described = service.get("/openapi.json").json()
        named = [one.get("properties", {}) for one in described["components"]["schemas"].values()]
        parameters = [
            one["name"]
            for path in described["paths"].values()
            for operation in path.values()
            for one in operation.get("parameters", ())
        ]
        return {name for one in named for name in one} | {*parameters} | {*described["paths"]}

    of_classes = {
        *("proba", "label", "labels", "max_risk", "new_classes", "forget_classes", "set"),
        *("base_proba", "neighbor_proba", "expected_risk", "nll", "ece", "in_set"),
    }
    of_numbers = {
        *("targets", "target", "quantiles", "interval", "median", "prediction", "crps"),
        *("max_width", "interval_without", "in_interval", "rmse", "expected_error"),
    }
    numbers = names_in(client)
    assert of_numbers <= numbers
    assert numbers & of_classes == set()
    with asked(saved / "table") as other:
        classes = names_in(other)
    assert of_classes <= classes and classes & of_numbers == set()


def test_the_summary_has_the_range_of_targets_and_the_crps(client, model):
    found, y = client.get("/model").json(), table()[1][:120]
    assert (found["task"], found["target_name"]) == ("regression", "progression")
    assert found["range"] == [y.min(), y.max()]
    crps = found["quality"]["crps"]
    assert crps["estimate"] == pytest.approx(model.report_.left_out_crps, rel=0.1)
    assert crps["low"] < crps["estimate"] < crps["high"]


def test_a_remembered_row_is_explained_without_itself_and_with_another_target(client):
    X = table()[0]
    body = {"remembered": 5, "n_neighbors": 60}
    (usual,) = client.post("/explain", json=body).json()["predictions"]
    first = usual["neighbors"][0]["id"]
    body |= {"relabel": {str(first): 300.0}}
    (found,) = client.post("/explain", json=body).json()["predictions"]
    for one, target in ((usual, None), (found, 300.0)):
        changed = AttnKNNRegressor.load(client.service.live.folder)
        if target is not None:
            changed.relabel([first], [target])
        changed.remove([5])
        assert one["prediction"] == pytest.approx(changed.predict(X[5:6])[0], rel=1e-5)
    assert {one["id"]: one["target"] for one in found["neighbors"]}[first] == 300.0
    assert client.get("/changes").json()["changes"] == []


def test_metadata_and_metrics_say_what_is_predicted(client):
    about = client.get("/v2/models/table").json()
    y = table()[1][:120]
    ends = [str(float(y.min())), str(float(y.max()))]
    said = {"task": ["regression"], "target": ["progression"], "range": ends}
    assert about["parameters"] == said
    assert [one["name"] for one in about["inputs"]] == table()[0].columns.tolist()
    metrics = client.get("/metrics").text
    assert 'nearwise_model_info{target="progression",task="regression"} 1.0' in metrics
    assert "regression" in client.get("/openapi.json").json()["info"]["description"]


def test_every_output_of_the_inference_protocol_is_as_announced(client, model):
    X = table()[0][NEW]
    about = client.get("/v2/models/table").json()
    inputs = [
        {
            "name": name,
            "shape": [4],
            "datatype": "FP64" if X[name].dtype.kind == "f" else "BYTES",
            "data": X[name].tolist(),
        }
        for name in X
    ]
    body = {"inputs": inputs, "outputs": [{"name": one["name"]} for one in about["outputs"]]}
    body["parameters"] = {"n_neighbors": 3, "confidence": 0.8, "quantiles": [0.5], "coverage": 0.5}
    outputs = client.post("/v2/models/table/infer", json=body).json()["outputs"]
    for one, announced in zip(outputs, about["outputs"], strict=True):
        assert (one["name"], one["datatype"]) == (announced["name"], announced["datatype"])
        shape = announced["shape"]
        assert len(one["shape"]) == len(shape)
        assert all(size in (-1, got) for size, got in zip(shape, one["shape"], strict=True))
    got = {one["name"]: np.reshape(one["data"], one["shape"]) for one in outputs}
    np.testing.assert_allclose(got["prediction"], model.predict(X))
    np.testing.assert_allclose(got["interval"], model.predict_interval(X, 0.8))
    np.testing.assert_allclose(got["quantiles"][:, 0], got["median"])
    accepted = model.predict_selective(X, coverage=0.5, confidence=0.8).accepted
    assert got["act"].tolist() == accepted.tolist()
    targets = [[n.target for n in one.neighbors] for one in model.explain(X, 3)]
    np.testing.assert_allclose(got["neighbor_target"], targets)
    plain = client.post("/v2/models/table/infer", json={"inputs": inputs}).json()["outputs"]
    assert [one["name"] for one in plain] == ["prediction", "median"]
    for wrong, says in {"proba": "The outputs are prediction, median", "act": "max_width"}.items():
        sent = {"inputs": inputs, "outputs": [{"name": wrong}]}
        assert says in problem(client.post("/v2/models/table/infer", json=sent), 422)


# --- the page -------------------------------------------------------------------------------------


def words(part):
    """Give what a part says, without its tags."""
    return html.unescape(" ".join(re.sub("<[^>]+>", " ", part).split()))


def test_the_page_asks_a_remembered_row_without_itself(client, model):
    X, y = table()
    part = client.post("/page/ask/answer", json=question(client, 3)).text
    as_it_was = calibration_numbers(model.fitted_.predictor)
    model.remove([3])
    (wanted,) = model.explain(X[3:4], 8)
    query = NumberQuery(model.fitted_, model.fitted_.encoded(X[3:4])[0], judged_by=as_it_was)
    assert neighbors_of(part) == [one.id for one in wanted.neighbors]
    assert f"Row 3 is remembered as {y[3]:.0f} ;" in words(part)
    shown = float(re.search(r'<p class="answer"><strong>[^<]+ = ([^<]+)', part)[1])
    assert shown == pytest.approx(wanted.prediction, abs=0.51)
    ((low, high),) = query.interval()
    assert f"{round(low)} to {round(high)}" in words(part)
    assert part.count("<circle") == 8 and part.count('class="mass"') == 48
    for one in wanted.neighbors:
        assert f"row {one.id}: {one.target:.0f}, weight" in part


def test_nothing_that_a_row_holds_becomes_markup(client, model):
    part = client.post("/page/ask/answer", json=question(client, 3)).text
    assert html.escape("<b>sex</b>") in part and html.escape("<script>alert(1)</script>") in part
    (found,) = model.explain(table()[0][3:4], 4)
    for shown in (part, found._repr_html_(), own_part(model._repr_mimebundle_()["text/html"])):
        assert "<script>" not in shown and "<b>" not in shown


def test_a_neighbor_switched_off_or_with_another_target_answers_as_if_it_were_so(client, model):
    X, _ = table()
    form = question(client, 3)
    first, second, *_ = neighbors_of(client.post("/page/ask/answer", json=form).text)
    changed = form | {"off": str(first), f"as.{second}": "300.5"}
    part = client.post("/page/ask/answer", json=changed).text
    model.relabel([second], [300.5])
    model.remove([3, first])
    shown = float(re.search(r'<p class="answer"><strong>[^<]+ = ([^<]+)', part)[1])
    assert shown == pytest.approx(model.predict(X[3:4])[0], abs=0.51)
    assert "with these changes" in part and "before:" in part and 'value="300.5"' in part
    assert client.get("/changes").json()["changes"] == []
    for wrong in ("", "x", "inf"):
        status = 200 if wrong == "" else 422
        answer = client.post("/page/ask/answer", json=form | {f"as.{second}": wrong})
        assert answer.status_code == status


def test_rows_are_remembered_relabelled_and_removed_on_the_page_and_that_is_undone(client, folder):
    form = question(client, 3)
    del form["remembered"]
    said = client.post("/page/ask/change", json=form | {"label": "123.5"})
    assert "Remembered as row 120" in said.text
    assert said.headers["hx-trigger-after-settle"] == "decided"
    assert client.get("/rows/120").json()["target"] == 123.5
    assert client.get("/rows/120").json()["row"] == client.get("/rows/3").json()["row"]
    client.post("/page/ask/change", json={"row": "120", "action": "relabel", "label": "99"})
    assert client.get("/rows/120").json()["target"] == 99
    assert "Undone" in client.post("/page/ask/change", json={"undo": "2"}).text
    assert client.get("/rows/120").json()["target"] == 123.5
    client.post("/page/ask/change", json={"row": "120", "action": "remove"})
    assert len(AttnKNNRegressor.load(folder).memory_) == 120
    for wrong in ("", "x", "nan"):
        problem(client.post("/page/ask/change", json=form | {"label": wrong}), 422)


def test_who_may_only_look_is_offered_no_changes(asked, tmp_path):
    key = make_key(tmp_path / "keys.json", "one", "read")
    with asked(keys=read_keys(tmp_path / "keys.json")) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        part = client.post("/page/ask/answer", json=question(client, 3)).text
        assert "Relabel" not in part
        problem(client.post("/page/ask/change", json={"label": "1"}), 403)
    with asked(read_only=True) as client:
        assert "Relabel" not in client.post("/page/ask/answer", json=question(client, 3)).text
    with asked() as client:
        assert "Relabel" in client.post("/page/ask/answer", json=question(client, 3)).text


def test_the_start_view_has_the_quality_that_the_summary_has(client):
    crps = client.get("/model").json()["quality"]["crps"]
    shown = client.get("/page/start/quality").text
    for value in crps.values():
        assert number(float(f"{value:.4g}")) in shown
    assert crps["low"] < crps["estimate"] < crps["high"]


def test_the_page_has_the_views_that_numbers_have_and_the_map_their_targets(client, model):
    shell = client.get("/page/ask").text
    assert '"map"' in shell and '"review"' in shell and '"trust"' not in shell
    assert "GET /feedback" in problem(client.get("/page/trust"), 404)
    found = client.get("/map").json()
    assert found["target"] == model.fitted_.numbers.tolist() and "label" not in found
    placed = client.post("/page/map/query", json=question(client, 5)).json()
    model.remove([5])
    assert placed["label"] == pytest.approx(model.predict(table()[0][5:6])[0])
    listed = client.post("/page/map/rows", json={"ids": "5"}).text
    assert f"<td>{table()[1][5]:.0f}</td>" in listed and ">target</th>" in listed


def test_an_array_of_numbers_is_asked_by_its_columns_and_to_the_last_digit(asked, tmp_path):
    X, y = load_diabetes(return_X_y=True)
    AttnKNNRegressor(estimator=None, **QUICK).fit(X[:100], y[:100] / 7).save(tmp_path / "m")
    with asked(tmp_path / "m") as client:
        sent = {"features": X[100:102].tolist()}
        answer = client.post("/predict", json=sent).json()["predictions"]
        model = AttnKNNRegressor.load(tmp_path / "m")
        np.testing.assert_allclose([one["prediction"] for one in answer], model.predict(X[100:102]))
        found = page_answer(client.service.live.now, question(client, 3))
        np.testing.assert_array_equal(found.rows, X[[3]])
