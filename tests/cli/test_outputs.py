"""Columns without names are matched by their place, or it is said why they cannot be."""

import pandas as pd
import pytest

from nearwise.cli.rows.frames import match_places


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
