"""The queue of a review: each case with its evidence, decisions that drop it, and their undo."""

import csv
import html
import io
import re
from urllib.parse import parse_qsl

import numpy as np
import pandas as pd
import pytest

from nearwise import review
from nearwise.estimators import AttnKNNClassifier, AttnKNNRegressor
from nearwise.serve.page.decisions import written
from nearwise.serve.page.queue import Address, Queue, decided_in
from tests.estimators.cases import attn_knn
from tests.estimators.image_cases import BRIEF, patches
from tests.serve.conftest import problem

NAMES = ["cat", "dog", "owl"]


@pytest.fixture
def animals(asked, tmp_path):
    """A service on three classes with 12 wrong labels, a copy and a far row."""
    rng = np.random.default_rng(0)
    code = np.arange(300) % 3
    X = pd.DataFrame(rng.normal(size=(300, 3)) + 4 * np.eye(3)[code], columns=["a", "b", "c"])
    X.iloc[20] = X.iloc[17]
    X.iloc[30] = 60.0
    given = code.copy()
    wrong = rng.permutation(np.arange(40, 300))[:12]
    given[wrong] = (code[wrong] + 1) % 3
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(X, np.array(NAMES)[given]).save(tmp_path / "animals.model")
    with asked(tmp_path / "animals.model") as client:
        yield client, np.array(NAMES)[code], set(wrong.tolist())


def queue(client, **form):
    found = client.post("/page/review/queue", json=form)
    assert found.status_code == 200, found.text
    return found.text


def shown(part):
    """Row and claim of the case that is shown."""
    row, claim = re.search(r'id="case"[^>]*>Row (\d+): (.*?)</h2>', part).groups()
    return int(row), claim


def decide(client, row, action, **form):
    found = client.post(
        "/page/review/decide", json={"ids": str(row), "row": str(row), "action": action} | form
    )
    assert found.status_code == 200, found.text
    return found.text


def label_of(client, row):
    return client.get(f"/rows/{row}").json()["label"]


def counts(part):
    """Decided, and all, as the page says; then by kind."""
    done, total = re.search(r"([\d,]+) of ([\d,]+) decided", part).groups()
    chips = re.findall(r"kind=(\w+)\"[^>]*>[^<]*<small>(\d+)", part)
    return int(done), int(total), {kind: int(n) for kind, n in chips}


def test_the_first_case_is_the_most_suspicious_with_neighbors_for_both_labels(animals):
    client, _, _ = animals
    row, claim = shown(queue(client, kind="label"))
    issue = review(client.service.live.model).issues().iloc[0]
    assert row == issue["id"]
    assert claim.startswith(f"labeled {issue['given']}; the model says {issue['suggested']}, ")
    part = queue(client, kind="label", row=str(row))
    for label in (issue["given"], issue["suggested"]):
        side = re.search(rf'aria-label="For {label}">(.*?)</section>', part, re.DOTALL)[1]
        labels = re.findall(r'class="label" title="(\w+)"', side)
        assert set(labels) <= {label} and len(labels) <= 3
        assert labels or "None of the" in side


def test_a_decision_is_in_the_journal_drops_the_case_and_shows_the_next_one(animals):
    client, true, wrong = animals
    first = queue(client, kind="label")
    row, _ = shown(first)
    assert row in wrong
    part = decide(client, row, "accept", kind="label")
    assert label_of(client, row) == true[row]
    assert f"Row {row}: relabeled {true[row]}." in part
    assert shown(part)[0] != row and counts(part)[0] == 1
    before, after = counts(first), counts(part)
    assert after[1] == before[1] and after[2]["label"] == before[2]["label"] - 1
    assert [one["kind"] for one in client.get("/changes").json()["changes"]] == ["relabel"]
    assert shown(queue(client, kind="label"))[0] != row  # also for one who opens the page anew


def test_undo_brings_the_case_back_also_after_it_was_removed(animals):
    client, _, _ = animals
    row, claim = shown(queue(client, kind="label"))
    before = label_of(client, row)
    for action in ("accept", "keep", "remove"):
        part = decide(client, row, action, kind="label")
        version = re.search(r'data-made="(\d+)"', part)[1]
        undone = client.post("/page/review/undo", json={"kind": "label", "version": version}).text
        assert f'data-undone="{version}"' in undone and counts(undone)[0] == 0
        row = shown(undone)[0]  # a removed row comes back under another id
        assert label_of(client, row) == before and shown(undone)[1][:20] == claim[:20]
    assert "no change 99" in problem(client.post("/page/review/undo", json={"version": "99"}), 404)
    problem(client.post("/page/review/undo", json={"version": version}), 422)  # undone already


