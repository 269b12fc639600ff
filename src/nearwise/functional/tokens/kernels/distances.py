"""Compiled loops that select the nearest keys by directly computed distances.

Distances by products are differences of squared lengths and lose precision for near pairs far from
the origin. Here products only exclude keys: see `bounds_of`.
"""

import math

import numpy as np

from nearwise.functional.kernels import compiled, inlined, inlined_reordered
from nearwise.functional.tokens.kernels.rows import (
    columns_from,
    compare,
    insert_itself,
    lanes_for,
    limit_of,
    lowest_of,
    rank,
    seen,
)

_ONE, _TWO = np.uint64(1), np.uint64(2)
_LEAST, _MOST = 1e-30, 1e37
_ROUNDED = 2.5e-7  # a few roundings to float32


@inlined_reordered
def _squared(query, q, key, k, width):  # type: ignore[no-untyped-def]
    q, k, total = np.uint64(q), np.uint64(k), query.dtype.type(0)
    for c in range(np.uint64(width)):
        gap = query[q + c] - key[k + c]
        total += gap * gap
    return total


@inlined
def _squared_in_double(query, q, key, k, width):  # type: ignore[no-untyped-def]
    q, k, total = np.uint64(q), np.uint64(k), 0.0
    for c in range(np.uint64(width)):
        gap = np.float64(query[q + c]) - np.float64(key[k + c])
        total += gap * gap
    return total


@inlined
def _measure(  # type: ignore[no-untyped-def]
    query, q, key, k, step, width, bias, b, b_step, scale, positions, columns, n, found
):
    """Write the scores of `n` columns: minus the distance, or that times `scale` plus the bias."""
    k, step, b, b_step = np.uint64(k), np.uint64(step), np.uint64(b), np.uint64(b_step)
    for f in range(n):
        at = np.uint64(positions[np.uint64(columns[f])])
        found[f] = _squared(query, q, key, k + step * at, width)
    for f in range(n):
        square = np.float64(found[f])
        if not _LEAST < square < _MOST:  # single precision may overflow or vanish
            at = np.uint64(positions[np.uint64(columns[f])])
            square = _squared_in_double(query, q, key, k + step * at, width)
        found[f] = -math.sqrt(square)
    if bias.shape[0] > 0:
        for f in range(n):
            at = np.uint64(positions[np.uint64(columns[f])])
            found[f] = found.dtype.type(found[f] * scale) + bias[b + b_step * at]


@inlined
def _drop(found, columns, n, n_wanted, n_lanes, lanes):  # type: ignore[no-untyped-def]
    """Drop NaN scores and, if there are many, scores outside the best ones, as `take` does.

    Return the number of the others, and a column with NaN or -1.
    """
    count, spoiled, limit = np.uint64(0), np.int64(-1), lowest_of(found)
    if n > _TWO * n_lanes:
        limit = limit_of(found, 0, n, n_wanted, n_lanes, lanes)
    for f in range(n):
        score, column = found[f], columns[f]
        if score != score:
            spoiled = np.int64(column)
        found[count], columns[count] = score, column
        count += np.uint64(score > limit or (score == limit and count < n_wanted))
    return count, spoiled


@inlined
def _reach(best, last, square, is_biased):  # type: ignore[no-untyped-def]
    """Return the smallest bound of a key with the score ``best[last]``; see `bounds_of`."""
    if is_biased:
        return best[last]
    worst = np.float64(best[last])
    half = 0.5 * (square - (1.0 + _ROUNDED) * worst * worst)
    return max(best.dtype.type(half - _ROUNDED * abs(half)), lowest_of(best))


@compiled
def select_nearest(  # type: ignore[no-untyped-def]
    item,
    head,
    first,
    scores,
    positions,
    itself,
    own,
    scale,
    is_causal,
    mode,
    indices,
    weights,
    slot,
    n_slots,
    lanes,
    flags,
    found,
    columns,
    ties,
    query,
    key,
    bias,
    squares,
    steps,
    inner,
):
    """Write the positions of the nearest keys of every row, and the logarithms of their weights.

    `scores` are upper bounds of the scores of `_measure`, in the unit of `_reach`: columns are
    measured until no other can be among the best. `query`, `key` and `bias`, which may be empty,
    are flat numbers; `steps` holds the first three strides of the first two, the four of `bias`,
    and the width. `squares` (B, H, N), a part of `_reach`, are infinite if products give no bound.
    `inner` multiplies distances before the bias is added. The others as in `attend_rows`.
    """
    flat, words, n_lanes = scores.reshape(-1), flags.view(np.uint64), lanes_for(n_slots)
    n_heads, n_rows, n_columns = scores.shape
    lowest, inner, is_biased = lowest_of(weights), weights.dtype.type(inner), bias.shape[0] > 0
    everyone = np.arange(len(itself))
    for row in range(n_heads * n_rows):
        g, i, start = row // n_rows, row % n_rows, row * n_columns
        q = steps[0] * item + steps[1] * (head + g) + steps[2] * (first + i)
        k = steps[3] * item + steps[4] * (head + g)
        b = steps[6] * item + steps[7] * (head + g) + steps[8] * (first + i)
        n_seen = seen(positions, first + i, scores[g, i]) if is_causal else n_columns
        forced, spoiled, mine = False, np.int64(-1), lowest
        if mode > 0 and itself[first + i] >= 0:
            flat[start + itself[first + i]] = -np.inf
        if mode == 1 and own[g, i] != -np.inf:
            columns[0] = first + i
            _measure(
                query, q, key, k, steps[5], steps[10], bias, b, steps[9], inner, everyone,
                columns, 1, found,
            )  # fmt: skip
            mine = found[0]
            forced = mine > -np.inf
        n_wanted, limit = n_slots - _ONE if forced else n_slots, lowest
        square, count = squares[slot // n_slots], np.uint64(0)
        if n_seen >= n_lanes > n_wanted and square < np.inf:
            limit = limit_of(flat, start, n_seen, n_wanted, n_lanes, lanes)
        while n_wanted > 0:
            n = columns_from(flat, start, n_seen, limit, flags, words, columns)
            _measure(
                query, q, key, k, steps[5], steps[10], bias, b, steps[9], inner, positions,
                columns, n, found,
            )  # fmt: skip
            n, spoiled = _drop(found, columns, n, n_wanted, n_lanes, lanes)
            count = rank(found, columns, n, n_wanted, ties, slot, weights, indices)
            reach = lowest
            if count == n_wanted:
                reach = _reach(weights, slot + count - _ONE, square, is_biased)
            if limit <= reach or limit == lowest:
                break
            limit = reach
        for s in range(slot, slot + count):
            indices[s] = positions[indices[s]]
        if forced:
            insert_itself(mine, first + i, weights, indices, slot, count)
            count += _ONE
        compare(indices, weights, slot, count, n_slots, scale)
        if spoiled >= 0 or np.isnan(mine):
            indices[slot] = positions[spoiled] if spoiled >= 0 else first + i
            for s in range(slot, slot + max(count, _ONE)):
                weights[s] = np.nan
        slot += n_slots
