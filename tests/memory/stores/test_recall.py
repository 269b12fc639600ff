"""The width of a search follows from what it finds."""

import warnings

import numpy as np
import pytest

from nearwise.memory.stores.recall import widened

TRUE = np.arange(40).reshape(2, 20)


def finding(share_of_width):
    """A search that finds a share of the truth, which grows with its width."""
    asked = []

    def search(width):
        asked.append(width)
        n = round(20 * min(1, width * share_of_width))
        return np.where(np.arange(20) < n, TRUE, -1)

    return search, asked


def test_the_width_is_doubled_until_enough_is_found():
    search, asked = finding(1 / 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert widened("s", search, TRUE, 3, 100) == (12, 1.0)
    assert asked == [3, 6, 12]


def test_a_search_that_is_as_wide_as_can_be_and_finds_too_little_is_told():
    search, asked = finding(1 / 10)
    with pytest.warns(UserWarning, match="in the space 's' find 70.0% of the nearest rows, below"):
        assert widened("s", search, TRUE, 4, 7) == (7, 0.7)
    assert asked == [4, 7]


def test_95_percent_are_enough():
    search, asked = finding(0.95)
    assert widened("s", search, TRUE, 1, 8) == (1, 0.95)
    assert asked == [1]
