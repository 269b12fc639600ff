"""Seeds of the lab's commands become numbers, or an error that shows how to write them."""

import pytest
from nearwise_lab.cli.settings_text import parse_seeds


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0-4", [0, 1, 2, 3, 4]), ("7", [7]), ("0,2, 9", [0, 2, 9]), ("0-2,1-3", [0, 1, 2, 3])],
)
def test_seeds_read_as_ranges_and_lists(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", ",", "a", "-1", "1-", "4-0", "0..4", "1.5"])
def test_wrong_seeds_are_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"--seeds.*Write"):
        parse_seeds(text)
