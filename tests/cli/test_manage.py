"""``evaluate``, ``add`` and ``inspect``: measure, teach and look at a model."""

import io
import json
from datetime import datetime

import numpy as np
import pandas as pd
import pytest

from tests.estimators.cases import blobs, fitted


def test_evaluate_writes_numbers_that_agree_with_the_predictions(
    nearwise, tables, trained, tmp_path
):
    scores = tmp_path / "scores.json"
    result = nearwise(
        "evaluate", trained, tables / "test.csv", "--json", scores, "--resamples", "50", "--all"
    )
    assert result.exit_code == 0
    for word in ("accuracy", "NLL", "ECE", "AURC", "base alone", "neighbors alone", "no neighbor"):
        assert word in result.out
    content = json.loads(scores.read_text())
    out = tmp_path / "p.csv"
    nearwise("predict", trained, tables / "test.csv", "-o", out)
    truth = pd.read_csv(tables / "test.csv")["label"]
    accuracy = (pd.read_csv(out)["prediction"] == truth).mean()
    assert content["n"] == 60
    assert content["metrics"]["accuracy"] == pytest.approx(accuracy)
    low, high = content["intervals"]["accuracy"]
    assert low <= accuracy <= high


def test_evaluate_names_a_label_the_model_has_never_seen(nearwise, tables, trained, tmp_path):
    frame = pd.read_csv(tables / "test.csv")
    frame.loc[:2, "label"] = "maybe"
    frame.to_csv(tmp_path / "t.csv", index=False)
    result = nearwise("evaluate", trained, tmp_path / "t.csv", "--all")
    assert result.exit_code == 2
    assert "3 of 60 rows" in result.err and "'maybe'" in result.err
    unlabelled = nearwise("evaluate", trained, tables / "new.csv")
    assert unlabelled.exit_code == 2 and "no column 'label'" in unlabelled.err


def test_add_teaches_new_rows_and_new_classes(nearwise, tables, model, tmp_path):
    frame = pd.DataFrame(
        {"width": [9.0] * 12, "height": [9.0] * 12, "color": ["blue"] * 12, "label": ["far"] * 12}
    )
    frame.to_csv(tmp_path / "more.csv", index=False)
    result = nearwise("add", model, tmp_path / "more.csv")
    assert result.exit_code == 0 and "12 rows" in result.err
    assert "172 rows" in result.err
    assert "far" in result.err
    facts = nearwise("inspect", model, "--json").json()
    assert facts["rows"] == 172
    assert facts["classes"]["far"] == 12
    table = nearwise("predict", model, tmp_path / "more.csv", "--proba").out
    assert "proba_far" in table


def test_add_bounds_the_memory_and_refreshes(nearwise, tables, trained, tmp_path):
    out = tmp_path / "bounded"
    options = ("--capacity", "120", "--eviction", "age", "--refresh")
    result = nearwise("add", trained, tables / "test.csv", "-o", out, *options)
    assert result.exit_code == 0 and "100 were evicted" in result.err
    before, facts = (nearwise("inspect", one, "--json").json() for one in (trained, out))
    assert (before["rows"], facts["rows"]) == (160, 120)
    assert facts["settings"] | {"capacity": 120, "eviction": "age"} == facts["settings"]
    assert facts["oof_nll"] != before["oof_nll"]  # measured on the rows that it now holds
    failed = nearwise(
        "add", trained, tables / "test.csv", "--eviction", "fifo", "-o", tmp_path / "x"
    )
    assert failed.exit_code == 2 and "not one of 'reservoir', 'age'" in failed.err


def test_inspect_tells_rows_classes_columns_and_choices(nearwise, trained):
    text = nearwise("inspect", trained)
    assert text.exit_code == 0
    for word in ("160", "label", "width", "color", "yes", "calibration"):
        assert word in text.out
    facts = nearwise("inspect", trained, "--json").json()
    assert facts["target"] == "label" and datetime.fromisoformat(facts["fitted"])
    assert list(facts["columns"]) == ["width", "height", "color"]
    assert sum(facts["classes"].values()) == facts["rows"] == 160
    facts = nearwise("inspect", trained, "--scores", "--json").json()
    assert 0.5 < facts["left_out"]["accuracy"] < 1
    assert facts["settings"]["cv"] == 2
    assert "out-of-sample scores" in nearwise("inspect", trained, "--scores").out


