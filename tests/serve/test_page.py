"""The page: what its parts say is what the model says, and what it changes is in the journal."""

import html
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearwise import review
from nearwise.estimators import AttnKNNClassifier, AttnKNNRegressor
from nearwise.html.numbers import percent
from nearwise.serve.keys import make_key, read_keys
from nearwise.serve.page.asking import answer as page_answer
from nearwise.serve.page.forms import Histogram
from nearwise.serve.page.snippets import snippets
from tests.serve.conftest import problem, served
from tests.store.folders import small_table

VIEWS = ("start", "ask", "map", "review", "trust")


def question(client, row):
    """The form as the page sends it, filled with a remembered row."""
    part = client.get("/page/ask/form", params={"row": row}).text
    fields = dict(re.findall(r'name="(c\d+|remembered)" [^>]*value="([^"]*)"', part))
    for name, options in re.findall(r'<select [^>]*name="(c\d+)"[^>]*>(.*?)</select>', part):
        fields[name] = re.search(r'value="(\d*)" selected', options)[1]
    remembered = re.search(r'name="remembered" value="(\d+)"', part)
    return fields | {"remembered": remembered[1]}


def neighbors_of(part):
    return [int(one) for one in re.findall(r'id="off(\d+)"', part)]


def sure_of(part):
    """The predicted label of an answer, and its probability as the table has it."""
    label = re.search(r'<p class="answer"><strong>[^<]+ = (\w+)</strong>', part)[1]
    return label, re.search(
        rf'title="{label}">{label}</span></th><td class="number">([^<]+)', part
    )[1]


def test_the_frame_of_each_view_holds_nothing_of_the_model_and_needs_no_key(asked, tmp_path):
    make_key(tmp_path / "keys.json", "one", "read")
    with asked(keys=read_keys(tmp_path / "keys.json")) as client:
        assert client.get("/", follow_redirects=False).headers["location"] == "/page/start"
        for view in VIEWS:
            shown = client.get(f"/page/{view}")
            assert shown.status_code == 200 and "Lima" not in shown.text
            assert "'unsafe-inline'" not in shown.headers["content-security-policy"]
            assert "<script>" not in shown.text and "style=" not in shown.text
        parts = ("start/view", "start/quality", "start/look", "head/model", "trust/groups")
        parts += ("review/effect", "review/findings.csv", "map/view", "map/tip/3")
        for part in (*parts, "ask/form", "trust/view"):
            problem(client.get(f"/page/{part}"), 401)
        of_map = ("map/rows", "map/query", "map/columns", "map/export")
        of_review = ("review/queue", "review/decide", "review/undo")
        for part in ("ask/answer", "ask/change", *of_map, *of_review):
            problem(client.post(f"/page/{part}", json={}), 401)


def test_a_key_that_reads_decides_nothing(asked, tmp_path):
    key = make_key(tmp_path / "keys.json", "one", "read")
    with asked(keys=read_keys(tmp_path / "keys.json")) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        for form in ({}, {"view": "list"}, {"kind": "decided"}):
            queue = client.post("/page/review/queue", json=form).text
            assert 'id="case"' in queue and "<form hx-post" not in queue  # nothing to be refused
            assert "accept the suggestion" not in queue
        form = {"row": "3", "ids": "3", "action": "keep"}
        for path in ("ask/change", "review/decide"):
            problem(client.post(f"/page/{path}", json=form), 403)
        assert client.get("/changes").json()["changes"] == []


def test_the_form_has_a_field_per_column_and_offers_the_categories(client):
    part = client.get("/page/ask/form").text
    for name in ("age", "income", "town"):
        assert f">{name}</label>" in part
    for town in ("Rome", "Oslo", "Lima"):
        assert f">{town}</option>" in part


