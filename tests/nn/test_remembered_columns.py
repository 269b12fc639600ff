import numpy as np
import pytest
import torch

from nearwise.nn.remembered_columns import GAP, MOST_COLUMNS, RememberedColumns, most_telling

NUMBER, CATEGORY = torch.tensor([False]), torch.tensor([True])


def column(*values):
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_ranks_go_from_minus_one_to_one_with_ties_in_the_middle():
    known = RememberedColumns.of(column(3, 1, 2, 2), NUMBER)
    ranks = known.ranks(column(0, 1, 2, 3, 9))[:, 0]
    torch.testing.assert_close(ranks, torch.tensor([-1.0, -0.75, 0.0, 0.75, 1.0]))


def test_a_missing_number_is_no_rank_and_changes_none():
    gaps = RememberedColumns.of(column(3, float("nan"), 1, 2), NUMBER)
    full = RememberedColumns.of(column(3, 1, 2), NUMBER)
    assert gaps.ranks(column(float("nan"))).item() == GAP
    queries = column(0, 1, 1.5, 3)
    torch.testing.assert_close(gaps.ranks(queries), full.ranks(queries))


def test_categories_stay_as_they_are():
    known = RememberedColumns.of(column(1, 2, 2), CATEGORY)
    torch.testing.assert_close(known.ranks(column(2, 0, 7)), column(2, 0, 7))


def test_a_column_without_any_number_ranks_nothing():
    known = RememberedColumns.of(column(float("nan"), float("nan")), NUMBER)
    assert known.ranks(column(float("nan"))).item() == GAP
    assert torch.isfinite(known.ranks(column(1.0))).all()


@pytest.mark.parametrize("power", [1, 5])
def test_ranks_of_many_rows_depend_on_order_alone(power):
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(5_000, 1))).float()
    plain = RememberedColumns.of(values, NUMBER).ranks(values)
    scaled = RememberedColumns.of(values**power, NUMBER).ranks(values**power)
    torch.testing.assert_close(plain, scaled, atol=2e-3, rtol=0)
    exact = 2 * (torch.argsort(torch.argsort(values[:, 0])) + 0.5) / len(values) - 1
    torch.testing.assert_close(plain[:, 0], exact.float(), atol=2e-3, rtol=0)


def test_asking_for_ranks_changes_neither_rows_nor_queries():
    remembered, queries = column(3, 1, 2), column(1, float("nan"))
    known = RememberedColumns.of(remembered, NUMBER)
    known.ranks(queries)
    torch.testing.assert_close(remembered, column(3, 1, 2))
    torch.testing.assert_close(queries, column(1, float("nan")), equal_nan=True)


def test_all_columns_are_seen_where_there_are_few():
    numbers, codes = np.zeros((9, MOST_COLUMNS - 2)), np.zeros((9, 2), np.int64)
    seen = most_telling(numbers, codes, np.arange(9) % 2)
    assert seen.tolist() == list(range(MOST_COLUMNS))


def test_of_many_columns_those_are_seen_in_which_classes_differ():
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=600)
    numbers, codes = rng.normal(size=(600, 40)), rng.integers(1, 4, size=(600, 10))
    numbers[:, 7] += labels  # another mean
    numbers[:, 30] *= 1 + 3 * labels  # the same mean, another spread
    numbers[rng.random(600) < 0.3 * labels, 12] = np.nan  # missing in one class
    codes[:, 4] = 1 + (labels ^ (rng.random(600) < 0.2))
    seen = most_telling(numbers, codes, labels)
    assert {7, 12, 30, 44} <= {*seen.tolist()}
    assert len(seen) == MOST_COLUMNS
    assert (np.diff(seen) > 0).all()


def test_constant_columns_and_lone_classes_are_no_error():
    numbers = np.zeros((30, 20))
    seen = most_telling(numbers, np.ones((30, 3), np.int64), np.arange(30))
    assert len(seen) == MOST_COLUMNS
