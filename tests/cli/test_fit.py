"""``nearwise fit``: what is learned is saved whole, and a wrong request fails before training."""

import json

import pandas as pd
import pytest

from nearwise.cli.commands.fit import checkpoints
from tests.cli.conftest import make_table

OPTIONS = ("-t", "label", "--drop", "row", "--cv", "2", "--estimator", "none")


def test_the_same_rows_and_seed_give_the_same_model_in_any_format(
    nearwise, tables, trained, tmp_path
):
    parquet, out = tmp_path / "train.parquet", tmp_path / "again"
    pd.read_csv(tables / "train.csv").to_parquet(parquet)
    done = nearwise("fit", "-", "-o", out, *OPTIONS, "-q", stdin=parquet.read_bytes())
    assert (done.exit_code, done.out, done.err) == (0, "", "")
    first = nearwise("predict", trained, tables / "new.csv", "--proba").out
    assert nearwise("predict", out, tables / "new.csv", "--proba").out == first


def test_an_existing_model_is_kept_unless_overwrite_is_given(nearwise, tables, model):
    before = nearwise("predict", model, tables / "new.csv", "--proba").out
    arguments = ("fit", tables / "train.csv", "-o", model, *OPTIONS, "--seed", "5")
    refused = nearwise(*arguments)
    assert refused.exit_code == 2
    assert "--overwrite" in refused.err
    assert nearwise("predict", model, tables / "new.csv", "--proba").out == before

    replaced = nearwise(*arguments, "--class-prior", "uniform", "--overwrite")
    assert (replaced.exit_code, replaced.out) == (0, "")
    assert "2 classes from 160 rows" in replaced.err
    assert f"nearwise predict {model}" in replaced.err
    assert nearwise("predict", model, tables / "new.csv", "--proba").out != before
    assert not model.with_name("model.checkpoint").exists()


def test_a_weight_column_is_a_weight_and_no_feature(nearwise, tables, tmp_path):
    frame = pd.read_csv(tables / "train.csv", nrows=60).assign(importance=1.0)
    frame.to_csv(tmp_path / "weighted.csv", index=False)
    arguments = ("fit", tmp_path / "weighted.csv", "-o", tmp_path / "m", *OPTIONS, "-q")
    assert nearwise(*arguments, "--weight", "importance").exit_code == 0
    assert nearwise("predict", tmp_path / "m", tables / "new.csv").exit_code == 0


@pytest.mark.parametrize(
    ("value", "seen"),
    [("heavy", "'heavy'"), (None, "no value"), (-1.5, "-1.5"), ("inf", "inf")],
    ids=["text", "gap", "negative", "infinite"],
)
def test_a_bad_weight_is_named_with_its_column_row_and_value(
    nearwise, tables, tmp_path, value, seen
):
    frame = pd.read_csv(tables / "train.csv", nrows=60).assign(importance=1.0)
    frame["importance"] = frame["importance"].astype(object)
    frame.loc[[7, 9], "importance"] = value
    frame.to_csv(tmp_path / "weighted.csv", index=False)
    arguments = ("fit", tmp_path / "weighted.csv", "-o", tmp_path / "m", *OPTIONS, "-q")
    refused = nearwise(*arguments, "--weight", "importance")
    assert refused.exit_code == 2 and not (tmp_path / "m").exists()
    text = " ".join(refused.err.split())
    assert f"column 'importance' holds {seen} in row 7 (counted from 0; 2 such rows of 60)" in text


def test_nullable_labels_of_parquet_are_predicted_as_they_were_written(nearwise, tables, tmp_path):
    frame = pd.read_csv(tables / "train.csv", nrows=60)
    frame["label"] = (frame["label"] == "yes").astype("Int64")
    frame.to_parquet(tmp_path / "whole.parquet")
    arguments = ("fit", tmp_path / "whole.parquet", "-o", tmp_path / "m", *OPTIONS, "-q")
    assert nearwise(*arguments).exit_code == 0
    predicted = nearwise("predict", tmp_path / "m", tables / "new.csv", "--proba").out
    header, *rows = predicted.split()
    assert header == "prediction,proba_0,proba_1"
    assert {row.split(",")[0] for row in rows} <= {"0", "1"}
    assert nearwise("evaluate", tmp_path / "m", tmp_path / "whole.parquet").exit_code == 0


