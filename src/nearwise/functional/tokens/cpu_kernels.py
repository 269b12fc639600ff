"""Compiled CPU loops of the k-NN attention over tokens.

They release the interpreter lock and start no threads of their own; `cpu` runs them on ranges of
heads. Rows are named by where they start in a flat array: slicing one off would cost more than
summing it up, and heads that lie interleaved in memory need no copy.
"""

import math

import numpy as np

from nearwise.functional.kernels import compiled, reordered

_FEWEST_LANES = 32
_LONG = 512  # columns


@compiled
def lanes_for(n_wanted, n_columns):  # type: ignore[no-untyped-def]
    """Return how many lanes a row is split into: more than are wanted, more for a long row.

    Ranking the lanes costs their square, looking through one its length.
    """
    n_lanes = _FEWEST_LANES if n_columns < _LONG else 2 * _FEWEST_LANES
    while n_lanes < 1.5 * n_wanted:
        n_lanes *= 2
    return min(n_lanes, n_columns)


@reordered
def _lane_maxima(rows, i, n_columns, n_lanes, lanes):  # type: ignore[no-untyped-def]
    """Write the largest scores of interleaved lanes: lane l holds the columns l, l + L, ..."""
    n_lanes = np.uint64(n_lanes)
    for lane in range(n_lanes):
        lanes[lane] = rows[i, lane]
    for start in range(n_lanes, np.uint64(n_columns), n_lanes):
        for lane in range(min(n_lanes, np.uint64(n_columns) - start)):
            score = rows[i, start + lane]
            lanes[lane] = score if score > lanes[lane] else lanes[lane]


@reordered
def _count_larger(scores, n, ranks):  # type: ignore[no-untyped-def]
    """Write how many of the first `n` scores are larger than each of them.

    `scores` and `ranks` have room for `n` rounded up to 32: what is written behind `n` is not
    looked at, and loops over whole vector registers leave no rest to be done one by one.
    """
    n_padded = (np.uint64(n) + np.uint64(31)) & ~np.uint64(31)
    for j in range(n_padded):
        ranks[j] = 0
    for i in range(np.uint64(n)):
        score = scores[i]
        for j in range(n_padded):
            ranks[j] += np.int32(score > scores[j])


@reordered
def _collect(rows, i, n_columns, n_lanes, lanes, n_wanted, ranks, found, places):  # type: ignore[no-untyped-def]
    """Collect the scores that may be among the best, and their columns; return how many.

    The n-th largest of the lanes' maxima is reached by at least n columns, and no column that
    does not reach it is among the best n. Only lanes that reach it are looked through.
    """
    lowest = rows.dtype.type(-3e38)  # all scores but -inf
    limit = lowest
    if n_columns >= n_lanes > n_wanted:
        _lane_maxima(rows, i, n_columns, n_lanes, lanes)
        _count_larger(lanes, n_lanes, ranks)
        limit = rows.dtype.type(np.inf)
        for lane in range(n_lanes):
            if ranks[lane] < n_wanted:
                limit = min(limit, lanes[lane])
        limit = max(limit, lowest)
    else:
        n_lanes = 1
    # Both loops without a branch, which would be guessed wrong half the time.
    n_hit = np.uint64(0)
    for lane in range(np.uint64(n_lanes)):
        ranks[n_hit] = lane
        n_hit += np.uint64(n_lanes == 1 or lanes[lane] >= limit)
    count = np.uint64(0)
    for hit in range(n_hit):
        for j in range(np.uint64(ranks[hit]), np.uint64(n_columns), np.uint64(n_lanes)):
            score = rows[i, j]
            found[count] = score
            places[count] = j
            count += np.uint64(score >= limit)
    return np.int64(count)


@compiled
def _select(  # type: ignore[no-untyped-def]
    rows, i, n_columns, n_lanes, n, scores, columns, lanes, ranks, found, places
):
    """Write the best `n` columns of a row in descending order, ties by lowest column.

    Return how many there are.
    """
    count = _collect(rows, i, n_columns, n_lanes, lanes, n, ranks, found, places)
    _count_larger(found, count, ranks)
    filled = min(n, count)
    for s in range(filled):
        columns[s] = -1
    for f in range(count):
        slot = ranks[f]
        place = places[f]
        # Equal scores have equal ranks: they line up behind each other, lowest column first.
        while slot < filled and columns[slot] >= 0:
            if columns[slot] > place:
                columns[slot], place = place, columns[slot]
            slot += 1
        if slot < filled:
            columns[slot] = place
    for s in range(filled):
        scores[s] = rows[i, columns[s]]
    return filled


