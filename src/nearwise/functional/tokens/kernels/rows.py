"""Compiled loops over rows: products, sums, and selection of the best scores.

They are plain loops that LLVM vectorizes by itself: where possible in whole blocks of `ROOM` steps,
and with unsigned indices, which need no check of their sign. The functions are small and call few
others: then numba does not count references to their arrays, which would cost more than the loops.
Nothing is checked at run time: all accesses must lie inside the arrays.
"""

import numpy as np

from nearwise.functional.kernels import compiled, inlined, inlined_reordered

LANES = 16  # rows of scores are padded to a multiple of it
ROOM = 64  # extra entries in arrays with the columns of a row
# Unsigned throughout: numba makes a float of a signed and an unsigned number.
_ONE, _BYTES, _BLOCK, _FOUR = np.uint64(1), np.uint64(8), np.uint64(ROOM), np.uint64(4 * ROOM)
_SOME = np.uint64(16)  # lanes


@inlined_reordered
def weighted_sum(factors, rows, starts, n, output, start, width):  # type: ignore[no-untyped-def]
    """Write ``sum_s factors[s] * rows[starts[s] + c]`` over `n` rows of `width` numbers."""
    o, width = np.uint64(start), np.uint64(width)
    for c in range(width):
        output[o + c] = 0
    s = 0
    while s + 4 <= n:  # four rows at a time, for fewer writes of sums
        f, g, h, i = factors[s], factors[s + 1], factors[s + 2], factors[s + 3]
        p, q = np.uint64(starts[s]), np.uint64(starts[s + 1])
        r, t = np.uint64(starts[s + 2]), np.uint64(starts[s + 3])
        for c in range(width):
            output[o + c] += f * rows[p + c] + g * rows[q + c] + h * rows[r + c] + i * rows[t + c]
        s += 4
    while s < n:
        factor, at = factors[s], np.uint64(starts[s])
        for c in range(width):
            output[o + c] += factor * rows[at + c]
        s += 1


@inlined_reordered
def products(row, start, rows, starts, n, width, out):  # type: ignore[no-untyped-def]
    """Write the dot products of one row with `n` others into `out`."""
    r, width = np.uint64(start), np.uint64(width)
    for s in range(n):
        at, total = np.uint64(starts[s]), out.dtype.type(0)
        for c in range(width):
            total += row[r + c] * rows[at + c]
        out[s] = total


@inlined_reordered
def add_row(factors, row, start, rows, starts, n, width):  # type: ignore[no-untyped-def]
    """Add ``factors[s]`` times one row to each of `n` others."""
    r, width = np.uint64(start), np.uint64(width)
    for s in range(n):
        at, factor = np.uint64(starts[s]), factors[s]
        for c in range(width):
            rows[at + c] += factor * row[r + c]


@inlined
def lowest_of(scores):  # type: ignore[no-untyped-def]
    """Return the lowest finite number of the dtype, as in a mask that adds ``finfo.min``."""
    return np.nextafter(scores.dtype.type(-np.inf), scores.dtype.type(0))


