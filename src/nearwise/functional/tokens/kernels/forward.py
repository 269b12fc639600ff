"""Compiled CPU loops of token k-NN attention, forward.

They release the interpreter lock and start no threads of their own; `cpu` runs them on ranges of
heads.
"""

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from nearwise.functional.kernels import compiled, inlined
from nearwise.functional.tokens.kernels.distances import select_nearest
from nearwise.functional.tokens.kernels.rows import (
    ROOM,
    columns_from,
    compare,
    insert_itself,
    lanes_for,
    limit_of,
    lowest_of,
    rank,
    seen,
    take,
    weighted_sum,
)

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the high part has 9 bits: products are exact
_ONE = np.uint64(1)
_LEAST = -87.0  # the smallest power of e that is a normal float32


def _power(x):  # type: ignore[no-untyped-def]
    """Return e to the power of `x`, at most 0 or NaN; compiled code uses `_power_of`."""
    return math.exp(x)


@overload(_power, inline="always")
def _power_of(x):  # type: ignore[no-untyped-def]
    if x != types.float32:
        return lambda x: math.exp(x)

    def single(x):  # type: ignore[no-untyped-def]
        # Cephes' expf: 2^n times a polynomial, off by one unit of the last place at most.
        given, x = x, x if x > _LEAST else np.float32(_LEAST)
        n = np.int32(x * np.float32(_LOG2_E) - np.float32(0.5))
        r = x - np.float32(n) * np.float32(_LN2_HIGH) - np.float32(n) * np.float32(_LN2_LOW)
        y = np.float32(1.9875691500e-4)
        y = y * r + np.float32(1.3981999507e-3)
        y = y * r + np.float32(8.3334519073e-3)
        y = y * r + np.float32(4.1665795894e-2)
        y = y * r + np.float32(1.6666665459e-1)
        y = y * r + np.float32(5.0000001201e-1)
        y = y * r * r + r + np.float32(1.0)
        y *= np.int32((n + 127) << 23).view(np.float32)
        return y if given == given else given

    return single


@compiled
def _raise(weights, first, n):  # type: ignore[no-untyped-def]
    """Turn `n` logarithms, from `first` on, into weights, in vector registers."""
    for s in range(first, first + n):
        weights[s] = _power(weights[s])


@compiled
def _first_nan(scores, start, n_columns):  # type: ignore[no-untyped-def]
    """Return the first column with a NaN score, or 0."""
    for column in range(n_columns):
        if np.isnan(scores[start + column]):
            return column
    return 0


def workspace(n_columns: int, n_slots: int, dtype: Any) -> tuple[NDArray[Any], ...]:
    """Return work arrays of `attend_rows` for some columns (a multiple of `LANES`) and slots."""
    return (
        np.empty(max(ROOM, lanes_for(n_slots)), dtype),
        np.empty(n_columns, np.uint8),
        np.empty(n_columns + ROOM, dtype),
        np.empty(n_columns + ROOM, np.int32),
        np.empty(n_columns, np.uint64),
        np.empty(n_slots, np.int64),
        np.empty(n_slots, dtype),
    )