def test_the_answer_is_the_models_and_a_remembered_row_is_not_its_own_neighbor(client, model):
    row = int(model.memory_.ids[3])
    part = client.post("/page/ask/answer", json=question(client, row)).text
    given = model._fitted.rows.iloc[[3]]
    model.remove([row], forget_classes=True)
    proba = model.predict_proba(given)[0]
    label, sure = sure_of(part)
    assert label == model.classes_[proba.argmax()]
    assert float(sure.split("\N{NO-BREAK SPACE}")[0].strip("<>")) == pytest.approx(
        100 * proba.max(), abs=0.06
    )
    ids = [one.id for one in model.explain(given, 8)[0].neighbors]
    assert neighbors_of(part) == ids and row not in ids


def test_a_neighbor_switched_off_or_relabelled_answers_as_if_it_were_so_and_nothing_is_saved(
    client, model
):
    row = int(model.memory_.ids[3])
    form = question(client, row)
    first, second, *_ = neighbors_of(client.post("/page/ask/answer", json=form).text)
    classes = model.classes_.tolist()
    position = int(model.memory_.positions([second])[0])
    other = 1 - int(model._fitted.label_positions[position])
    changed = form | {"off": str(first), f"as.{second}": str(other)}
    part = client.post("/page/ask/answer", json=changed).text
    given = model._fitted.rows.iloc[[3]]
    model.relabel([second], [classes[other]], forget_classes=True)
    model.remove([row, first], forget_classes=True)
    proba = model.predict_proba(given)[0]
    assert "with these changes" in part
    label, sure = sure_of(part)
    assert label == classes[proba.argmax()]
    assert float(sure.split("\N{NO-BREAK SPACE}")[0].strip("<>")) == pytest.approx(
        100 * proba.max(), abs=0.06
    )
    changes = client.get("/changes").json()
    assert changes["changes"] == [] and changes["memory_version"] == 0
    assert {first, second} <= set(neighbors_of(part))  # to be switched on again


def test_the_effect_of_changes_is_measured_on_rows_that_none_of_them_touched(client, model):
    assert client.get("/page/review/effect").text.strip() == ""  # nothing to say yet
    ids = model.memory_.ids.tolist()
    positions = model._fitted.label_positions.numpy()
    wrong = ids[:8]
    for row, position in zip(wrong, positions[:8], strict=True):
        form = {"row": str(row), "action": "relabel", "label": str(1 - int(position))}
        assert client.post("/page/ask/change", json=form).status_code == 200
    part = client.get("/page/review/effect").text
    before, after = model, AttnKNNClassifier.load(client.service.live.folder)
    proba = [one.predict_proba(None)[8:] for one in (before, after)]
    losses = [-np.log(one[np.arange(len(one)), positions[8:]]) for one in proba]
    shown = [float(one) for one in re.findall(r"[+-]?\d+\.\d{4,5}", part)]
    assert shown[0] == pytest.approx(losses[0].mean(), abs=6e-5)
    assert shown[1] == pytest.approx((losses[1] - losses[0]).mean(), abs=6e-6)
    assert f"{len(ids) - 8} rows" in part


def test_trust_says_what_the_model_measures_and_feedback_joins_it(client, model):
    part = client.get("/page/trust/view").text
    trust = review(model).trust()
    assert f"NLL {trust.nll:.4f} nats per row, ECE {trust.ece:.4f}" in part
    assert "no feedback yet" in part
    example = html.unescape(re.search(r"-d '(\{.*?\})'</pre>", html.unescape(part), re.DOTALL)[1])
    assert client.post("/feedback", json=json.loads(example)).status_code == 201
    for one in trust.confused().itertuples():
        address = f"review?kind=label&given={one.given}&suggested={one.predicted}"
        assert f'href="{html.escape(address)}">{one.rows}</a>' in part
    rows = [{"age": a, "income": 1, "town": "Rome"} for a in (0, 1, 2)]
    client.post("/feedback", json={"rows": rows, "labels": ["yes", "no", "yes"]})
    assert "last 50 rows of feedback" in client.get("/page/trust/view").text