@compiled
def _insert_itself(own, place, scores, columns, count):  # type: ignore[no-untyped-def]
    """Insert a token itself in the order of scores; at equal scores the lower position first."""
    slot = count
    while slot > 0 and (
        scores[slot - 1] < own or (scores[slot - 1] == own and columns[slot - 1] > place)
    ):
        scores[slot] = scores[slot - 1]
        columns[slot] = columns[slot - 1]
        slot -= 1
    scores[slot] = own
    columns[slot] = place


@compiled
def _weigh(scores, columns, count, scale, i, indices, weights):  # type: ignore[no-untyped-def]
    """Write the softmax of the first `count` descending scores and their positions."""
    total = scores[0] * 0
    for s in range(count):
        weight = math.exp((scores[s] - scores[0]) * scale)
        indices[i, s] = columns[s]
        weights[i, s] = weight
        total += weight
    for s in range(count):
        weights[i, s] = weights[i, s] / total
    for s in range(count, weights.shape[1]):
        indices[i, s] = -1
        weights[i, s] = 0


@reordered
def _add_up(  # type: ignore[no-untyped-def]
    i, count, indices, weights, keep, value, value_start, value_step, output, start, width
):
    """Write the weighted sum of the selected values."""
    for c in range(np.uint64(width)):
        output[start + c] = 0
    for s in range(count):
        row = np.uint64(value_start + indices[i, s] * value_step)
        weight = weights[i, s]
        if keep.shape[0] > 0:
            weight *= keep[i, s]
        for c in range(np.uint64(width)):
            output[start + c] += weight * value[row + c]


@compiled
def attend_rows(  # type: ignore[no-untyped-def]
    scores,
    first,
    positions,
    itself,
    own,
    scale,
    is_causal,
    mode,
    value,
    value_steps,
    keep,
    output,
    output_steps,
    width,
    indices,
    weights,
):
    """Select, weigh and add up for a tile of queries of one or more heads.

    `scores` (G, b, C) of queries ``first .. first + b`` to the candidates are used up; their key
    positions `positions` (C,) ascend; `itself` (N,) is each token's own column, or -1. `mode` 0
    takes the token itself as it comes, 1 always (its score is `own` (G, b)), 2 never. `indices`
    (G, b, K) and `weights` (G, b, K) are written, and `output`; `keep` is (G, b, K) or empty.
    Row j of head g starts at ``steps[0] * g + steps[1] * j`` of the flat `value` and `output`,
    which is that of the tile, and has `width` numbers.
    """
    n_slots, n_all = indices.shape[2], scores.shape[2]
    scale = scores.dtype.type(scale)
    n_lanes = lanes_for(n_slots, n_all)
    lanes = np.empty(n_lanes + 32, scores.dtype)
    found = np.empty(n_all + 32, scores.dtype)
    places = np.empty(n_all + 32, np.int64)
    ranks = np.empty(n_all + 32, np.int32)
    best = np.empty(n_slots, scores.dtype)
    columns = np.empty(n_slots, np.int64)
    for g in range(scores.shape[0]):
        rows, at_slot, weight = scores[g], indices[g], weights[g]
        kept = keep[min(g, keep.shape[0] - 1)]
        for i in range(rows.shape[0]):
            at = first + i
            n_columns = np.searchsorted(positions, at + 1) if is_causal else n_all
            if mode > 0 and itself[at] >= 0:
                rows[i, itself[at]] = -np.inf
            forced = mode == 1 and own[g, i] > -np.inf
            n_free = n_slots - 1 if forced else n_slots
            count = 0
            if n_free > 0 and n_columns > 0:
                count = _select(
                    rows, i, n_columns, n_lanes, n_free, best, columns, lanes, ranks, found, places
                )
            for s in range(count):
                columns[s] = positions[columns[s]]
            if forced:
                _insert_itself(own[g, i], at, best, columns, count)
                count += 1
            _weigh(best, columns, count, scale, i, at_slot, weight)
            _add_up(
                i,
                count,
                at_slot,
                weight,
                kept,
                value,
                np.uint64(value_steps[0] * g),
                value_steps[1],
                output,
                np.uint64(output_steps[0] * g + output_steps[1] * i),
                width,
            )


