"""Columns are matched by name; what is missing is named, what is extra is said and ignored."""

import pandas as pd
import pytest

from nearwise.cli.rows.frames import Frame, match_columns, require_columns, split_target


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


def test_rows_without_a_target_are_counted():
    frame = pd.DataFrame({"a": [1, 2, 3], "label": ["u", None, None]})
    with pytest.raises(ValueError, match="2 of 3 rows have no value"):
        split_target(read(frame), "label", "f.csv")


def test_asking_for_a_column_that_is_not_there_raises(frame):
    require_columns(frame, ["a"], "f.csv")
    with pytest.raises(ValueError, match="'ident'"):
        require_columns(frame, ["ident"], "f.csv")