def test_a_service_without_a_page_has_none(folder):
    from fastapi.testclient import TestClient

    from nearwise.estimators import LiveModel
    from nearwise.serve import Service, create_app

    with TestClient(create_app(Service(LiveModel(folder)), page=False)) as client:
        for path in ("/", "/page/ask", "/page/static/page.js", "/page/ask/form"):
            problem(client.get(path), 404)


def test_models_of_arrays_are_asked_by_their_columns_too(asked, saved):
    with asked(saved / "arrays") as client:
        form = question(client, int(client.service.live.model.memory_.ids[0]))
        assert client.post("/page/ask/answer", json=form).status_code == 200


@pytest.mark.parametrize("kind", [AttnKNNClassifier, AttnKNNRegressor])
def test_any_remembered_row_can_be_asked_whatever_its_columns_hold(kind, asked, tmp_path):
    rng = np.random.default_rng(0)
    n = 90
    frame = pd.DataFrame(rng.normal(size=(n, 70)).round(3)).add_prefix("number ")
    frame = frame.mask(rng.random(frame.shape) < 0.02)
    frame["flag"] = rng.random(n) < 0.5
    frame["when"] = pd.date_range("2024-01-01", periods=n, freq="D")
    frame["city"] = [f"city {i}" for i in rng.permutation(n)]
    frame["comma"] = [f"{value:.2f}".replace(".", ",") for value in rng.normal(size=n)]
    frame["price"] = [f"${value:.2f}" for value in rng.uniform(1, 99, n)]
    frame["gaps"] = np.where(rng.random(n) < 0.2, "?", rng.normal(size=n).round(2).astype(str))
    frame["took"] = pd.to_timedelta(rng.integers(1, 9000, n), unit="min")
    y = np.where(frame["flag"], 'it\'s "so"', "<b>not</b>")
    if kind is AttnKNNRegressor:
        y = frame["number 0"].fillna(0)
    model = kind(preset="instant", columns={"city": "category"}, random_state=0)
    model.fit(frame, y).save(tmp_path / "wide.model")
    with asked(tmp_path / "wide.model") as client:
        assert "nan to nan" not in client.get("/page/ask/form").text
        for row in range(0, n, 9):
            form = question(client, row)
            answer = client.post("/page/ask/answer", json=form)
            assert answer.status_code == 200, answer.text
            assert "<b>" not in answer.text
            version = client.service.live.now
            encoder = version.fitted.predictor.encoder
            asked_row = encoder.transform(page_answer(version, form).rows)
            kept_row = encoder.transform(version.fitted.rows.iloc[[row]])
            np.testing.assert_array_equal(asked_row.numbers, kept_row.numbers)  # to the last digit
            np.testing.assert_array_equal(asked_row.codes, kept_row.codes)


def test_an_embedding_with_a_gap_is_asked_as_it_is(asked, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 70))
    X[::4, 3] = np.nan
    model = AttnKNNClassifier(preset="instant", random_state=0)
    model.fit(X, (X[:, 0] > 0).astype(int)).save(tmp_path / "wide.model")
    with asked(tmp_path / "wide.model") as client:
        part = client.get("/page/ask/form", params={"row": 4}).text
        form = {"features": re.search(r"<textarea[^>]*>([^<]*)", part)[1], "remembered": "4"}
        assert client.post("/page/ask/answer", json=form).status_code == 200
        found = page_answer(client.service.live.now, form)
        np.testing.assert_array_equal(found.rows, X[[4]])


