"""Compiled CPU loops of the inverted-file index: nearest cells, and nearest rows in them.

They release the interpreter lock and start no threads. Rows are packed in blocks: block i holds
``edges[i + 1] - edges[i]`` rows as columns, so that small matrix products read them in order.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearwise.functional.kernels import _exact, compiled, inlined_reordered

MOST_PER_BLOCK = 256
_PRODUCTS = 2**18  # up to so many multiplications OpenBLAS starts no threads
_MOST_AT_ONCE = 64  # rows per product
_SAMPLED = 256  # scores of cells
_STEP = 32  # scores per vectorized step
_F = np.float32


def block_edges(first: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split cells into blocks; `first` (n_cells + 1,) holds the first row of each cell.

    Returns the edges (n_blocks + 1,) of all blocks and the first block (n_cells + 1,) of each cell.
    """
    n_blocks = -(-np.diff(first) // MOST_PER_BLOCK)
    first_block = np.concatenate([[0], np.cumsum(n_blocks)])
    within = np.arange(first_block[-1]) - np.repeat(first_block[:-1], n_blocks)
    edges = np.repeat(first[:-1], n_blocks) + MOST_PER_BLOCK * within
    return np.append(edges, first[-1]), first_block


@compiled
def pack(rows, edges, by, packed):  # type: ignore[no-untyped-def]
    """Write ``by * rows`` (n, d) into `packed` (n * d,), block by block, as columns."""
    width = rows.shape[1]
    for block in range(edges.shape[0] - 1):
        start, size = edges[block], edges[block + 1] - edges[block]
        for c in range(width):
            line = packed[start * width + c * size : start * width + (c + 1) * size]
            for j in range(size):
                line[j] = by * rows[start + j, c]


@compiled
def _products(rows, packed, start, stop, out):  # type: ignore[no-untyped-def]
    """Multiply rows (m, d) with the rows of a block; return (m, stop - start)."""
    (m, width), size = rows.shape, stop - start
    made = out[: m * size].reshape(m, size)
    np.dot(rows, packed[start * width : stop * width].reshape(width, size), made)
    return made


@inlined_reordered
def _smallest(scores):  # type: ignore[no-untyped-def]
    """Return the position of the smallest score."""
    least, at = scores[0], 0
    for start in range(0, scores.shape[0], _STEP):
        part = scores[start : start + _STEP]
        low = part[0]
        for j in range(np.uint64(part.shape[0])):
            low = min(low, part[j])
        if low < least:
            least = low
            for j in range(part.shape[0]):
                if part[j] == low:
                    at = start + j
                    break
    return at


@compiled
def nearest_cells(rows, centers, edges, bias, wanted, near):  # type: ignore[no-untyped-def]
    """Write up to `wanted` cells near each of `rows` (b, d) into `near` (b, p), nearest first.

    A cell is near if ``bias + product`` with the packed `centers` is small. For many cells a sample
    of the scores sets the limit, so the number of cells varies: at most p, the rest is -1.
    """
    n_rows, width = rows.shape
    n_cells, p = bias.shape[0], near.shape[1]
    most = max(1, min(_MOST_AT_ONCE, _PRODUCTS // (width * MOST_PER_BLOCK)))
    step = max(1, n_cells // _SAMPLED) if wanted < n_cells else 1
    at = (wanted - 1) // step
    scores = np.empty((most, n_cells), dtype=_F)
    out = np.empty(most * MOST_PER_BLOCK, dtype=_F)
    for first in range(0, n_rows, most):
        some = rows[first : first + most]
        for block in range(edges.shape[0] - 1):
            start, stop = edges[block], edges[block + 1]
            made = _products(some, centers, start, stop, out)
            for i in range(some.shape[0]):
                for j in range(stop - start):
                    scores[i, start + j] = made[i, j] + bias[start + j]
        for i in range(some.shape[0]):
            into, score = near[first + i], scores[i]
            into[0], n = _smallest(score), 1
            if wanted > 1:
                limit = np.partition(score[::step], at)[at]
                for cell in range(n_cells):
                    if score[cell] <= limit and cell != into[0] and n < p:
                        into[n] = cell
                        n += 1
            into[n:] = -1


@compiled
def _by_cell(near, n_cells):  # type: ignore[no-untyped-def]
    """Return the queries grouped by cell, and the first position of each cell."""
    first = np.zeros(n_cells + 1, dtype=np.int64)
    for i in range(near.shape[0]):
        for cell in near[i]:
            if cell >= 0:
                first[cell + 1] += 1
    for cell in range(n_cells):
        first[cell + 1] += first[cell]
    at, who = first[:-1].copy(), np.empty(first[-1], dtype=np.int32)
    for i in range(near.shape[0]):
        for cell in near[i]:
            if cell >= 0:
                who[at[cell]] = i
                at[cell] += 1
    return who, first


@inlined_reordered
def _within(row, bias, first, limit, near):  # type: ignore[no-untyped-def]
    """Write the positions of scores within the limit into `near`; return their number."""
    n = 0
    for low in range(0, row.shape[0], _STEP):
        high, hits = min(low + _STEP, row.shape[0]), np.int32(0)
        for j in range(np.uint64(low), np.uint64(high)):  # unsigned: in vector registers
            hits += np.int32(row[j] + bias[first + j] <= limit)
        if hits > 0:
            for j in range(low, high):
                if row[j] + bias[first + j] <= limit:
                    near[n] = j
                    n += 1
    return n


@compiled
def _insert(value, at, values, places, count):  # type: ignore[no-untyped-def]
    """Insert into a list sorted by value and place; a full list drops its last entry."""
    slot = min(count, values.shape[0] - 1)
    while slot > 0 and (
        values[slot - 1] > value or (values[slot - 1] == value and places[slot - 1] > at)
    ):
        values[slot], places[slot] = values[slot - 1], places[slot - 1]
        slot -= 1
    values[slot], places[slot] = value, at


@compiled
def probe(factors, near, packed, scores, slots):  # type: ignore[no-untyped-def]
    """Write the smallest scores among the rows of some cells, and the slots of these rows.

    `factors` (b, d) float32 are the queries, `near` (b, p) their cells, nearest first; `packed` has
    the packed keys, the bias (n,) added to products, the edges of the blocks and the first block of
    each cell. `scores` (b, m), initially infinite, and `slots` (b, m), initially -1, are filled in
    ascending order.
    """
    (blocks, bias, edges, first_block), width = packed, factors.shape[1]
    some = np.empty((_MOST_AT_ONCE, width), dtype=_F)
    out = np.empty(_MOST_AT_ONCE * MOST_PER_BLOCK, dtype=_F)
    close = np.empty(MOST_PER_BLOCK, dtype=np.int64)
    n_cells, last = first_block.shape[0] - 1, scores.shape[1] - 1
    for turn in range(2):  # nearest cell first: later cells then cause few insertions
        who, first = _by_cell(near[:, :1] if turn == 0 else near[:, 1:], n_cells)
        for cell in range(n_cells):
            for block in range(first_block[cell], first_block[cell + 1]):
                start, stop = edges[block], edges[block + 1]
                most = max(1, min(_MOST_AT_ONCE, _PRODUCTS // (width * (stop - start))))
                for a in range(first[cell], first[cell + 1], most):
                    z = min(a + most, first[cell + 1])
                    for i in range(a, z):
                        for c in range(width):
                            some[i - a, c] = factors[who[i], c]
                    made = _products(some[: z - a], blocks, start, stop, out)
                    for i in range(a, z):
                        row, best, places = made[i - a], scores[who[i]], slots[who[i]]
                        for at in range(_within(row, bias, start, best[last], close)):
                            score = row[close[at]] + bias[start + close[at]]
                            if score < best[last]:
                                _insert(score, start + close[at], best, places, last)


@compiled
def measure_slots(queries, keys, order, slots, metric, found):  # type: ignore[no-untyped-def]
    """Write the exact nearest neighbors of each query among its candidate rows.

    `queries` are rows (b, d), scale (b,) and ids (b,), `keys` rows (n, d), scale and ids (n,).
    `slots` (b, m) are the candidates, numbered by `order` (n,); -1 is no row. A key with the id of
    the query is left out, unless both ids are empty. `found` are distances (b, k), indices (b, k)
    and counts (b,), initially 0.
    """
    (query, q_scale, query_ids), (rows, k_scale, key_ids) = queries, keys
    (distances, indices, counts), by_id = found, key_ids.shape[0] > 0
    k = distances.shape[1]
    for q in range(query.shape[0]):
        values, places, count = distances[q], indices[q], 0
        for slot in slots[q]:
            at = order[slot]
            if slot < 0 or (by_id and key_ids[at] == query_ids[q]):
                continue
            value = _exact(query[q], rows[at], q_scale[q], k_scale[at], metric)
            if count < k or (value, np.int64(at)) < (values[k - 1], places[k - 1]):
                _insert(value, at, values, places, count)
                count = min(count + 1, k)
        counts[q] = count


def arrays_of(rows: Any) -> NDArray[Any]:
    """Return rows for the distance loops: float64 unchanged, other types as float32."""
    kept = rows.detach()
    wide = kept.dtype.itemsize == 8
    made: NDArray[Any] = (kept if wide else kept.float()).contiguous().numpy()
    return made
