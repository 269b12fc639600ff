"""Compiled CPU loops of the k-NN attention over tokens.

They release the interpreter lock and start no threads of their own; `cpu` runs them on ranges of
heads. Rows are named by their number: slicing one off would cost more than summing it up.
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
def _lane_maxima(rows, i, n_columns, lanes):  # type: ignore[no-untyped-def]
    """Write the largest scores of interleaved lanes: lane l holds the columns l, l + L, ..."""
    n_lanes = np.uint64(lanes.shape[0])
    for lane in range(n_lanes):
        lanes[lane] = rows[i, lane]
    for start in range(n_lanes, np.uint64(n_columns), n_lanes):
        for lane in range(min(n_lanes, np.uint64(n_columns) - start)):
            score = rows[i, start + lane]
            lanes[lane] = score if score > lanes[lane] else lanes[lane]


@reordered
def _count_larger(scores, n, ranks):  # type: ignore[no-untyped-def]
    """Write how many of the first `n` scores are larger than each of them."""
    for j in range(np.uint64(n)):
        ranks[j] = 0
    for i in range(np.uint64(n)):
        score = scores[i]
        for j in range(np.uint64(n)):
            ranks[j] += np.int32(score > scores[j])


@reordered
def _collect(rows, i, n_columns, lanes, n_wanted, ranks, found, places):  # type: ignore[no-untyped-def]
    """Collect the scores that may be among the best, and their columns; return how many.

    The n-th largest of the lanes' maxima is reached by at least n columns, and no column that
    does not reach it is among the best n. Only lanes that reach it are looked through.
    """
    n_lanes = lanes.shape[0]
    lowest = rows.dtype.type(-3e38)  # all scores but -inf
    limit = lowest
    if n_columns >= n_lanes > n_wanted:
        _lane_maxima(rows, i, n_columns, lanes)
        _count_larger(lanes, n_lanes, ranks)
        limit = rows.dtype.type(np.inf)
        for lane in range(n_lanes):
            if ranks[lane] < n_wanted:
                limit = min(limit, lanes[lane])
        limit = max(limit, lowest)
    else:
        n_lanes = 1
    count = np.uint64(0)
    for lane in range(np.uint64(n_lanes)):
        if n_lanes > 1 and lanes[lane] < limit:
            continue
        for j in range(lane, np.uint64(n_columns), np.uint64(n_lanes)):
            # Without a branch, which would be guessed wrong half the time.
            found[count] = rows[i, j]
            places[count] = j
            count += np.uint64(rows[i, j] >= limit)
    return np.int64(count)


@compiled
def _select(  # type: ignore[no-untyped-def]
    rows, i, n_columns, n, scores, columns, lanes, ranks, found, places
):
    """Write the best `n` columns of a row in descending order, ties by lowest column.

    Return how many there are.
    """
    count = _collect(rows, i, n_columns, lanes, n, ranks, found, places)
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
def _add_up(i, count, indices, weights, keep, value, output):  # type: ignore[no-untyped-def]
    """Write the weighted sum of the selected values."""
    for c in range(np.uint64(output.shape[1])):
        output[i, c] = 0
    for s in range(count):
        j = np.uint64(indices[i, s])
        weight = weights[i, s]
        if keep.shape[0] > 0:
            weight *= keep[i, s]
        for c in range(np.uint64(output.shape[1])):
            output[i, c] += weight * value[j, c]


@compiled
def attend_rows(  # type: ignore[no-untyped-def]
    rows,
    first,
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
):
    """Select, weigh and add up for a tile of queries of one head.

    `rows` (b, C) holds the scores of queries ``first .. first + b`` to the candidates, whose key
    positions `positions` (C,) gives ascending; `itself` (N,) is each token's own column, or -1.
    `mode` 0 takes the token itself as it comes, 1 always (its score is `own`), 2 never.
    `output` (b, Dv), `indices` (b, K) and `weights` (b, K) are written; `keep` is (b, K) or empty.
    """
    n_slots = indices.shape[1]
    scale = rows.dtype.type(scale)
    lanes = np.empty(lanes_for(n_slots, rows.shape[1]), rows.dtype)
    found = np.empty(rows.shape[1] + 1, rows.dtype)
    places = np.empty(rows.shape[1] + 1, np.int64)
    ranks = np.empty(rows.shape[1] + 1, np.int32)
    scores = np.empty(n_slots, rows.dtype)
    columns = np.empty(n_slots, np.int64)
    for i in range(rows.shape[0]):
        at = first + i
        n_columns = rows.shape[1]
        if is_causal:
            n_columns = np.searchsorted(positions, at + 1)
        if mode > 0 and itself[at] >= 0:
            rows[i, itself[at]] = -np.inf
        forced = mode == 1 and own[i] > -np.inf
        n_free = n_slots - 1 if forced else n_slots
        count = 0
        if n_free > 0 and n_columns > 0:
            count = _select(
                rows, i, n_columns, n_free, scores, columns, lanes, ranks, found, places
            )
        for s in range(count):
            columns[s] = positions[columns[s]]
        if forced:
            _insert_itself(own[i], at, scores, columns, count)
            count += 1
        _weigh(scores, columns, count, scale, i, indices, weights)
        _add_up(i, count, indices, weights, keep, value, output)


@compiled
def poison_rows(rows, output):  # type: ignore[no-untyped-def]
    """Write NaN into the output of queries one of whose scores is NaN."""
    for i in range(rows.shape[0]):
        if np.isnan(rows[i]).any():
            output[i, :] = np.nan


@reordered
def _slope(i, j, grad_output, value):  # type: ignore[no-untyped-def]
    """Return the dot product of an output's gradient and a value."""
    total = value[0, 0] * 0
    for c in range(np.uint64(value.shape[1])):
        total += grad_output[i, c] * value[j, c]
    return total


