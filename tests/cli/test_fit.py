"""``nearwise fit``: what is learned is saved whole, and a wrong request fails before training."""

import shlex

import numpy as np
import pandas as pd
import pytest

from nearwise.cli.checkpoints import checkpoints

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
    assert refused.exit_code == 2 and "--overwrite" in refused.err
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


@pytest.fixture
def stopped(tmp_path):
    """Folder of the checkpoints of a fit that Ctrl-C stopped."""
    with pytest.raises(KeyboardInterrupt), checkpoints(tmp_path / "model", resume=False) as place:
        (place / "fit-a").mkdir()
        raise KeyboardInterrupt
    return tmp_path / "model.checkpoint"


def test_checkpoints_stay_when_a_fit_is_stopped_and_go_when_it_is_complete(
    stopped, tmp_path, capsys
):
    assert (stopped / "fit-a").is_dir()
    with checkpoints(tmp_path / "model", resume=True) as place:
        assert (place / "fit-a").is_dir()
    assert not stopped.exists() and capsys.readouterr().err == ""
    with checkpoints(tmp_path / "model", resume=True) as place:
        (place / "fit-a").mkdir()
    assert "nothing to resume" in capsys.readouterr().err


def test_a_resume_that_cannot_use_what_is_there_says_so(stopped, tmp_path, capsys):
    with checkpoints(tmp_path / "model", resume=True):
        (stopped / "fit-b").mkdir()
    assert "other rows or options" in capsys.readouterr().err


def test_checkpoints_of_another_time_are_not_used_without_resume(stopped, tmp_path):
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


def test_predictions_of_the_recommended_command_can_be_joined_by_id(nearwise, tables, tmp_path):
    for name in ("train", "new"):
        frame = pd.read_csv(tables / f"{name}.csv").rename(columns={"row": "customer id"})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    fit = ("fit", tmp_path / "train.csv", "-t", "label", "--preset", "instant")
    fitted = nearwise(*fit, "-o", tmp_path / "m")
    words = shlex.split(fitted.err.partition("Next: nearwise ")[2])
    words[words.index("NEW_DATA")] = tmp_path / "new.csv"
    words[words.index("predictions.csv")] = tmp_path / "p.csv"
    assert nearwise(*words).exit_code == 0
    assert list(pd.read_csv(tmp_path / "p.csv")) == [
        "customer id", "prediction", "proba_no", "proba_yes"
    ]  # fmt: skip


def test_a_mis_spelt_model_is_answered_with_the_nearest(nearwise, tables, model):
    refused = nearwise("predict", model.with_name("modle"), tables / "new.csv")
    assert refused.exit_code == 2 and "Did you mean 'model'?" in refused.err


def test_the_columns_of_an_array_come_last_where_the_target_is_asked_for(nearwise, tmp_path):
    np.savez(tmp_path / "t.npz", X=np.zeros((8, 60)), y=np.arange(8))
    refused = nearwise("fit", tmp_path / "t.npz", "-o", tmp_path / "m")
    assert refused.exit_code == 2
    text = " ".join(refused.err.split())
    assert "it has: 'y', 'f0'," in text and "and 11 more" in text