@compiled
def _select_rows(  # type: ignore[no-untyped-def]
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
):
    """Write the positions of the best columns of every row, and the logarithms of their weights."""
    flat, words, n_lanes = scores.reshape(-1), flags.view(np.uint64), lanes_for(n_slots)
    n_heads, n_rows, n_columns = scores.shape
    lowest = lowest_of(weights)
    for row in range(n_heads * n_rows):
        g, i, start = row // n_rows, row % n_rows, row * n_columns
        n_seen = seen(positions, first + i, scores[g, i]) if is_causal else n_columns
        forced, is_spoiled = False, False
        if mode > 0:
            if itself[first + i] >= 0:
                flat[start + itself[first + i]] = -np.inf
            if mode == 1:
                forced, is_spoiled = own[g, i] > -np.inf, np.isnan(own[g, i])
        n_wanted, limit = n_slots - _ONE if forced else n_slots, lowest
        if n_seen >= n_lanes > n_wanted:
            limit = limit_of(flat, start, n_seen, n_wanted, n_lanes, lanes)
        n_reaching = columns_from(flat, start, n_seen, limit, flags, words, columns)
        n_found, is_poisoned = take(flat, start, columns, n_reaching, n_wanted, limit, found)
        count = rank(found, columns, n_found, n_wanted, ties, slot, weights, indices)
        for s in range(slot, slot + count):
            indices[s] = positions[indices[s]]
        if forced:
            insert_itself(own[g, i], first + i, weights, indices, slot, count)
            count += _ONE
        compare(indices, weights, slot, count, n_slots, scale)
        if is_poisoned or is_spoiled:
            indices[slot] = first + i
            if is_poisoned:
                indices[slot] = positions[_first_nan(flat, start, n_seen)]
            for s in range(slot, slot + max(count, _ONE)):
                weights[s] = np.nan
        slot += n_slots


@inlined
def _share_out(indices, weights, first, n_slots):  # type: ignore[no-untyped-def]
    """Normalize the weights of a row, with 0 in empty slots; return the number of other slots."""
    count, total = np.uint64(0), weights[first] * 0
    while count < n_slots and indices[first + count] >= 0:
        total += weights[first + count]
        count += _ONE
    for s in range(first, first + count):
        weights[s] /= total
    for s in range(first + count, first + n_slots):
        weights[s] = 0
    return count


@compiled
def attend_rows(  # type: ignore[no-untyped-def]
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
    value,
    keep,
    output,
    indices,
    weights,
    layout,
    pairs,
    lanes,
    flags,
    found,
    columns,
    ties,
    starts,
    factors,
):
    """Select, weight and sum for a tile of queries of one or more heads of a batch item.

    `scores` (G, b, C) of the queries ``first .. first + b`` of the heads ``head .. head + G`` are
    overwritten; several heads must come with all their queries. `positions` are the ascending key
    positions of the candidates; behind them a row is padded with -inf to a multiple of `LANES`.
    `itself` (N,) is each token's own column, or -1; `mode` 0 treats the token itself like others, 1
    always includes it (with the score `own` (G, b)), 2 never. `value` and `output` (B, H, N, Dv),
    `keep`, which may be empty, `indices` and `weights` (B, H, N, K) are flat numbers; `output` and
    the last two are written. `layout` holds H, N, K, Dv and the first three strides of `value` and
    `output`: an array is passed faster than a tuple. `pairs` are None, or arguments of
    `select_nearest` if scores are bounds of distances. The last seven are a `workspace`.
    """
    n_heads, n_queries, n_slots, width = layout[0], layout[1], np.uint64(layout[2]), layout[3]
    v_steps, o_steps = layout[4:7], layout[7:10]
    slot = np.uint64((item * n_heads + head) * n_queries + first) * n_slots
    scale = weights.dtype.type(scale)
    tile = (
        first, scores, positions, itself, own, scale, is_causal, mode, indices, weights, slot,
        n_slots, lanes, flags, found, columns, ties,
    )  # fmt: skip
    if pairs is None:
        _select_rows(*tile)
    else:
        select_nearest(item, head, *(tile + pairs))
    _raise(weights, slot, np.uint64(scores.shape[0] * scores.shape[1]) * n_slots)
    for g in range(scores.shape[0]):
        v = v_steps[0] * item + v_steps[1] * (head + g)
        o = o_steps[0] * item + o_steps[1] * (head + g) + o_steps[2] * first
        for i in range(scores.shape[1]):
            count = _share_out(indices, weights, slot, n_slots)
            for s in range(count):
                starts[s], factors[s] = v + v_steps[2] * indices[slot + s], weights[slot + s]
            if keep.shape[0] > 0:
                for s in range(count):
                    factors[s] *= keep[slot + s]
            weighted_sum(factors, value, starts, count, output, o + o_steps[2] * i, width)
            slot += n_slots