def test_labels_with_zeros_in_front_stay_as_they_are_written(nearwise, tables, tmp_path):
    frame = pd.read_csv(tables / "train.csv").replace({"label": {"yes": "01", "no": "10"}})
    train, some = tmp_path / "train.csv", tmp_path / "some.csv"
    frame.to_csv(train, index=False)
    frame[frame["label"] == "10"].head(5).to_csv(some, index=False)  # by itself a number
    assert nearwise("fit", train, "-o", tmp_path / "m", *OPTIONS, "-q").exit_code == 0
    assert set(nearwise("predict", tmp_path / "m", train, "-q").out.split()[1:]) == {"01", "10"}
    assert nearwise("evaluate", tmp_path / "m", some).exit_code == 0
    added = nearwise("add", tmp_path / "m", some)
    assert added.exit_code == 0 and "new classes" not in added.err
    classes = json.loads(nearwise("inspect", tmp_path / "m", "--json").out)["classes"]
    assert classes == {"01": sum(frame["label"] == "01"), "10": sum(frame["label"] == "10") + 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,label\n", "at least one row"),
        ("", "is empty"),
        ("a,label\n1,x\n2,\n", "no value in the target"),
        ("a,label\n1,x\n2,x\n3,x\n", "one class"),
        ("a,label\n1,x\n2,z\n3,y\n", "only one of its class"),
        ("label\nx\ny\n", "no columns but the target"),
        ("a,label\n1,x\ninf,x\n3,y\n4,y\n", "infinity"),
    ],
    ids=["no rows", "empty", "missing label", "one class", "lone rows", "no feature", "infinity"],
)
def test_bad_tables_are_refused_in_one_line(nearwise, tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    result = nearwise("fit", path, "-t", "label", "-o", tmp_path / "m", "--quiet")
    assert result.exit_code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--estimator", "magic"), ("--cv", "1"), ("--n-neighbors", "5000"), ("--weight", "heft")],
)
def test_a_wrong_setting_is_refused_and_nothing_is_written(
    nearwise, tables, tmp_path, option, value
):
    arguments = ("fit", tables / "train.csv", "-t", "label", "-o", tmp_path / "m", "-q")
    result = nearwise(*arguments, option, value)
    assert result.exit_code == 2
    assert value in result.err
    assert not (tmp_path / "m").exists()


def test_checkpoints_go_when_a_fit_is_complete_and_stay_when_it_is_not(tmp_path, capsys):
    out, folder = tmp_path / "model", tmp_path / "model.checkpoint"
    with pytest.raises(KeyboardInterrupt), checkpoints(out, resume=False) as place:
        (place / "fit-a").mkdir()
        raise KeyboardInterrupt
    assert (folder / "fit-a").is_dir()
    with checkpoints(out, resume=True) as place:
        assert (place / "fit-a").is_dir()
    assert not folder.exists()
    assert capsys.readouterr().err == ""


def test_a_resume_that_cannot_use_what_is_there_says_so(tmp_path, capsys):
    with checkpoints(tmp_path / "model", resume=True) as place:
        (place / "fit-a").mkdir()
    assert "nothing to resume" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt), checkpoints(tmp_path / "model", resume=False):
        (place / "fit-a").mkdir()
        raise KeyboardInterrupt
    with checkpoints(tmp_path / "model", resume=True):
        (place / "fit-b").mkdir()
    assert "other rows or options" in capsys.readouterr().err