def test_evaluate_shows_each_of_few_classes_with_its_mistakes(nearwise, tables, tmp_path):
    frame = pd.read_csv(tables / "train.csv")
    labels = frame["label"].unique()
    rare = frame[frame["label"] == labels[-1]].head(12)
    frame = pd.concat([frame[frame["label"] != labels[-1]], rare])
    frame.to_csv(tmp_path / "tailed.csv", index=False)
    fit = ["fit", tmp_path / "tailed.csv", "--target", "label", "--out", tmp_path / "m"]
    fit += ["--drop", "row", "--cv", "2", "--estimator", "none", "--quiet"]
    assert nearwise(*fit).exit_code == 0
    options = ("--resamples", "20", "--json", tmp_path / "s.json", "--all")
    result = nearwise("evaluate", tmp_path / "m", tables / "test.csv", *options)
    assert "By class: recall, precision" in result.out and "-shot" not in result.out
    found = json.loads((tmp_path / "s.json").read_text())
    test = pd.read_csv(tables / "test.csv")
    predicted = pd.read_csv(
        io.StringIO(nearwise("predict", tmp_path / "m", tables / "test.csv", "-q").out)
    )["prediction"]
    for one in found["by_class"]:
        own, named = test["label"] == one["class"], predicted == one["class"]
        assert one["rows"] == own.sum() and f"as {one['class']}" in result.out
        assert one["recall"] == (own & named).sum() / own.sum()
        assert one["precision"] == (own & named).sum() / named.sum()
        assert one["predicted_as"][one["class"]] == (own & named).sum()
    shots = json.loads((tmp_path / "s.json").read_text())["shots"]
    assert set(shots) == {"model", "base alone", "neighbors alone"}
    assert sum(shots["model"]["classes"].values()) == len(labels)


def test_evaluate_shows_many_classes_by_their_size(nearwise, tmp_path):
    X, y = blobs(240, n_classes=12)
    kept = (y < 6) | (np.arange(240) < 120)
    frame = pd.DataFrame(X[kept], columns=list("abcd"))
    fitted(frame, pd.Series(y[kept], name="label")).save(tmp_path / "m")
    frame.assign(label=y[kept]).to_csv(tmp_path / "t.csv", index=False)
    result = nearwise("evaluate", tmp_path / "m", tmp_path / "t.csv", "--resamples", "20", "--all")
    assert "Accuracy by the size of the class" in result.out and "By class" not in result.out
    assert "medium-shot, 12 classes" in result.out or "few-shot, " in result.out


def test_a_capped_class_counts_as_many_rows_as_its_votes_stand_for(nearwise, tmp_path):
    X, y = blobs(240, n_classes=3)
    rows = np.concatenate([np.flatnonzero(y < 2), np.flatnonzero(y == 2)[:15]])
    frame = pd.DataFrame(X[rows], columns=list("abcd"))
    fitted(frame, pd.Series(y[rows], name="label"), max_per_class=20).save(tmp_path / "m")
    frame.assign(label=y[rows]).to_csv(tmp_path / "rows.csv", index=False)
    options = ("--resamples", "20", "--json", tmp_path / "s.json")
    assert nearwise("evaluate", tmp_path / "m", tmp_path / "rows.csv", *options).exit_code == 0
    shots = json.loads((tmp_path / "s.json").read_text())["shots"]["model"]
    assert shots["classes"] == {"many": 0, "medium": 2, "few": 1}  # 80, 80 and 15 rows


def test_inspect_looks_remembered_rows_up_by_the_ids_that_predictions_name(
    nearwise, tables, trained
):
    why = ("predict", trained, tables / "train.csv", "--explain", "--neighbors", "1", "--quiet")
    ids = nearwise(*why).table()["neighbor_1_id"][:2].tolist()
    asked = ",".join(map(str, ids))
    shown = nearwise("inspect", trained, "--rows", asked, "--json").json()
    rows = pd.read_csv(tables / "train.csv").iloc[[row["id"] for row in shown]]
    assert [row["id"] for row in shown] == list(dict.fromkeys(ids))
    assert [row["label"] for row in shown] == rows["label"].tolist()
    assert [row["width"] for row in shown] == rows["width"].tolist()
    assert "width" in nearwise("inspect", trained, "--rows", asked).out
    both = nearwise("inspect", trained, "--rows", "0", "--scores")
    assert both.exit_code == 2 and "Give one of the two" in both.err
    gone = nearwise("inspect", trained, "--rows", "400")
    assert gone.exit_code == 2 and "does not remember 400. It remembers 160 rows" in gone.err


def test_inspect_keeps_ids_and_labels_apart_from_columns_of_these_names(nearwise, tmp_path):
    X, y = blobs(40)
    names = [f"c{i}" for i in range(20)]
    rows = pd.DataFrame(np.tile(X, 10)[:, :20], columns=names).assign(id=range(700, 740))
    fitted(rows, pd.Series(y, name="label")).save(tmp_path / "m")
    (found,) = nearwise("inspect", tmp_path / "m", "--rows", "3", "--json").json()
    assert (found["id"], found["id_"], found["label"]) == (3, 703, y[3])
    lines = nearwise("inspect", tmp_path / "m", "--rows", "3,5").out.splitlines()
    assert any({"id_", "703", "705"} <= set(line.split()) for line in lines)  # a line per column
