"""``nearwise fit``: what is learned is saved whole, and a wrong request fails before training."""

import pandas as pd
import pytest

FAST = ("--preset", "fast", "--members", "2", "--base", "none")


def test_fit_says_what_it_learned_and_what_comes_next(nearwise, tables, tmp_path):
    out = tmp_path / "m"
    train = tables / "train.csv"
    result = nearwise("fit", train, "-t", "label", "-o", out, "--drop", "row", *FAST)
    assert result.exit_code == 0
    assert result.out == ""
    assert "2 classes from 160 rows" in result.err
    assert f"nearwise predict {out}" in result.err
    assert not out.with_name("m.checkpoint").exists()


def test_the_same_seed_gives_the_same_model(nearwise, tables, tmp_path, trained):
    train, out = tables / "train.csv", tmp_path / "again"
    options = ("-t", "label", "-o", out, "--drop", "row", *FAST, "--quiet")
    assert nearwise("fit", train, *options).exit_code == 0
    first = nearwise("predict", trained, tables / "new.csv", "--proba").out
    assert nearwise("predict", out, tables / "new.csv", "--proba").out == first


def test_fit_reads_standard_input_and_parquet_alike(nearwise, tables, tmp_path):
    frame = pd.read_csv(tables / "train.csv")
    frame.to_parquet(tmp_path / "train.parquet")
    options = ("-t", "label", "--drop", "row", *FAST, "--quiet")
    content = (tables / "train.csv").read_bytes()
    assert nearwise("fit", "-", "-o", tmp_path / "a", *options, stdin=content).exit_code == 0
    parquet = tmp_path / "train.parquet"
    assert nearwise("fit", parquet, "-o", tmp_path / "b", *options).exit_code == 0
    predictions = [
        nearwise("predict", tmp_path / name, tables / "new.csv", "--proba").out for name in "ab"
    ]
    assert predictions[0] == predictions[1]


def test_an_existing_model_is_kept_unless_overwrite_is_given(nearwise, tables, model):
    before = nearwise("predict", model, tables / "new.csv", "--proba").out
    options = ("-t", "label", "-o", model, "--drop", "row", *FAST, "--quiet", "--seed", "5")
    refused = nearwise("fit", tables / "train.csv", *options)
    assert refused.exit_code == 2
    assert "--overwrite" in refused.err
    assert nearwise("predict", model, tables / "new.csv", "--proba").out == before
    assert nearwise("fit", tables / "train.csv", *options, "--overwrite").exit_code == 0
    assert nearwise("predict", model, tables / "new.csv", "--proba").out != before


def test_a_weight_column_is_a_weight_and_no_feature(nearwise, tables, tmp_path):
    frame = pd.read_csv(tables / "train.csv").assign(importance=1.0)
    frame.to_csv(tmp_path / "weighted.csv", index=False)
    options = ("-t", "label", "-o", tmp_path / "m", "--drop", "row", *FAST, "--quiet")
    result = nearwise("fit", tmp_path / "weighted.csv", *options, "--weight", "importance")
    assert result.exit_code == 0
    assert nearwise("predict", tmp_path / "m", tables / "new.csv").exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,label\n", "at least one row"),
        ("", "is empty"),
        ("a,label\n1,x\n2,\n", "no value in the target"),
        ("a,label\n1,x\n2,x\n3,x\n", "class"),
        ("label\nx\ny\n", "column"),
    ],
    ids=["no rows", "empty file", "missing label", "one class", "no feature"],
)
def test_bad_tables_are_refused_in_one_line(nearwise, tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    result = nearwise("fit", path, "-t", "label", "-o", tmp_path / "m", "--quiet")
    assert result.exit_code == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "m").exists()


def test_a_wrong_setting_is_refused_before_anything_is_written(nearwise, tables, tmp_path):
    result = nearwise(
        "fit", tables / "train.csv", "-t", "label", "-o", tmp_path / "m", "--base", "magic"
    )
    assert result.exit_code == 2
    assert "magic" in result.err
    assert not (tmp_path / "m").exists()
