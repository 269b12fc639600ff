"""Several targets on the command line: one fit, one folder, a model per target inside."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_multilabel_classification

from nearwise.cli import several
from nearwise.cli.rows import rows
from nearwise.estimators.opening import load_any
from nearwise.memory import StoreError

TAGS = ["tag_red", "tag_blue", "tag_green"]


@pytest.fixture(scope="module")
def labelled():
    X, Y = make_multilabel_classification(180, 6, n_classes=3, random_state=1)
    frame = pd.DataFrame(X, columns=[f"x{at}" for at in range(6)])
    return frame.assign(**dict(zip(TAGS, Y.T, strict=True)))


@pytest.fixture
def folder(nearwise, labelled, tmp_path):
    labelled[:120].to_csv(tmp_path / "train.csv", index=False)
    labelled[120:].to_csv(tmp_path / "test.csv", index=False)
    labelled[120:].drop(columns=TAGS).to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "tags.model"
    options = ("--preset", "instant", "--estimator", "none")
    result = nearwise("fit", tmp_path / "train.csv", "-t", "tag_*", "-o", out, *options)
    assert result.exit_code == 0, result.err
    assert "Learned 3 targets (classification) from 120 rows" in result.err
    return tmp_path


def test_a_pattern_names_several_targets_and_every_command_knows_them(nearwise, folder):
    model = folder / "tags.model"
    table = nearwise("predict", model, folder / "new.csv", "--proba", "--sets").table()
    assert list(table) == [
        *(f"prediction_{tag}" for tag in TAGS),
        *(f"proba_{tag}" for tag in TAGS),
        "labels",
    ]
    for tag in TAGS:
        assert ((table[f"proba_{tag}"] > 0.5) == (table[f"prediction_{tag}"] == 1)).all()
    held = table["labels"].dropna().str.split("|").explode()
    assert set(held) <= set(TAGS)
    scores = nearwise("evaluate", model, folder / "test.csv", "--json", "-").json()
    assert scores["metrics"]["macro_brier"] < scores["shares_alone"]["macro_brier"]
    assert list(scores["by_target"]) == TAGS
    facts = nearwise("inspect", model, "--json").json()
    assert list(facts["targets"]) == TAGS and facts["rows"] == 120
    assert nearwise("verify", model).exit_code == 0


def test_other_commands_name_the_models_inside(nearwise, folder):
    model = folder / "tags.model"
    result = nearwise("explain", model, folder / "new.csv")
    assert result.exit_code == 2
    assert f"{model / 'tag_red'}" in result.err
    assert nearwise("explain", model / "tag_red", folder / "new.csv").exit_code == 0
    assert "for one target" in nearwise("predict", model, folder / "new.csv", "--explain").err


def test_rows_are_added_and_removed_for_all_targets(nearwise, folder):
    model = folder / "tags.model"
    assert "180 rows" in nearwise("add", model, folder / "test.csv").err
    assert "178 rows" in nearwise("remove", model, "0,1").err
    assert load_any(model).fitted_.n_remembered == 178
    result = nearwise("evaluate", model, folder / "test.csv")
    assert result.exit_code == 2 and "equal training rows" in result.err


def test_a_change_that_was_killed_is_completed_by_the_same_command(nearwise, folder, monkeypatch):
    model = folder / "tags.model"
    made = []

    def killed(live, change):
        if made:
            raise StoreError("changed", "killed")
        made.append(live)
        return change

    from nearwise.estimators import LiveModel

    add = LiveModel.add
    with monkeypatch.context() as patch:
        patch.setattr(LiveModel, "add", lambda live, *a, **o: killed(live, add(live, *a, **o)))
        assert nearwise("add", model, folder / "test.csv").exit_code == 2
    sizes = [load_any(path).fitted_.n_remembered for path in several.models_in(model).values()]
    assert sorted(sizes)[0] == 120 and sorted(sizes)[-1] == 180
    assert "180 rows" in nearwise("add", model, folder / "test.csv").err
    sizes = [load_any(path).fitted_.n_remembered for path in several.models_in(model).values()]
    assert sizes == [180] * 3


def test_a_table_is_read_once_and_strange_labels_are_named(nearwise, folder, monkeypatch):
    model, reads = folder / "tags.model", []
    original = rows.read_frame
    monkeypatch.setattr(rows, "read_frame", lambda *a, **o: reads.append(a) or original(*a, **o))
    assert nearwise("evaluate", model, folder / "test.csv").exit_code == 0
    assert len(reads) == 1
    strange = pd.read_csv(folder / "test.csv").assign(tag_blue=7)
    strange.to_csv(folder / "strange.csv", index=False)
    result = nearwise("evaluate", model, folder / "strange.csv")
    assert result.exit_code == 2 and "'7'" in result.err


def test_numbers_as_several_targets(nearwise, folder, labelled):
    frame = labelled.assign(a=labelled["x0"] + 0.5, b=10 * labelled["x1"] + 0.25)
    frame[:120].to_csv(folder / "numbers.csv", index=False)
    frame[120:].to_csv(folder / "later.csv", index=False)
    out = folder / "numbers.model"
    fit = ("fit", folder / "numbers.csv", "-t", "a", "-t", "b", "-o", out)
    assert nearwise(*fit, "--preset", "instant", "--estimator", "none").exit_code == 0
    table = nearwise("predict", out, folder / "later.csv", "--confidence", "0.8").table()
    assert list(table) == [*("prediction_a", "low_a", "high_a", "prediction_b", "low_b", "high_b")]
    scores = nearwise("evaluate", out, folder / "later.csv", "--json", folder / "s.json")
    assert scores.exit_code == 0
    written = json.loads((folder / "s.json").read_text())
    assert np.isfinite([one["crps"] for one in written["by_target"].values()]).all()


def test_targets_that_are_not_there_or_not_of_a_kind_are_named(nearwise, folder, labelled):
    train, out = folder / "train.csv", folder / "x.model"
    assert "no column matches" in nearwise("fit", train, "-t", "label_*", "-o", out).err
    twice = nearwise("fit", train, "-t", "tag_red", "-t", "tag_red", "-o", out)
    assert "twice" in twice.err
    labelled.assign(price=labelled["x0"] + 0.5).to_csv(folder / "mixed.csv", index=False)
    mixed = nearwise("fit", folder / "mixed.csv", "-t", "tag_red", "-t", "price", "-o", out)
    assert "others numbers" in mixed.err
    assert not out.exists()


def sizes(model):
    return [load_any(path).fitted_.n_remembered for path in several.models_in(model).values()]


def test_rows_that_one_target_cannot_take_are_added_to_none(nearwise, folder):
    model, wrong = folder / "tags.model", pd.read_csv(folder / "test.csv").astype(object)
    wrong.loc[2, "tag_green"] = "O"
    wrong.to_csv(folder / "wrong.csv", index=False)
    result = nearwise("add", model, folder / "wrong.csv")
    assert result.exit_code == 2 and "tag_green" in result.err
    assert sizes(model) == [120] * 3
    rare = pd.read_csv(folder / "train.csv")
    green = ",".join(map(str, rare.index[rare["tag_green"] == 1]))
    result = nearwise("remove", model, green)
    assert result.exit_code == 2 and "--forget-classes" in result.err
    assert sizes(model) == [120] * 3
    assert nearwise("remove", model, "3,500").exit_code == 2
    assert sizes(model) == [120] * 3


@pytest.mark.parametrize(
    "command", [("add", "test.csv"), ("remove", "3"), ("undo", "1")], ids=lambda c: c[0]
)
def test_rows_of_one_target_do_not_change_alone(nearwise, folder, command):
    model, (name, argument) = folder / "tags.model", command
    nearwise("add", model, folder / "test.csv")
    given = folder / argument if name == "add" else argument
    result = nearwise(name, model / "tag_red", given)
    assert result.exit_code == 2 and "nearwise add tags.model" in result.err
    assert sizes(model) == [180] * 3
    assert nearwise("relabel", model / "tag_red", "3", "1").exit_code == 0


def test_a_folder_whose_targets_have_drifted_apart_takes_no_other_change(nearwise, folder):
    model = folder / "tags.model"
    learned = load_any(model / "tag_blue")
    rows = pd.read_csv(folder / "test.csv")
    learned.add(rows[learned.feature_names_in_], rows["tag_blue"])
    learned.save(model / "tag_blue", overwrite=True)
    for command in (("add", model, folder / "test.csv"), ("remove", model, "3")):
        result = nearwise(*command)
        assert result.exit_code == 2 and "tag_blue 180" in result.err
    assert sizes(model) == [120, 180, 120]


def test_a_change_of_all_targets_is_listed_and_undone(nearwise, folder):
    model = folder / "tags.model"
    assert f"undo {model} 1" in nearwise("add", model, folder / "test.csv").err
    nearwise("relabel", model / "tag_red", "3", "1")  # is of one target
    nearwise("remove", model, "5,6")
    listed = nearwise("history", model, "--json").json()
    assert [(one["version"], one["change"]) for one in listed] == [(1, "add"), (2, "remove")]
    assert "180 rows" in nearwise("undo", model, "2").err
    assert "120 rows" in nearwise("undo", model, "1").err
    assert nearwise("undo", model, "9").exit_code == 2
    assert load_any(model).fitted_.n_remembered == 120  # without a warning


def test_several_targets_are_fitted_again_in_place(nearwise, folder):
    fit = ("fit", folder / "train.csv", "-t", "tag_*", "-o", folder / "tags.model")
    options = ("--preset", "instant", "--estimator", "none")
    assert "--overwrite" in nearwise(*fit, *options).err
    assert nearwise(*fit, *options, "--overwrite").exit_code == 0
    assert sizes(folder / "tags.model") == [120] * 3


def test_rows_without_one_of_the_labels_are_left_out(nearwise, folder):
    gaps = pd.read_csv(folder / "train.csv").astype({tag: object for tag in TAGS})
    for row, tag in enumerate(TAGS):
        gaps.loc[[10 * row, 10 * row + 1], tag] = ["?", None]
    gaps.to_csv(folder / "gaps.csv", index=False)
    fit = ("fit", folder / "gaps.csv", "-t", "tag_*", "-o", folder / "gaps.model")
    options = ("--preset", "instant", "--estimator", "none")
    assert "--skip-unlabelled" in nearwise(*fit, *options).err
    result = nearwise(*fit, *options, "--skip-unlabelled")
    assert result.exit_code == 0, result.err
    assert sizes(folder / "gaps.model") == [114] * 3


def test_clean_looks_at_one_target(nearwise, folder):
    for targets in (("-t", "tag_*"), ("-t", "tag_red", "-t", "tag_blue")):
        result = nearwise("clean", folder / "train.csv", *targets)
        assert result.exit_code == 2 and "once, for each column in turn" in result.err


def test_scores_of_training_rows_are_told_apart(nearwise, folder):
    result = nearwise("evaluate", folder / "tags.model", folder / "train.csv")
    assert result.exit_code == 2 and "equal training rows" in result.err
