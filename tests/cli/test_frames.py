"""Columns are matched by name or place; what is missing is named, what is extra is ignored."""

import pandas as pd
import pytest

from nearwise.cli.rows.frames import (
    Frame,
    match_columns,
    match_places,
    require_columns,
    split_target,
)
from nearwise.cli.rows.parsing import parse_count, parse_cv, split_list


def read(table):
    """Give a table as it is read from a format with types."""
    return Frame(table, lambda names: table[list(names)])


@pytest.fixture
def frame():
    return pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "label": ["u", "v"]})


def test_columns_in_another_order_come_back_in_the_models(frame):
    assert list(match_columns(frame, ["b", "a"], "f.csv", expected=["label"]).columns) == ["b", "a"]


def test_extra_columns_are_ignored_with_a_note(frame, capsys):
    assert list(match_columns(frame, ["a"], "f.csv", expected=["label"]).columns) == ["a"]
    err = capsys.readouterr().err
    assert "'b'" in err
    assert "label" not in err


def test_a_missing_column_is_named_with_its_nearest_match(frame):
    with pytest.raises(ValueError, match=r"f\.csv has no column 'lable'.*mean 'label'.*'a'"):
        split_target(read(frame), "lable", "f.csv")


def test_the_hint_at_a_missing_column_is_none_that_is_needed_itself():
    frame = pd.DataFrame(columns=["sepal length", "petal_lenght", "petal width"])
    with pytest.raises(ValueError, match=r"'petal length'\. Did you mean 'petal_lenght'\?"):
        require_columns(frame, ["sepal length", "petal length", "petal width"], "f.csv")


def test_several_missing_columns_are_all_named(frame):
    with pytest.raises(ValueError, match="lacks 2 columns: 'c', 'd'"):
        match_columns(frame, ["a", "c", "d"], "f.csv")


def test_standard_input_is_called_by_its_name(frame):
    with pytest.raises(ValueError, match=r"^standard input has no column 'c'"):
        match_columns(frame, ["c"], "-")


def test_long_lists_of_columns_are_cut():
    wide = pd.DataFrame([range(100)], columns=[f"c{i}" for i in range(100)])
    with pytest.raises(ValueError, match="and 88 more"):
        split_target(read(wide), "label", "f.csv")


# Columns without names


def numbered(*columns) -> pd.DataFrame:
    return pd.DataFrame({str(i): values for i, values in enumerate(columns)})


def match(frame, names, target):
    return match_places(frame, names, target, ["u", "v"], "f.data", quiet=True)


def test_a_table_with_its_target_keeps_its_numbers():
    frame = numbered(["u", "v"], [1, 2], [3, 4])
    assert match(frame, ["1", "2"], "0").equals(frame)


@pytest.mark.parametrize(
    ("names", "target"),
    [(["1", "2"], "0"), (["0", "2"], "1"), (["0", "1"], "2"), (["a", "b"], "y")],
)
def test_a_table_without_its_target_is_taken_in_order(names, target):
    matched = match(numbered([1, 2], [3, 4]), names, target)
    assert matched[names].to_numpy().tolist() == [[1, 3], [2, 4]]


def test_numbers_that_are_one_off_are_not_taken():
    # fitted on target 0, features 1 and 2, with 3 dropped; here the target is not in the file
    with pytest.raises(ValueError, match="3 columns without names"):
        match(numbered([1, 2], [3, 4], [5, 6]), ["1", "2"], "0")


def test_the_order_that_is_assumed_is_said(capsys):
    match_places(numbered([1], [2]), ["1", "2"], "0", ["u"], "f.data")
    assert "its 2 columns are taken in order: '1', '2'" in capsys.readouterr().err


# Text of options


def test_a_count_is_a_positive_integer_or_auto():
    assert parse_count("--n-neighbors", "5") == 5
    assert parse_count("--n-neighbors", "auto") == "auto"
    assert parse_count("--n-neighbors", None) is None


@pytest.mark.parametrize("text", ["0", "-3", "many", "2.5", ""])
def test_a_wrong_count_names_the_option(text):
    with pytest.raises(ValueError, match="--n-neighbors"):
        parse_count("--n-neighbors", text)


def test_cv_is_a_number_of_folds_a_share_or_auto():
    texts = ["5", "0.1", "auto", None]
    assert [parse_cv("--cv", text) for text in texts] == [5, 0.1, "auto", None]


@pytest.mark.parametrize("text", ["1", "0", "0.0", "-3", "1.0", "1.5", "nan", "inf", "many", ""])
def test_another_cv_is_refused_with_what_is_taken(text):
    with pytest.raises(ValueError, match=r"--cv .* no number of folds .* no share"):
        parse_cv("--cv", text)


def test_lists_split_at_commas_and_drop_blanks():
    assert split_list("a, b,,c") == ["a", "b", "c"]
    assert split_list(["a,b", "c"]) == ["a", "b", "c"]
    assert split_list(None) == []