def test_checkpoints_of_another_time_are_not_used_without_resume(tmp_path):
    with pytest.raises(KeyboardInterrupt), checkpoints(tmp_path / "model", resume=False) as place:
        (place / "fit-a").mkdir()
        raise KeyboardInterrupt
    with checkpoints(tmp_path / "model", resume=False) as place:
        assert not (place / "fit-a").exists()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_no_fit_made_is_refused_before_anything_is_read_and_stays(
    nearwise, tmp_path, kind, resume
):
    place, mine = tmp_path / "m.checkpoint", tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    if kind == "folder":
        mine = mine.rename(place)
    elif kind == "link":
        place.symlink_to(mine)
    else:
        place.write_text("notes")
    fit = ("fit", tmp_path / "nothing.csv", "-t", "label", "-o", tmp_path / "m")
    refused = nearwise(*fit, *(["--resume"] if resume else []))
    assert refused.exit_code == 2
    assert f"{place} is a" in refused.err and "nothing was touched" in refused.err
    assert (mine / "thesis.tex").read_text() == "years of work"
    assert place.is_symlink() == (kind == "link")
    assert kind != "file" or place.read_text() == "notes"


def test_a_file_put_among_checkpoints_outlives_them(tmp_path, capsys):
    with checkpoints(tmp_path / "model", resume=False) as place:
        (place / "fit-a").mkdir()
        (place / "notes.txt").write_text("mine")
    assert (place / "notes.txt").read_text() == "mine"
    assert not (place / "fit-a").exists()
    assert "notes.txt, which no fit wrote" in capsys.readouterr().err


def test_a_fit_that_fails_before_it_trains_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="wrong"), checkpoints(tmp_path / "model", resume=False):
        raise ValueError("wrong")
    assert list(tmp_path.iterdir()) == []


def test_wrong_labels_and_wanted_shares_are_asked_for(nearwise, tables, tmp_path):
    pd.read_csv(tables / "train.csv", nrows=80).to_csv(tmp_path / "few.csv", index=False)
    fit = ("fit", tmp_path / "few.csv", *OPTIONS)
    done = nearwise(*fit, "-o", tmp_path / "noisy", "--label-noise", "auto")
    assert done.exit_code == 0 and "Wrong labels:" in done.err
    done = nearwise(*fit, "-o", tmp_path / "even", "--class-prior", "uniform")
    assert done.exit_code == 0
    both = ("--label-noise", "0.1", "--class-prior", "uniform")
    assert nearwise(*fit, "-o", tmp_path / "both", *both).exit_code == 0
    refused = nearwise(*fit, "-o", tmp_path / "none", "--class-prior", "evn")
    assert refused.exit_code == 2 and "uniform" in refused.err
    assert not (tmp_path / "none").exists()


def test_a_mis_spelt_file_and_a_missing_target_are_answered_with_what_there_is(nearwise, tables):
    missing = nearwise("fit", tables / "trian.csv", "-t", "label", "-o", tables / "none")
    assert missing.exit_code == 2 and "Did you mean 'train.csv'?" in missing.err
    strange = nearwise("fit", tables / "zzzzzzz", "-t", "label", "-o", tables / "none")
    assert strange.exit_code == 2 and "Its folder holds " in strange.err
    open_target = nearwise("fit", tables / "train.csv", "-o", tables / "none")
    assert "holds the labels? Name it with --target; it has: 'row', 'width'" in open_target.err
    embedder = ("-t", "label", "-o", tables / "none", "--embedder", "tabel", "--drop", "row")
    assert "Did you mean 'table'?" in nearwise("fit", tables / "train.csv", *embedder).err


def test_a_class_with_one_row_is_learned_and_named(nearwise, tmp_path):
    frame = make_table(40, 0)
    frame.loc[7, "label"] = "alone"
    frame.to_csv(tmp_path / "t.csv", index=False)
    data, place = tmp_path / "t.csv", tmp_path / "m"
    fit = nearwise("fit", data, "-t", "label", "-o", place, "--preset", "instant")
    assert fit.exit_code == 0 and "One class has a single row ('alone')" in fit.err
    assert "proba_alone" in nearwise("predict", place, data, "--proba", "-q").out
    assert nearwise("clean", data, "-t", "label", "-q").exit_code == 0