@pytest.fixture
def codes(asked, tmp_path):
    """A service on a model with ids, and a category of 2,000 values."""
    n = 2_000
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "RowNumber": np.arange(n),
            "code": [f"code {i:04d}" for i in rng.permutation(n)],
            "size": rng.normal(size=n).round(3),
            "kind": rng.choice(["a & b", "<c>"], n),
        }
    )
    y = np.where(frame["size"] + (frame["kind"] == "<c>") > 0.5, "yes", "no")
    settings = {"estimator": None, "columns": {"code": "category"}, "random_state": 0}
    AttnKNNClassifier(preset="instant", **settings).fit(frame, y).save(tmp_path / "codes.model")
    with asked(tmp_path / "codes.model") as client:
        yield client, frame


def test_every_value_of_a_category_can_be_asked(codes):
    client, frame = codes
    part = client.get("/page/ask/form").text
    listed = re.search(r'<input id="c0" name="c0" [^>]*type="text" list="(\w+)"', part)[1]
    options = re.search(rf'<datalist id="{listed}">(.*?)</datalist>', part, re.DOTALL)[1]
    assert set(re.findall(r'value="([^"]*)"', options)) == set(frame["code"])
    version = client.service.live.now
    encoder = version.fitted.predictor.encoder
    for code in (encoder.categories["code"][0], encoder.categories["code"][-1]):
        found = page_answer(version, {"c0": code, "c1": "0.5", "c2": "0"})
        assert found.row["code"] == code and found.warnings == []
    found = page_answer(version, {"c0": "code of nobody", "c1": "0.5", "c2": "1"})
    assert "code (1)" in found.warnings[0]
    assert encoder.transform(found.rows).codes[0, 0] == 0
    row = question(client, 7)
    assert row["c0"] == frame["code"][7]
    assert page_answer(version, row).row["code"] == frame["code"][7]


def test_the_requests_to_copy_ask_for_the_same_answer(client, asked, tmp_path):
    part = html.unescape(client.post("/page/ask/answer", json=question(client, 3)).text)
    sent = re.search(r"-d '(\{.*?\})'</pre>", part, re.DOTALL)[1]
    again = client.post("/explain", json=json.loads(sent)).json()["predictions"][0]
    given = client.service.live.now.fitted.look_up([3])[0].row
    assert json.loads(sent)["rows"][0] == {n: None if v != v else v for n, v in given.items()}
    assert again["label"] in client.service.live.now.fitted.classes
    for language in ("curl", "Python", "JavaScript"):
        assert f"<h3>{language} " in part and "Bearer KEY" not in part
    make_key(tmp_path / "keys.json", "one", "read")
    key = make_key(tmp_path / "keys.json", "two", "read")
    with asked(keys=read_keys(tmp_path / "keys.json")) as guarded:
        guarded.headers["Authorization"] = f"Bearer {key}"
        part = guarded.post("/page/ask/answer", json=question(guarded, 3)).text
        assert part.count("Bearer KEY") == 3 and key not in part


def test_the_program_to_copy_runs(saved):
    frame, _ = small_table(5)
    with served(saved / "table") as base:
        program = snippets(base, frame[:1], needs_key=False)["Python"]
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'label'" in done.stdout and "'neighbors'" in done.stdout


def test_a_histogram_has_the_ends_of_the_values_and_marks_no_gap_as_a_value():
    values = np.concatenate([np.arange(1000.0), [np.nan, 1e9, -1e9]])
    found = Histogram.of(values)
    assert found.ends == (-1e9, 1e9) and -1 < found.low < 20 and 970 < found.high < 1001
    assert max(found.shares) == 1 and len(found.shares) == 24
    for empty in ([], [np.nan], [3.0, 3.0]):
        assert Histogram.of(np.array(empty)) is None
    assert Histogram.of(np.array([0.0] * 999 + [1.0])).high == 1


def test_the_head_names_the_model_and_what_it_remembers(client):
    assert "table" not in client.get("/page/ask").text.split("</title>")[0]
    client.post("/page/ask/change", json={"row": "3", "action": "remove"})
    head = client.get("/page/head/model").text
    for words in (
        "table</strong>",
        "1 change<",
        f"{client.service.live.now.fitted.n_remembered} rows",
    ):
        assert words in head


