"""Text of the command line becomes values, or an error that shows how to write it."""

import pytest

from nearwise.cli.rows.parsing import parse_count, parse_cv, split_list


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


@pytest.mark.parametrize("text", ["1", "0", "-3", "1.0", "1.5", "nan", "inf", "many", ""])
def test_another_cv_is_refused_with_what_is_taken(text):
    with pytest.raises(ValueError, match=r"--cv .* no number of folds .* no share"):
        parse_cv("--cv", text)


def test_lists_split_at_commas_and_drop_blanks():
    assert split_list("a, b,,c") == ["a", "b", "c"]
    assert split_list(["a,b", "c"]) == ["a", "b", "c"]
    assert split_list(None) == []
