"""Compiled loops over rows: products, sums, and selection of the best scores."""

import numpy as np

from nearwise.functional.kernels import compiled, inlined
from nearwise.functional.vectors import (
    LANES,
    WIDE,
    add_product,
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
)
from nearwise.functional.vectors import total as total_of


@inlined
def weighted_sum(factors, rows, starts, n, output, start, width):  # type: ignore[no-untyped-def]
    """Write ``sum_s factors[s] * rows[starts[s] + c]`` over `n` rows of `width` numbers."""
    zero = 0.0
    c = 0
    while c + WIDE <= width:
        wide = repeated(zero, load_wide(output, start + c))
        for s in range(n):
            row = load_wide(rows, starts[s] + c)
            wide = add_product(wide, row, repeated(factors[s], row))
        store(wide, output, start + c)
        c += WIDE
    while c + LANES <= width:
        part = repeated(zero, load(output, start + c))
        for s in range(n):
            line = load(rows, starts[s] + c)
            part = add_product(part, line, repeated(factors[s], line))
        store(part, output, start + c)
        c += LANES
    while c < width:
        number = zero
        for s in range(n):
            number += factors[s] * rows[starts[s] + c]
        output[start + c] = number
        c += 1


@inlined
def products(row, start, rows, starts, n, width, out):  # type: ignore[no-untyped-def]
    """Write the dot products of one row with `n` others into `out`."""
    zero = 0.0
    for s in range(n):
        other = starts[s]
        number = zero
        c = 0
        if width >= WIDE:
            wide = repeated(zero, load_wide(row, start))
            while c + WIDE <= width:
                wide = add_product(wide, load_wide(row, start + c), load_wide(rows, other + c))
                c += WIDE
            number += total_of(wide)
        if c + LANES <= width:
            part = repeated(zero, load(row, start + c))
            while c + LANES <= width:
                part = add_product(part, load(row, start + c), load(rows, other + c))
                c += LANES
            number += total_of(part)
        while c < width:
            number += row[start + c] * rows[other + c]
            c += 1
        out[s] = number


@inlined
def add_row(factors, row, start, rows, starts, n, width):  # type: ignore[no-untyped-def]
    """Add ``factors[s]`` times one row to each of `n` others."""
    c = 0
    while c + WIDE <= width:
        wide = load_wide(row, start + c)
        for s in range(n):
            at = starts[s] + c
            more = add_product(load_wide(rows, at), wide, repeated(factors[s], wide))
            store(more, rows, at)
        c += WIDE
    while c + LANES <= width:
        part = load(row, start + c)
        for s in range(n):
            at = starts[s] + c
            store(add_product(load(rows, at), part, repeated(factors[s], part)), rows, at)
        c += LANES
    while c < width:
        for s in range(n):
            rows[starts[s] + c] += factors[s] * row[start + c]
        c += 1


_LOWEST = -3e38  # of all scores but -inf


@compiled
def lanes_for(n_wanted):  # type: ignore[no-untyped-def]
    """Return how many lanes a row is split into: half as many again as columns are wanted.

    Then the limit lets some more columns pass than are wanted; ranking the lanes costs their
    square.
    """
    return LANES * max(1, -(-3 * n_wanted // (2 * LANES)))


@inlined
def _limit(scores, start, stop, n_wanted, n_lanes, lanes):  # type: ignore[no-untyped-def]
    """Return a score that at least the best `n_wanted` columns reach.

    Lane l holds the columns l, l + L, ... The n-th largest of the lanes' maxima is reached by at
    least n columns, and no column that does not reach it is among the best n.
    """
    for lane in range(0, n_lanes, LANES):
        best = load(scores, start + lane)
        for at in range(start + lane + n_lanes, stop, n_lanes):
            best = larger(load(scores, at), best)
        store(best, lanes, lane)
    limit = np.inf
    for lane in range(0, n_lanes, LANES):
        best = load(lanes, lane)
        ranks = no_counts(best)
        for i in range(n_lanes):
            ranks = count_larger(ranks, lanes[i], best)
        limit = min(limit, smallest_of(best, ranks, n_wanted))
    return limit


@inlined
def _columns_from(scores, at, stop, limit):  # type: ignore[no-untyped-def]
    """Return a word whose bit j tells that column ``at + j`` reaches the limit, or is NaN."""
    if at + WIDE <= stop:
        wide = load_wide(scores, at)
        return bits_from(wide, repeated(limit, wide))
    bits = np.uint64(0)
    for shift in range(0, stop - at, LANES):
        part = load(scores, at + shift)
        bits |= bits_from(part, repeated(limit, part)) << np.uint64(shift)
    return bits


@inlined
def select(  # type: ignore[no-untyped-def]
    scores, start, n_columns, n_wanted, n_lanes, lanes, found, places, ranks, best, columns
):
    """Write the best columns of a row in descending order, ties by lowest column.

    Arrays come by their addresses. The row begins at `start` of `scores`; it has `n_columns`, a
    multiple of `LANES`, of which those at -inf do not count. `lanes` has room for `n_lanes`, the
    other arrays for the columns and `LANES` more. Return how many there are, `n_wanted` at most,
    and whether some score is NaN; those are left out.
    """
    stop = start + n_columns
    limit = _LOWEST
    if n_columns >= n_lanes > n_wanted:
        limit = max(_LOWEST, _limit(scores, start, stop, n_wanted, n_lanes, lanes))
    count, is_poisoned = 0, False
    for at in range(start, stop, WIDE):
        bits = _columns_from(scores, at, stop, limit)
        while bits != 0:
            column = at + lowest_bit(bits)
            bits &= bits - np.uint64(1)
            score = scores[column]
            if score != score:
                is_poisoned = True
                continue
            found[count] = score
            places[count] = column - start
            count += 1
    for first in range(0, count, LANES):
        part = load(found, first)
        ahead = no_counts(part)
        for i in range(count):
            ahead = count_ahead(ahead, found[i], i, part, first)
        store(ahead, ranks, first)
    for f in range(count):
        best[ranks[f]] = found[f]
        columns[ranks[f]] = places[f]
    return min(n_wanted, count), is_poisoned
