"""Text of the command line becomes values, or an error that shows how to write it."""

import pytest

from nearwise.cli.rows.parsing import parse_count, split_list


def test_a_count_is_a_positive_integer_or_auto():
    assert parse_count("--members", "5") == 5
    assert parse_count("--members", "auto") == "auto"
    assert parse_count("--members", None) is None


@pytest.mark.parametrize("text", ["0", "-3", "many", "2.5", ""])
def test_a_wrong_count_names_the_option(text):
    with pytest.raises(ValueError, match="--members"):
        parse_count("--members", text)


def test_lists_split_at_commas_and_drop_blanks():
    assert split_list("a, b,,c") == ["a", "b", "c"]
    assert split_list(["a,b", "c"]) == ["a", "b", "c"]
    assert split_list(None) == []
