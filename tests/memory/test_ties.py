"""Of equally near rows, which are found depends on nothing that a table is sorted by."""

import numpy as np
import pytest

from nearwise.memory.ties import tie_order, tie_ranks, tie_ranks_in_sql


def test_ranks_of_32_bits_never_tie():
    ids = np.concatenate([np.arange(100_000), 2**32 - 1 - np.arange(100_000)])
    ranks = tie_ranks(ids)
    assert ranks.dtype == np.int64 and 0 <= ranks.min() <= ranks.max() < 2**32
    assert len(np.unique(ranks)) == len(ids)
    assert (np.diff(ranks[tie_order(ids)]) > 0).all()


@pytest.mark.parametrize("first", [0, 1_000_000])
@pytest.mark.parametrize("n_parts", [2, 3, 8])
@pytest.mark.parametrize("sort", ["one after the other", "in turn"])
def test_the_first_rows_are_of_all_parts_of_a_table(first, n_parts, sort):
    part = np.arange(4_800) // (4_800 // n_parts) if sort != "in turn" else np.arange(4_800)
    found = tie_order(first + np.arange(4_800))[:480]
    counts = np.bincount(part[found] % n_parts, minlength=n_parts)
    spread = 4 * np.sqrt(480 / n_parts * (1 - 1 / n_parts))  # four standard deviations
    assert np.abs(counts - 480 / n_parts).max() < spread


def test_a_row_that_comes_later_is_found_among_copies():
    earlier, later = np.arange(500), 500 + np.arange(100)
    found = tie_order(np.concatenate([earlier, later]))[:120]
    assert 5 < (found >= 500).sum() < 40


@pytest.mark.parametrize("number", [0, 1, 77, 2**31, 2**32 - 1, 2**40 + 5])
def test_sql_computes_the_same(number):
    python = tie_ranks_in_sql("number").replace("#", "^")  # PostgreSQL's exclusive or
    assert eval(python, {"number": number}) == tie_ranks(np.array([number]))[0]
