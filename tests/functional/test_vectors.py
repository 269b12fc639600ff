"""Vectors of compiled loops compute what numpy does."""

import numpy as np
import pytest

from nearwise.functional.kernels import compiled
from nearwise.functional.vectors import (
    LANES,
    WIDE,
    add_product,
    address,
    bits_from,
    count_ahead,
    count_larger,
    larger,
    load,
    load_wide,
    lowest_bit,
    no_counts,
    repeated,
    smallest_of,
    store,
    total,
)


@compiled
def _compute(numbers, sums, most, larger_counts, ahead):  # type: ignore[no-untyped-def]
    at = address(numbers)
    a, b = load(at, 3), load(at, 3 + LANES)
    store(add_product(a, b, repeated(numbers[0], b)), address(sums), 0)
    store(larger(a, b), address(most), 0)
    counts, before = no_counts(a), no_counts(a)
    for i in range(LANES):
        counts = count_larger(counts, numbers[3 + i], a)
        before = count_ahead(before, numbers[3 + i], i, a, 0)
    store(counts, address(larger_counts), 0)
    store(before, address(ahead), 0)
    wide = load_wide(at, 0)
    return (
        total(wide),
        smallest_of(a, counts, 4),
        bits_from(a, repeated(0.5, a)),
        bits_from(wide, repeated(0.5, wide)),
    )


@compiled
def _third(numbers):  # type: ignore[no-untyped-def]
    return address(numbers)[2]


@compiled
def _lowest(word):  # type: ignore[no-untyped-def]
    return lowest_bit(word)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_compute_what_numpy_does(dtype):
    # Quarters: many ties, and sums without rounding.
    numbers = np.random.default_rng(0).integers(-6, 7, WIDE).astype(dtype) / 4
    sums, most = np.empty((2, LANES), dtype)
    larger_counts, ahead = np.empty((2, LANES), np.int32)
    whole, limit, bits, wide_bits = _compute(numbers, sums, most, larger_counts, ahead)
    a, b = numbers[3 : 3 + LANES], numbers[3 + LANES : 3 + 2 * LANES]
    np.testing.assert_array_equal(sums, a + b * numbers[0])
    np.testing.assert_array_equal(most, np.maximum(a, b))
    np.testing.assert_array_equal(larger_counts, (a[:, None] > a).sum(axis=0))
    order = np.argsort(-a, kind="stable")
    np.testing.assert_array_equal(ahead[order], np.arange(LANES))
    assert whole == numbers.sum()
    assert limit == np.sort(a)[-4]
    for word, vector in ((bits, a), (wide_bits, numbers)):
        assert word == sum(1 << i for i, x in enumerate(vector.tolist()) if x >= 0.5)
    assert _third(numbers) == numbers[2]


def test_nan_reaches_every_limit():
    numbers = np.zeros(WIDE, np.float32)
    numbers[5] = np.nan  # the third of the vector that starts at 3
    outputs = [np.empty(LANES, kind) for kind in ("f4", "f4", "i4", "i4")]
    assert _compute(numbers, *outputs)[2:] == (1 << 2, 1 << 5)


@pytest.mark.parametrize("place", [0, 1, 31, 32, 63])
def test_the_lowest_bit_is_found(place):
    assert _lowest(np.uint64(1 << place | 1 << 63)) == place