@reordered
def _add_row(total, i, factor, rows, j):  # type: ignore[no-untyped-def]
    for c in range(np.uint64(rows.shape[1])):
        total[i, c] += factor * rows[j, c]


@reordered
def _pull_together(i, j, slope, query, key, grad_query, grad_key):  # type: ignore[no-untyped-def]
    """Add the gradient of minus the distance, times `slope`; 0 where the two are the same."""
    total = 0.0
    for c in range(np.uint64(query.shape[1])):
        gap = query[i, c] - key[j, c]
        total += gap * gap
    if total == 0.0:
        return
    factor = slope / math.sqrt(total)
    for c in range(np.uint64(query.shape[1])):
        pull = query.dtype.type(factor * (query[i, c] - key[j, c]))
        grad_query[i, c] -= pull
        grad_key[j, c] += pull


@compiled
def backward_rows(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    indices,
    weights,
    keep,
    grad_output,
    grad_weights,
    scale,
    squared,
    grad_query,
    grad_key,
    grad_value,
    grad_scores,
):
    """Add up the gradients of one head; all arrays are of one head, gradients start at 0.

    `grad_scores` (N, K) receives the gradient of every selected score.
    """
    for i in range(query.shape[0]):
        mean = 0.0
        for s in range(indices.shape[1]):
            if indices[i, s] < 0:
                break
            j = np.uint64(indices[i, s])
            weight = weights[i, s]
            slope = _slope(i, j, grad_output, value)
            kept = weight
            if keep.shape[0] > 0:
                slope *= keep[i, s]
                kept *= keep[i, s]
            _add_row(grad_value, j, kept, grad_output, i)
            slope += grad_weights[i, s]
            grad_scores[i, s] = slope
            mean += weight * slope
        for s in range(indices.shape[1]):
            if indices[i, s] < 0:
                break
            j = np.uint64(indices[i, s])
            slope = weights[i, s] * (grad_scores[i, s] - mean)
            grad_scores[i, s] = slope
            if squared:
                _pull_together(i, j, slope * scale, query, key, grad_query, grad_key)
            else:
                factor = query.dtype.type(slope * scale)
                _add_row(grad_query, i, factor, key, j)
                _add_row(grad_key, j, factor, query, i)