def test_the_start_page_says_what_the_model_is_how_good_and_what_to_look_at(client, model):
    part = client.get("/page/start/view").text
    assert f"one of {len(model.classes_)} classes" in part
    for label, n in zip(model.classes_, model.fitted_.rows_per_class, strict=True):
        assert re.search(rf'title="{label}">{label}</span></th><td class="number">{n}<', part)
    trust = review(model).trust()
    quality = client.get("/page/start/quality").text
    assert percent(trust.accuracy) in quality and percent(trust.accuracy_interval[0]) in quality
    assert f"always answering {model.classes_[trust.confusion.sum(axis=1).argmax()]}" in quality
    look = client.get("/page/start/look").text
    found = review(model).findings()
    n = int((found["kind"] == "label").sum())
    assert f"{n} label{'s' if n > 1 else ''} disagreeing with the model" in look
    assert str(review(model).expected_wrong_labels()) in look
    for link in re.findall(r'href="([^"]+)"', look):
        assert client.get(f"/page/{html.unescape(link)}").status_code == 200
    kept = {"row": str(found["id"].iloc[0]), "action": "keep"}
    client.post("/page/ask/change", json=kept)
    assert f"{n} label" not in client.get("/page/start/look").text


def test_columns_that_the_model_does_not_use_come_last_in_every_view(codes):
    client, _ = codes
    answer = client.post("/page/ask/answer", json=question(client, 7)).text
    heads = re.findall(r'<th scope="col"[^>]*>(\w+)', answer[answer.index("differs by") :])
    assert heads[-1] == "RowNumber" and len(heads) == 4
    rows = answer[answer.index("(not used)") :]
    assert re.findall(r'<td class="faint">(\d+|.)</td>', rows)  # and none of them is marked
    assert not re.search(r'<td class="faint"><span', rows)
    for part in (
        client.post("/page/review/queue", json={"row": "7"}).text,
        client.post("/page/review/queue", json={"row": "7", "view": "list"}).text,
        client.post("/page/map/rows", json={"ids": "3,4"}).text,
    ):
        assert part.index("size") < part.index("RowNumber")


def test_the_effect_of_a_switch_stands_beside_the_answer(client):
    form = question(client, 3)
    before = client.post("/page/ask/answer", json=form).text
    first = neighbors_of(before)[0]
    after = client.post("/page/ask/answer", json=form | {"off": str(first)}).text
    (line,) = re.findall(r'<p class="answer">.*?</p>', after)
    label, _ = sure_of(before)
    sure = re.search(r'<span class="chip[^>]*>([^<]+)', before)[1]
    assert f"before: {label}, {sure}" in line and re.search(r"[+-]\d+\.\d\d points", line)
    assert "points" not in before


def test_a_body_nested_without_end_is_refused(client):
    headers = {"Content-Type": "application/json"}
    problem(client.post("/page/ask/answer", content=b"[" * 200_000, headers=headers), 400)


TEXTS = st.text(max_size=8) | st.sampled_from(
    ["0", "1", "nan", "inf", "1e400", "-1", "9" * 30, "²"]
)
NAMES = st.sampled_from(
    [
        "c0",
        "off",
        "as.0",
        "as.x",
        "remembered",
        "ids",
        "label",
        "action",
        "kind",
        "row",
        "selection",
    ]
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(form=st.dictionaries(NAMES, TEXTS | st.lists(TEXTS, max_size=3) | st.integers(), max_size=6))
def test_no_form_is_a_fault_of_the_service(client, form):
    of_map = ("map/query", "map/rows", "map/columns", "map/export")
    of_review = ("review/1", "review/queue", "review/decide")
    for path in ("ask/answer", *of_map, *of_review):
        found = client.post(f"/page/{path}", json=form)
        assert found.status_code in (200, 400, 404, 409, 422), (path, form, found.text)
