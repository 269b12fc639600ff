"""Compiled CPU loops of the k-NN attention over tokens, forward.

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
from nearwise.functional.tokens.kernels.rows import lanes_for, select, weighted_sum
from nearwise.functional.vectors import LANES, address

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the high part has 9 bits: products are exact
_LEAST = -87.0  # the smallest power of e that is a normal float32


def _power(x):  # type: ignore[no-untyped-def]
    """Return e to the power of `x`, which is at most 0; compiled code takes `_power_of`."""
    return math.exp(x)


@overload(_power, inline="always")
def _power_of(x):  # type: ignore[no-untyped-def]
    if x != types.float32:
        return lambda x: math.exp(x)

    def single(x):  # type: ignore[no-untyped-def]
        # Cephes' expf: 2^n times a polynomial, off by one unit of the last place at most.
        x = max(x, np.float32(_LEAST))
        n = np.int32(x * np.float32(_LOG2_E) - np.float32(0.5))
        r = x - np.float32(n) * np.float32(_LN2_HIGH) - np.float32(n) * np.float32(_LN2_LOW)
        y = np.float32(1.9875691500e-4)
        y = y * r + np.float32(1.3981999507e-3)
        y = y * r + np.float32(8.3334519073e-3)
        y = y * r + np.float32(4.1665795894e-2)
        y = y * r + np.float32(1.6666665459e-1)
        y = y * r + np.float32(5.0000001201e-1)
        y = y * r * r + r + np.float32(1.0)
        return y * np.int32((n + 127) << 23).view(np.float32)

    return single


@inlined
def _insert_itself(own, column, scores, columns, count):  # type: ignore[no-untyped-def]
    """Insert a token itself in the order of scores; at equal scores the lower position first."""
    slot = count
    while slot > 0 and (
        scores[slot - 1] < own or (scores[slot - 1] == own and columns[slot - 1] > column)
    ):
        scores[slot] = scores[slot - 1]
        columns[slot] = columns[slot - 1]
        slot -= 1
    scores[slot] = own
    columns[slot] = column


@inlined
def _weigh(scores, count, scale, weights):  # type: ignore[no-untyped-def]
    """Write the softmax of the first `count` descending scores."""
    if count == 0:
        return
    best, total = scores[0], scale * 0
    for s in range(count):
        weight = _power((scores[s] - best) * scale)
        weights[s] = weight
        total += weight
    share = 1 / total
    for s in range(count):
        weights[s] *= share


@compiled
def _first_nan(scores, start, n_columns):  # type: ignore[no-untyped-def]
    """Return the first column whose score is NaN, 0 without one."""
    for column in range(n_columns):
        if np.isnan(scores[start + column]):
            return column
    return 0


@compiled
def _seen(positions, at, row):  # type: ignore[no-untyped-def]
    """Forbid the columns of tokens after `at`; return how many columns are left to look at."""
    stop = np.searchsorted(positions, at + 1)
    n_seen = (stop + LANES - 1) // LANES * LANES
    row[stop:n_seen] = -np.inf
    return n_seen


def workspace(n_columns: int, n_slots: int, dtype: Any) -> tuple[NDArray[Any], ...]:
    """Arrays that `attend_rows` works in, for so many columns (a multiple of `LANES`) and slots."""
    room = n_columns + LANES
    return (
        np.empty(2 * room + lanes_for(n_slots) + n_slots, dtype),
        np.empty(3 * room, np.int32),
        np.empty(n_slots, np.int64),
    )


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
    numbers,
    counts,
    starts,
):
    """Select, weigh and add up for a tile of queries of one or more heads of a batch item.

    `scores` (G, b, C) of the queries ``first .. first + b`` of the heads ``head .. head + G`` are
    used up. Behind the candidates, whose key positions `positions` ascend, a row is -inf up to a
    multiple of `LANES`. `itself` (N,) is each token's own column, or -1; `mode` 0 takes the token
    itself as it comes, 1 always (its score is `own` (G, b)), 2 never. `value` and `output`
    (B, H, N, Dv), `keep`, which may be empty, `indices` and `weights` (B, H, N, K) come as their
    numbers; `output` and the last two are written. `layout` holds H, N, K, Dv and the first three
    steps of `value` and `output`: in an array, for it is handed over faster than a tuple. The last
    three are a `workspace`.
    """
    n_heads, n_queries, n_slots, width = layout[0], layout[1], layout[2], layout[3]
    v_steps, o_steps = layout[4:7], layout[7:10]
    flat, v_rows, o_rows = address(scores.reshape(-1)), address(value), address(output)
    at_slots, weight_of, kept = address(indices), address(weights), address(keep)
    is_dropping, n_lanes, n_all = keep.shape[0] > 0, lanes_for(n_slots), scores.shape[2]
    n_columns = n_all + LANES
    found, best = address(numbers), address(numbers[n_columns:])
    lanes, factors = address(numbers[2 * n_columns :]), address(numbers[2 * n_columns + n_lanes :])
    places, ranks = address(counts), address(counts[n_columns:])
    columns, starts = address(counts[2 * n_columns :]), address(starts)
    scale = weights.dtype.type(scale)
    for g in range(scores.shape[0]):
        rows = (item * n_heads + head + g) * n_queries + first
        v = v_steps[0] * item + v_steps[1] * (head + g)
        o = o_steps[0] * item + o_steps[1] * (head + g) + o_steps[2] * first
        for i in range(scores.shape[1]):
            start, slots = (g * scores.shape[1] + i) * n_all, (rows + i) * n_slots
            n_seen = _seen(positions, first + i, scores[g, i]) if is_causal else n_all
            forced, is_spoiled = False, False
            if mode > 0:
                if itself[first + i] >= 0:
                    flat[start + itself[first + i]] = -np.inf
                if mode == 1:
                    forced, is_spoiled = own[g, i] > -np.inf, np.isnan(own[g, i])
            count, is_poisoned = select(
                flat,
                start,
                n_seen,
                n_slots - 1 if forced else n_slots,
                n_lanes,
                lanes,
                found,
                places,
                ranks,
                best,
                columns,
            )
            for s in range(count):
                columns[s] = positions[columns[s]]
            if forced:
                _insert_itself(own[g, i], first + i, best, columns, count)
                count += 1
            _weigh(best, count, scale, factors)
            if is_poisoned or is_spoiled:
                nan = _first_nan(flat, start, n_seen)
                columns[0] = positions[nan] if is_poisoned else first + i
                count = max(count, 1)
                for s in range(count):
                    factors[s] = np.nan
            for s in range(count):
                at_slots[slots + s] = columns[s]
                weight_of[slots + s] = factors[s]
                starts[s] = v + v_steps[2] * columns[s]
                if is_dropping:
                    factors[s] *= kept[slots + s]
            for s in range(count, n_slots):
                at_slots[slots + s] = -1
                weight_of[slots + s] = 0
            weighted_sum(factors, v_rows, starts, count, o_rows, o + o_steps[2] * i, width)