def test_next_and_previous_go_through_the_open_cases_in_order(animals):
    client, _, _ = animals
    seen, part = [], queue(client)
    while True:
        seen.append(shown(part)[0])
        link = re.search(r'data-key="j" href="[^"]*row=(\d+)"', part)
        if link is None:
            break
        part = queue(client, row=link[1])
    assert len(seen) == len(set(seen)) == counts(part)[1]
    back = re.search(r'data-key="i" href="[^"]*row=(\d+)"', part)
    assert int(back[1]) == seen[-2]


def test_several_rows_are_one_change_and_one_undo(animals):
    client, true, wrong = animals
    part = queue(client, kind="label", view="list")
    listed = [int(one) for one in re.findall(r'type="checkbox" name="ids" value="(\d+)"', part)]
    assert wrong <= set(listed)
    chosen = sorted(wrong)
    form = {"kind": "label", "view": "list", "action": "accept", "ids": [*map(str, chosen)]}
    part = client.post("/page/review/decide", json=form).text
    assert f"{len(chosen)} rows: relabeled as suggested." in part
    assert [label_of(client, row) for row in chosen] == true[chosen].tolist()
    assert len(client.get("/changes").json()["changes"]) == 1
    client.post("/page/review/undo", json={"version": "1", "view": "list"})
    assert all(label_of(client, row) != true[row] for row in chosen)
    too_many = {"action": "keep", "ids": [str(one) for one in range(501)]}
    assert "500" in problem(client.post("/page/review/decide", json=too_many), 422)


def test_a_pair_of_labels_and_a_selection_narrow_the_queue(animals):
    client, _, _ = animals
    issues = review(client.service.live.model).issues()
    pair = issues[(issues["given"] == "dog") & (issues["suggested"] == "cat")]["id"].tolist()
    part = queue(client, kind="label", given="dog", suggested="cat", view="list")
    assert re.findall(r'name="ids" value="(\d+)"', part) == [str(one) for one in pair]
    part = queue(client, kind="selection", selection="5,3,99999,4", view="list")
    assert set(re.findall(r'name="ids" value="(\d+)"', part)) == {"3", "4", "5"}
    assert "selected on the map" in part
    problem(client.post("/page/review/queue", json={"kind": "selection", "selection": "x"}), 422)
    problem(client.post("/page/review/queue", json={"kind": "nothing"}), 422)
    part = queue(client, kind="label", view="list", page="7")  # decided meanwhile
    assert "page=" not in re.search(r'data-query="([^"]*)"', part)[1] and 'name="ids"' in part


def test_confusions_of_whole_numbers_lead_to_their_rows(asked, tmp_path):
    y = np.arange(120) % 3
    X = np.random.default_rng(0).normal(size=(120, 3)) + np.eye(3)[y]
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(X, y.astype(float)).save(tmp_path / "float.model")
    with asked(tmp_path / "float.model") as client:
        part = html.unescape(client.get("/page/trust/view").text)
        address, n = re.search(r'href="review\?([^"]+)">(\d+)</a>', part).groups()
        listed = queue(client, **dict(parse_qsl(address)), view="list")
        assert listed.count('name="ids"') == int(n) > 0


def test_copies_stand_side_by_side_and_are_settled_when_one_is_gone(animals):
    client, _, _ = animals
    part = queue(client, kind="copy", row="20")
    assert 'aria-label="Copies"' in part and "row 17" in part and "All values are the same" in part
    decide(client, 20, "remove", kind="copy")
    assert "Go on with the other" in queue(client, row="20")  # there is nothing to see of it
    assert "copy" not in counts(queue(client))[2]
    far = queue(client, kind="outlier", row="30")
    assert "times as far as usual" in far and 'aria-label="Nearest rows"' in far


def test_the_expected_number_of_wrong_labels_stands_on_top_and_draws_a_line(animals):
    client, _, _ = animals
    expected = review(client.service.live.model).expected_wrong_labels()
    part = queue(client, kind="label")
    assert str(expected)[1:] in part
    reviewed = client.service.review()
    ids = reviewed.found.loc[reviewed.found["kind"] == "label", "id"].tolist()
    n = int(np.ceil(expected.number))
    for rank, row in enumerate(ids):
        said = "Past the expected number" in queue(client, kind="label", row=str(row))
        assert said == (rank >= n)


def test_what_was_decided_is_listed_and_every_finding_is_written(animals):
    client, _, _ = animals
    row, _ = shown(queue(client, kind="label"))
    decide(client, row, "accept")
    decide(client, 3, "keep")  # not among the findings
    listed = queue(client, kind="decided")
    assert re.findall(r">Row (\d+)</a>", listed) == ["3", str(row)]
    text = client.get("/page/review/findings.csv")
    assert text.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(text.text)))
    found = client.service.review().found
    assert [one["kind"] for one in rows[: len(found)]] == found["kind"].tolist()
    by_id = {one["id"]: one for one in rows}
    assert by_id[str(row)]["decision"] == "relabel" and by_id[str(row)]["change"] == "1"
    assert by_id[str(row)]["label"] == label_of(client, row)
    assert by_id["3"]["decision"] == "keep"


