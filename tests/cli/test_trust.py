"""``nearwise predict`` and ``evaluate`` say how far the model can be trusted."""

import io
import json
import re

import numpy as np
import pandas as pd
import pytest

from nearwise.estimators import AttnKNNClassifier


def frame_of(text):
    return pd.read_csv(io.StringIO(text), keep_default_na=False)


def test_columns_are_what_the_library_says(nearwise, tables, trained):
    options = ["--coverage", "0.7", "--sets", "--confidence", "0.8", "--novelty"]
    result = nearwise("predict", trained, tables / "new.csv", *options)
    assert result.exit_code == 0
    table = frame_of(result.out)
    assert list(table.columns) == ["prediction", "accepted", "set", "novelty_p"]
    model = AttnKNNClassifier.load(trained)
    X = pd.read_csv(tables / "new.csv")[list(model.feature_names_in_)]
    chosen = model.predict_selective(X, coverage=0.7, confidence=0.8)
    np.testing.assert_array_equal(table["accepted"], chosen.accepted)
    sets = ["|".join(model.classes_[row]) for row in model.predict_set(X, 0.8)]
    assert table["set"].tolist() == sets
    np.testing.assert_allclose(table["novelty_p"], model.novelty_p_value(X))
    assert f"Accepted {chosen.accepted.sum()} of 20 rows" in result.err
    assert "with confidence 0.8" in result.err


def test_sets_of_names_with_a_bar_can_be_split_again(nearwise, tmp_path, rng):
    X, names = rng.normal(size=(80, 2)).round(3), np.array(["a", "a|b", "b\\"])
    frame = pd.DataFrame({"x": X[:, 0], "y": X[:, 1]})
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(frame, names[np.arange(80) % 3])
    model.save(tmp_path / "bars.model")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    options = ["--sets", "--confidence", "0.9"]
    done = nearwise("predict", tmp_path / "bars.model", tmp_path / "rows.csv", *options)
    assert done.exit_code == 0
    split = [re.findall(r"(?:[^|\\]|\\.)+", text) for text in frame_of(done.out)["set"]]
    named = [{re.sub(r"\\(.)", r"\1", part) for part in parts} for parts in split]
    assert named == [set(names[row]) for row in model.predict_set(frame, 0.9)]
    assert max(map(len, named)) == 3  # noise: all three names were joined somewhere


def test_json_lines_hold_sets_as_lists_with_and_without_neighbors(
    nearwise, tables, trained, tmp_path
):
    found = []
    for more in ([], ["--explain"]):
        out = tmp_path / f"{len(more)}.jsonl"
        done = nearwise("predict", trained, tables / "new.csv", "-o", out, "--sets", *more)
        assert done.exit_code == 0
        found.append([json.loads(line) for line in out.read_text().splitlines()])
    assert [row["set"] for row in found[0]] == [row["set"] for row in found[1]]
    assert {label for row in found[0] for label in row["set"]} <= {"yes", "no"}
    assert "neighbors" in found[1][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--coverage", "0.5", "--max-risk", "0.1"], "Give one of them."),
        (["--coverage", "90"], "must lie in (0, 1]"),
        (["--max-risk", "0"], "must lie between 0 and 1"),
        (["--max-risk", "0.0001"], "cannot be promised"),
        (["--confidence", "0.9"], "Give one of them too"),
        (["--sets", "--confidence", "0.999"], "at least 999 rows"),
    ],
)
def test_a_bad_wish_ends_with_what_to_do(nearwise, tables, trained, options, message):
    result = nearwise("predict", trained, tables / "new.csv", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.err.split())
    assert result.out == ""


def test_evaluate_measures_answers_and_sets(nearwise, tables, trained, tmp_path):
    out = tmp_path / "scores.json"
    options = [
        "--json",
        out,
        "--coverage",
        "0.6",
        "--confidence",
        "0.8",
        "--resamples",
        "20",
        "--all",
    ]
    result = nearwise("evaluate", trained, tables / "test.csv", *options)
    assert result.exit_code == 0
    numbers = json.loads(out.read_text())
    model = AttnKNNClassifier.load(trained)
    frame = pd.read_csv(tables / "test.csv")
    X = frame[list(model.feature_names_in_)]
    chosen = model.predict_selective(X, coverage=0.6, confidence=0.8)
    wrong = chosen.labels != frame["label"]
    assert numbers["selective"]["risk"] == pytest.approx(wrong[chosen.accepted].mean())
    assert numbers["selective"]["coverage"] == pytest.approx(chosen.accepted.mean())
    sets = model.predict_set(X, 0.8)
    assert numbers["sets"]["mean_size"] == pytest.approx(sets.sum(axis=1).mean())
    assert "Sets of confidence 80 %" in " ".join(result.out.split())


@pytest.mark.parametrize(("given", "bound", "sets"), [(None, 0.95, 0.9), (0.8, 0.8, 0.8)])
def test_confidence_means_the_same_to_evaluate_as_to_predict(
    nearwise, tables, trained, given, bound, sets
):
    options = [] if given is None else ["--confidence", given]
    numbers = nearwise(
        "evaluate", trained, tables / "test.csv", "--resamples", "20", "--json", "-", *options
    ).json()
    assert numbers["selective"]["bound_confidence"] == bound
    assert numbers["sets"]["confidence"] == sets
    said = nearwise("predict", trained, tables / "test.csv", "--coverage", "0.9", *options).err
    assert f"with confidence {bound:g}" in said
    assert f"at most {100 * numbers['selective']['risk_bound']:.2f} %" in said


def test_evaluate_says_why_it_does_not_measure_sets_of_a_small_memory(nearwise, tables, trained):
    arguments = ["evaluate", trained, tables / "test.csv", "--resamples", "20", "--all"]
    result = nearwise(*arguments, "--confidence", "0.999")
    assert result.exit_code == 0
    text = " ".join(result.out.split())
    assert "not measured. Sets of confidence 0.999 need at least 999" in text
    assert nearwise(*arguments, "--confidence", "99").exit_code == 2


def test_a_warning_is_said_once_however_often_the_table_is_read(nearwise, tmp_path):
    frame = pd.DataFrame({"kind": list("ab") * 30, "size": range(60), "label": ["x", "y"] * 30})
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame.assign(kind="never seen").to_csv(tmp_path / "new.csv", index=False)
    model = tmp_path / "model"
    cheap = ("--cv", "3", "--estimator", "none")
    fitted = nearwise("fit", tmp_path / "train.csv", "-t", "label", "-o", model, *cheap)
    assert fitted.exit_code == 0, fitted.err
    options = ["--coverage", "0.8", "--sets", "--novelty"]
    for _ in range(2):  # and again by the next command
        result = nearwise("predict", model, tmp_path / "new.csv", *options)
        warned = [line for line in result.err.splitlines() if "warning:" in line]
        assert len(warned) == len(set(warned)) == 2, result.err  # and that no value is known