@compiled
def poison_rows(scores, output):  # type: ignore[no-untyped-def]
    """Write NaN into the output (G, b, Dv) of queries one of whose scores (G, b, C) is NaN."""
    for g in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            if np.isnan(scores[g, i]).any():
                output[g, i, :] = np.nan


@reordered
def _dot(a, a_start, b, b_start, width):  # type: ignore[no-untyped-def]
    total = a[0] * 0
    for c in range(np.uint64(width)):
        total += a[a_start + c] * b[b_start + c]
    return total


@reordered
def _add_row(total, start, factor, rows, row_start, width):  # type: ignore[no-untyped-def]
    for c in range(np.uint64(width)):
        total[start + c] += factor * rows[row_start + c]


@reordered
def _pull_together(  # type: ignore[no-untyped-def]
    slope, query, q, key, k, grad_query, grad_q, grad_key, grad_k, width
):
    """Add the gradient of minus the distance, times `slope`; 0 where the two are the same."""
    total = 0.0
    for c in range(np.uint64(width)):
        gap = query[q + c] - key[k + c]
        total += gap * gap
    if total == 0.0:
        return
    factor = slope / math.sqrt(total)
    for c in range(np.uint64(width)):
        pull = query.dtype.type(factor * (query[q + c] - key[k + c]))
        grad_query[grad_q + c] -= pull
        grad_key[grad_k + c] += pull


@compiled
def _row(steps, g, i):  # type: ignore[no-untyped-def]
    return np.uint64(steps[0] * g + steps[1] * i)


@compiled
def backward_rows(  # type: ignore[no-untyped-def]
    query,
    query_steps,
    key,
    key_steps,
    value,
    value_steps,
    grad_output,
    output_steps,
    indices,
    weights,
    keep,
    grad_weights,
    scale,
    squared,
    width,
    value_width,
    grad_query,
    grad_query_steps,
    grad_key,
    grad_key_steps,
    grad_value,
    grad_value_steps,
    grad_scores,
):
    """Add up the gradients of the heads of one batch item; gradients start at 0.

    Flat arrays and their steps as in `attend_rows`; the others are (H, N, K), `keep` may be empty.
    `grad_scores` receives the gradient of every selected score.
    """
    for g in range(indices.shape[0]):
        at, slot_weights, slopes = indices[g], weights[g], grad_scores[g]
        kept, from_weights = keep[min(g, keep.shape[0] - 1)], grad_weights[g]
        for i in range(at.shape[0]):
            q, grad_q = _row(query_steps, g, i), _row(grad_query_steps, g, i)
            out = _row(output_steps, g, i)
            mean = 0.0
            for s in range(at.shape[1]):
                j = at[i, s]
                if j < 0:
                    break
                weight = slot_weights[i, s]
                v = _row(value_steps, g, j)
                slope = _dot(grad_output, out, value, v, value_width)
                factor = weight
                if kept.shape[0] > 0:
                    slope *= kept[i, s]
                    factor *= kept[i, s]
                grad_v = _row(grad_value_steps, g, j)
                _add_row(grad_value, grad_v, factor, grad_output, out, value_width)
                slope += from_weights[i, s]
                slopes[i, s] = slope
                mean += weight * slope
            for s in range(at.shape[1]):
                j = at[i, s]
                if j < 0:
                    break
                slope = slot_weights[i, s] * (slopes[i, s] - mean)
                slopes[i, s] = slope
                k, grad_k = _row(key_steps, g, j), _row(grad_key_steps, g, j)
                if squared:
                    _pull_together(
                        slope * scale, query, q, key, k, grad_query, grad_q, grad_key, grad_k, width
                    )
                else:
                    factor = query.dtype.type(slope * scale)
                    _add_row(grad_query, grad_q, factor, key, k, width)
                    _add_row(grad_key, grad_k, factor, query, q, width)