def test_the_order_stays_until_it_is_asked_for_again(animals):
    client, _, _ = animals
    row, _ = shown(queue(client, kind="label"))
    version = client.service.review().version
    decide(client, row, "accept")
    assert client.service.review().version is version
    assert "Rank again with 1 change" in queue(client)
    again = queue(client, again="1")
    assert client.service.review().version is not version and "Rank again" not in again
    assert counts(again)[0] == 1  # still decided


@pytest.mark.parametrize("view", ["one", "list"])
def test_a_row_that_goes_while_a_queue_is_made_is_no_fault(animals, monkeypatch, view):
    client, _, _ = animals
    row, _ = shown(queue(client, kind="label"))
    live = client.service.live

    def history():
        monkeypatch.undo()
        found = live.history()
        live.remove([row])
        return found

    monkeypatch.setattr(live, "history", history)
    assert f"row {row}" in queue(client, kind="label", view=view).lower()
    assert f"row {row}" not in queue(client, kind="label", view=view).lower()


def test_a_memory_without_findings_says_where_else_to_look(asked, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2)) + 9 * (np.arange(60) % 2)[:, None]
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(X, np.arange(60) % 2).save(tmp_path / "clean.model")
    with asked(tmp_path / "clean.model") as client:
        part = queue(client)
        assert "No label disagrees" in part and 'href="map"' in part
        assert not re.search(r"<small>0</small>", part.replace('aria-current="true">all', ""))


def test_targets_are_accepted_and_typed(asked, tmp_path):
    X = np.random.default_rng(0).normal(size=(120, 2))
    y = X[:, 0].round(3)
    y[7] = 40.0
    model = AttnKNNRegressor(preset="instant", estimator=None, random_state=0)
    model.fit(X, y).save(tmp_path / "numbers.model")
    with asked(tmp_path / "numbers.model") as client:
        row, claim = shown(queue(client, kind="label"))
        assert row == 7 and claim.startswith("target 40; the model says ")
        part = queue(client, kind="label")
        suggested = float(re.search(r'id="label" name="label"[^>]*value="([^"]+)"', part)[1])
        decide(client, 7, "accept", kind="label")
        assert client.get("/rows/7").json()["target"] == suggested
        decide(client, 7, "relabel", label="1.25")
        assert client.get("/rows/7").json()["target"] == 1.25


def test_labels_that_a_spreadsheet_would_run_are_written_as_text(asked, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2)) + 9 * (np.arange(60) % 2)[:, None]
    y = np.array(["=cmd", "plain"])[np.arange(60) % 2]
    y[4] = "plain"
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(X, y).save(tmp_path / "formula.model")
    with asked(tmp_path / "formula.model") as client:
        reviewed, live = client.service.review(), client.service.live
        there = set(live.now.fitted.bank.ids.tolist())
        text = written(Queue(reviewed, decided_in(live.history()), there, Address()))
        assert "'=cmd" in text and ",=cmd" not in text


def test_classes_that_are_numbers_are_reviewed_as_classes(asked, tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 2)), np.arange(80) % 2 + 1.0
    X[:, 0] += 2 * y
    y[:3] = 3 - y[:3]
    AttnKNNClassifier(preset="instant", estimator=None).fit(X, y).save(tmp_path / "floats.model")
    with asked(tmp_path / "floats.model") as client:
        row, claim = shown(queue(client, kind="label"))
        assert re.match(r"labeled [12]\.0; the model says [12]\.0, ", claim)
        assert "For 1.0" in (part := queue(client, row=str(row))) and "For 2.0" in part
        links = re.findall(r'href="review\?([^"]*)"', client.get("/page/trust/view").text)
        pairs = [dict(parse_qsl(html.unescape(one))) for one in links]
        assert any(counts(queue(client, **pair))[1] and "id=\"case\"" in queue(client, **pair)
                   for pair in pairs if "given" in pair)  # fmt: skip
        decide(client, row, "accept")
        assert label_of(client, row) in (1.0, 2.0)


def test_a_memory_without_calibration_rows_is_reviewed(asked, tmp_path):
    images, labels = patches(100)
    model = attn_knn(**BRIEF).fit(images, labels)
    model.remove(np.flatnonzero(model.fitted_.predictor.judged))
    model.save(tmp_path / "learned.model")
    with asked(tmp_path / "learned.model") as client:
        found = client.get("/review").json()["expected_wrong"]
        assert [found[name] for name in ("number", "low", "high")] == [0, 0, found["n_rows"]]
        assert client.get("/page/start/look").status_code == 200
        assert f"(0 to {found['n_rows']})" in queue(client)
