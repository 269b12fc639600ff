"""The best columns of a row are those of a stable sort, whatever the row looks like."""

import numpy as np
import pytest

from nearwise.functional.kernels import compiled
from nearwise.functional.tokens.kernels.rows import lanes_for, select
from nearwise.functional.vectors import LANES, address


@compiled
def _selected(  # type: ignore[no-untyped-def]
    row, n_wanted, n_lanes, lanes, found, places, ranks, best, columns
):
    arrays = address(lanes), address(found), address(places), address(ranks)
    rows = address(row)
    return select(
        rows, 0, row.shape[0], n_wanted, n_lanes, *arrays, address(best), address(columns)
    )


def selected(row, n_wanted):
    """Columns and scores that are selected, and whether there was NaN."""
    width = -(-len(row) // LANES) * LANES
    padded = np.full(width, -np.inf, row.dtype)
    padded[: len(row)] = row
    found, best = np.empty((2, width + LANES), row.dtype)
    places, ranks, columns = np.empty((3, width + LANES), np.int32)
    n_lanes = lanes_for(n_wanted)
    lanes = np.empty(n_lanes, row.dtype)
    count, is_poisoned = _selected(
        padded, n_wanted, n_lanes, lanes, found, places, ranks, best, columns
    )
    return columns[:count], best[:count], is_poisoned


def rows(n_columns, dtype):
    generator = np.random.default_rng(n_columns)
    scores = generator.normal(size=n_columns)
    yield "normal", scores.astype(dtype)
    yield "many ties", scores.round().astype(dtype)
    yield "all the same", np.zeros(n_columns, dtype)
    yield "ascending", np.arange(n_columns, dtype=dtype)
    yield "descending", -np.arange(n_columns, dtype=dtype)
    yield "infinite", np.where(generator.random(n_columns) < 0.1, np.inf, scores).astype(dtype)
    yield "most forbidden", np.where(np.arange(n_columns) % 7, -np.inf, scores).astype(dtype)
    yield "all forbidden", np.full(n_columns, -np.inf, dtype)
    alone = np.full(n_columns, -1.0, dtype)
    alone[::LANES] = scores[::LANES]  # the best of all in one lane
    yield "one lane", alone


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_columns", [1, 15, 16, 63, 64, 197, 700])
def test_the_best_columns_are_those_of_a_stable_sort(n_columns, dtype):
    for name, row in rows(n_columns, dtype):
        for n_wanted in {1, min(9, n_columns), min(32, n_columns), n_columns}:
            columns, best, is_poisoned = selected(row, n_wanted)
            expected = np.argsort(-row, kind="stable")[:n_wanted]
            expected = expected[row[expected] > -np.inf]
            np.testing.assert_array_equal(columns, expected, err_msg=f"{name}, {n_wanted}")
            np.testing.assert_array_equal(best, row[expected])
            assert not is_poisoned


@pytest.mark.parametrize("place", [0, 20, 196])
def test_nan_is_told_and_left_out(place):
    row = np.random.default_rng(0).normal(size=197).astype(np.float32)
    row[place] = np.nan
    columns, _, is_poisoned = selected(row, 5)
    assert is_poisoned
    assert place not in columns