@compiled
def lanes_for(n_wanted):  # type: ignore[no-untyped-def]
    """Return the number of lanes per row: 1.5 times the needed columns, rounded up.

    The limit then passes few more columns than needed; the cost of ranking is quadratic in the
    number of lanes. It is 16, 32, or a multiple of 64.
    """
    n = LANES * max(1, -(-3 * n_wanted // (2 * LANES)))
    return n if n <= 2 * LANES else -(-n // ROOM) * ROOM


@inlined
def _keep_larger(lanes, scores, at, n):  # type: ignore[no-untyped-def]
    for lane in range(n):
        score, best = scores[at + lane], lanes[lane]
        lanes[lane] = score if score > best else best


@inlined
def _fill_lanes(scores, start, n_columns, n_lanes, lanes):  # type: ignore[no-untyped-def]
    """Write the largest score of every lane; lane l holds the columns l, l + L, ..."""
    at, stop = np.uint64(start), np.uint64(start + n_columns)
    n = max(_BLOCK, np.uint64(n_lanes))
    lanes[:n] = -np.inf
    while n == _BLOCK and at + _FOUR <= stop:  # four blocks at once, for fewer writes of lanes
        b = at + _BLOCK
        c = b + _BLOCK
        d = c + _BLOCK
        for lane in range(_BLOCK):
            best, other = scores[at + lane], scores[b + lane]
            best = best if best > other else other
            third, fourth = scores[c + lane], scores[d + lane]
            third = third if third > fourth else fourth
            best = best if best > third else third
            lanes[lane] = lanes[lane] if lanes[lane] > best else best
        at += _FOUR
    while at + n <= stop:
        _keep_larger(lanes, scores, at, n)
        at += n
    _keep_larger(lanes, scores, at, stop - at)
    while n > n_lanes:
        n >>= _ONE
        _keep_larger(lanes, lanes, n, n)


@inlined_reordered
def limit_of(scores, start, n_columns, n_wanted, n_lanes, lanes):  # type: ignore[no-untyped-def]
    """Return a score reached by at least `n_wanted` columns.

    It is the largest lane maximum that at least n lane maxima reach: then at least n columns reach
    it, and columns below it are not among the best n. Only some lanes are tried, since comparing
    all pairs costs more than it saves.
    """
    _fill_lanes(scores, start, n_columns, n_lanes, lanes)
    limit, n = lowest_of(lanes), np.uint64(n_lanes)
    for some in range(np.uint64(0), n, max(_ONE, n // _SOME)):
        best, n_reaching = lanes[some], np.int32(0)
        for lane in range(n):
            n_reaching += np.int32(lanes[lane] >= best)
        if n_reaching >= n_wanted and best > limit:
            limit = best
    return limit


@inlined
def columns_from(scores, start, n_columns, limit, flags, words, columns):  # type: ignore[no-untyped-def]
    """Write the columns with scores at or above the limit, or NaN; return their number.

    `words` is a view of the one-byte flags, eight at a time.
    """
    start, n, count = np.uint64(start), np.uint64(n_columns), np.uint64(0)
    for column in range(n):
        flags[column] = not scores[start + column] < limit
    for w in range(n // _BYTES):
        word = words[w]
        if word != 0:
            for byte in range(_BYTES):
                columns[count] = _BYTES * w + byte
                count += (word >> (_BYTES * byte)) & _ONE
    return count


@inlined
def take(scores, start, columns, n, n_wanted, limit, found):  # type: ignore[no-untyped-def]
    """Write the scores of `n` ascending columns that reach the limit, and drop surplus columns.

    Columns with NaN are dropped, and columns at the limit that follow `n_wanted` others. Return the
    number of remaining columns, and whether any score is NaN.
    """
    start, count, is_poisoned = np.uint64(start), np.uint64(0), False
    for f in range(n):
        score = scores[start + np.uint64(columns[f])]
        is_poisoned |= score != score
        found[count], columns[count] = score, columns[f]
        count += np.uint64(score > limit or (score == limit and count < n_wanted))
    return count, is_poisoned


@inlined_reordered
def rank(found, columns, count, n_wanted, ties, slot, best, places):  # type: ignore[no-untyped-def]
    """Write the best `n_wanted` of `count` scores, and their columns, into slots from `slot` on.

    In descending order, ties to the lowest column. Return their number.
    """
    filled = (count // _BLOCK + _ONE) * _BLOCK  # whole vectors, without a scalar remainder
    for f in range(count, filled):
        found[f] = -np.inf
    for f in range(count):
        ties[f] = 0
    for f in range(count):
        score, larger = found[f], np.int32(0)
        for other in range(filled):
            larger += np.int32(found[other] > score)
        ahead = np.uint64(larger) + ties[np.uint64(larger)]
        ties[np.uint64(larger)] += _ONE
        if ahead < n_wanted:
            best[slot + ahead], places[slot + ahead] = score, columns[f]
    return min(n_wanted, count)


@inlined
def insert_itself(own, column, scores, columns, first, count):  # type: ignore[no-untyped-def]
    """Insert a token itself in the order of scores, ties by the lower position."""
    slot = first + count
    while slot > first:
        before = slot - _ONE
        if scores[before] > own or (scores[before] == own and columns[before] < column):
            break
        scores[slot], columns[slot] = scores[before], columns[before]
        slot = before
    scores[slot] = own
    columns[slot] = column


@inlined
def compare(columns, scores, first, count, n_slots, scale):  # type: ignore[no-untyped-def]
    """Turn `count` descending scores into logarithms of weights; clear the slots behind them."""
    best = scores[first]
    for s in range(first, first + count):
        scores[s] = (scores[s] - best) * scale
    for s in range(first + count, first + n_slots):
        columns[s], scores[s] = -1, -np.inf


@compiled
def seen(positions, at, row):  # type: ignore[no-untyped-def]
    """Mask the columns of tokens after `at`; return the number of columns left to read."""
    stop = np.searchsorted(positions, at + 1)
    n_seen = (stop + LANES - 1) // LANES * LANES
    row[stop:n_seen] = -np.inf
    return n_seen
