"""Compiled CPU loops: exact search, neighbor votes and their gradients.

They release the interpreter lock and start no threads of their own; `search_cpu` runs them on row
ranges. So they do not compete with torch's thread pool and are safe to call from any thread.
"""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nearwise.warn import warn_user

_BLOCK = 64
_F = np.float32
UNIT = 6.6e-8  # 1.1 times the rounding unit of float32
_TINY = _F(1e-18)  # more than the root of the underflow of float32 squares
_BLOCK_WORDS = 16  # words of four bfloat16
_SIGNS = np.uint64(0x8000_8000_8000_8000)
_ROOM = 2**25  # bytes of free disk, several times the size of all loops


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile on first use, with a cache on disk if there is a folder with enough space."""
    try:
        kept = njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's is writable
        kept = None
    if kept is not None and _has_room(kept.stats.cache_path):
        return kept
    return njit(nogil=True, **options)(function)


def _has_room(folder: str) -> bool:
    there = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    if shutil.disk_usage(there).free >= _ROOM:
        return True
    warn_user(
        "The disk is full, so that compiled code is not kept and every process compiles again, "
        "which takes seconds. Free space, or name a folder on another disk by NUMBA_CACHE_DIR."
    )
    return False


def reordered(function: Callable[..., Any]) -> Any:
    """Compile with sums reordered for vector registers; NaN and infinity are preserved."""
    return compiled(function, fastmath={"reassoc", "contract"})


def inlined(function: Callable[..., Any]) -> Any:
    """Compile inline into the calling loops, for functions shorter than the cost of a call.

    A call counts references to each of its array arguments.
    """
    return compiled(function, forceinline=True)


def inlined_reordered(function: Callable[..., Any]) -> Any:
    """Compile inline into the calling loops, with sums reordered for vector registers."""
    return compiled(function, forceinline=True, fastmath={"reassoc", "contract"})


def norms_of(rows: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return L2 norms (n,) of `rows` (n, d), and their inverses, 0 for a row of zeros.

    A norm is not finite if and only if its row has NaN or infinity.
    """
    squares = np.empty(len(rows), dtype=np.float64)
    squared_norms(rows, squares)
    norms = np.sqrt(squares)
    return norms, np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


@reordered
def squared_norms(rows, out):  # type: ignore[no-untyped-def]
    """Write the squared L2 norm of every row of `rows` (n, d) into `out` (n,) float64."""
    for i in range(rows.shape[0]):
        row = rows[i]
        total = 0.0
        for c in range(row.shape[0]):
            value = np.float64(row[c])
            total += value * value
        out[i] = total


@reordered
def dot_products(query, keys, out):  # type: ignore[no-untyped-def]
    """Write the float32 products of every query with every key into `out` (b, n)."""
    for i in range(query.shape[0]):
        for j in range(keys.shape[0]):
            total = _F(0)
            for c in range(np.uint64(query.shape[1])):
                total += query[i, c] * keys[j, c]
            out[i, j] = total


@reordered
def _exact(q, k, q_scale, k_scale, metric):  # type: ignore[no-untyped-def]
    """Distance of two rows summed in float64, rounded once to float32."""
    total = 0.0
    if metric <= 1:
        for c in range(q.shape[0]):
            gap = np.float64(q[c]) - np.float64(k[c])
            total += gap * gap
        return np.float32(math.sqrt(total) if metric == 0 else total)
    if metric == 2:
        if q_scale == 0.0 or k_scale == 0.0:
            return np.float32(1.0)
        for c in range(q.shape[0]):
            gap = np.float64(q[c]) * q_scale - np.float64(k[c]) * k_scale
            total += gap * gap
        total *= 0.5
        # Below the rounding of float64 unit vectors: the same direction.
        return np.float32(0.0 if total < 1e-30 else min(total, 2.0))
    if metric == 4:
        for c in range(q.shape[0]):
            total += abs(np.float64(q[c]) - np.float64(k[c]))
        return np.float32(total)
    for c in range(q.shape[0]):
        total += np.float64(q[c]) * np.float64(k[c])
    return np.float32(-total)


@compiled
def _slack(squared, metric, q_norm, k_max, width, rough):  # type: ignore[no-untyped-def]
    """Bound the rounding error of a score, for a distance (Euclidean: its square) of `squared`.

    A score of `scan` is ``|k|^2 - 2 q.k`` (Euclidean), ``-q.k / |k|`` (cosine) or ``-q.k``, from a
    float32 product. Its error is at most the usual ``gamma_n |q| |k|`` of a dot product summed in
    any order (Higham, Accuracy and Stability, sec. 3.1), plus the loss where products underflow
    and, as `rough`, the error where torch rounds the factors themselves.
    """
    relative = (width + 16.0) * UNIT + rough
    if metric <= 1:
        slack = 2.0 * relative * q_norm * k_max
        slack += 8.0 * UNIT * (k_max * k_max + q_norm * q_norm + abs(squared))
    elif metric == 2:
        slack = (relative + 8.0 * UNIT) * q_norm
    else:
        slack = relative * q_norm * k_max + 8.0 * UNIT * abs(squared)
    return slack + (width + 1.0) * 1e-37 * (1.0 + q_norm + k_max)


@compiled
def _limit(worst, metric, q_norm, k_max, width, rough):  # type: ignore[no-untyped-def]
    """Return the largest possible score of a row at distance `worst` or less."""
    worst = np.float64(worst)
    if metric <= 1:
        squared = worst * worst if metric == 0 else worst
        bound = squared - q_norm * q_norm
    elif metric == 2:
        squared = worst
        bound = q_norm * (worst - 1.0)
    else:
        squared = worst
        bound = worst
    bound += _slack(squared, metric, q_norm, k_max, width, rough)
    return np.float32(bound + abs(bound) * UNIT)


@reordered
def _first_limit(row, bias, factor, lanes, smallest):  # type: ignore[no-untyped-def]
    """Return a score that at least ``len(smallest)`` entries of a tile do not exceed.

    The smallest scores of interleaved lanes belong to different rows, so the n-th smallest of
    them is such a score, and few rows lie below it.
    """
    n_lanes = lanes.shape[0]
    lanes[:] = np.inf
    for start in range(0, row.shape[0] - n_lanes + 1, n_lanes):
        part = row[start : start + n_lanes]
        offset, slope = bias[start : start + n_lanes], factor[start : start + n_lanes]
        for lane in range(n_lanes):
            score = offset[lane] + slope[lane] * part[lane]
            lanes[lane] = score if score < lanes[lane] else lanes[lane]
    smallest[:] = np.inf
    last = smallest.shape[0] - 1
    for score in lanes:
        if score < smallest[last]:
            slot = last
            while slot > 0 and smallest[slot - 1] > score:
                smallest[slot] = smallest[slot - 1]
                slot -= 1
            smallest[slot] = score
    return smallest[last]


@reordered
def _any_within(row, bias, factor, start, stop, limit):  # type: ignore[no-untyped-def]
    """Return whether a score from `start` to `stop` is within the limit."""
    hits = np.int32(0)
    # Unsigned: no check for negative indices, so the loop runs in vector registers.
    for j in range(np.uint64(start), np.uint64(stop)):
        hits += np.int32(bias[j] + factor[j] * row[j] <= limit)
    return hits > 0


@compiled
def _insert(value, at, distances, indices, count):  # type: ignore[no-untyped-def]
    """Insert into a sorted list after equal values; a full list drops its last entry."""
    slot = min(count, distances.shape[0] - 1)
    while slot > 0 and distances[slot - 1] > value:
        distances[slot] = distances[slot - 1]
        indices[slot] = indices[slot - 1]
        slot -= 1
    distances[slot] = value
    indices[slot] = at


@compiled
def _scan_row(  # type: ignore[no-untyped-def]
    row, scores, limit, first, query, keys, metric, direct, found, places, count
):
    """Merge one tile of keys into the neighbors of one query.

    Return the number of its neighbors, and of keys within the limit that have its id.
    """
    (bias, factor, k_max, rough), (q, q_norm, q_scale, own_id) = scores, query
    rows, k_scale, key_ids = keys
    n_neighbors, n_keys = found.shape[0], row.shape[0]
    width = np.float64(q.shape[0])
    left_out = 0
    for start in range(0, n_keys, _BLOCK):
        stop = min(start + _BLOCK, n_keys)
        if not direct and not _any_within(row, bias, factor, start, stop, limit):
            continue
        for at in range(start, stop):
            if not direct and not bias[at] + factor[at] * row[at] <= limit:
                continue
            if key_ids.shape[0] > 0 and key_ids[at] == own_id:
                left_out += 1
                continue
            value = _exact(q, rows[at], q_scale, k_scale[at], metric)
            if count == n_neighbors and not value < found[n_neighbors - 1]:
                continue  # keys are in ascending order: the earlier one wins a tie
            _insert(value, first + at, found, places, count)
            count = min(count + 1, n_neighbors)
            if count == n_neighbors and not direct:
                worst = _limit(found[n_neighbors - 1], metric, q_norm, k_max, width, rough)
                limit = min(limit, worst)
    return count, left_out


@reordered
def halve(rows, factor, out, norms):  # type: ignore[no-untyped-def]
    """Write ``rows * factor`` (n, d) into `out` (n, >= d) as the bits of bfloat16.

    `norms` (n, 2) float32 get upper bounds of the norm and of the norm of the rounding error.
    """
    exact, half = np.empty(rows.shape[1], _F), np.empty(rows.shape[1], _F)
    bits, kept = exact.view(np.uint32), half.view(np.uint32)
    for i in range(rows.shape[0]):
        row, line, total, lost = rows[i], out[i], _F(0), _F(0)
        for c in range(row.shape[0]):
            exact[c] = row[c] * factor[i]
        for c in range(row.shape[0]):
            kept[c] = bits[c] + np.uint32(0x7FFF) + ((bits[c] >> np.uint32(16)) & np.uint32(1))
            line[c] = kept[c] >> np.uint32(16)
            kept[c] = kept[c] & np.uint32(0xFFFF0000)
        for c in range(row.shape[0]):
            total += exact[c] * exact[c]
            lost += (exact[c] - half[c]) * (exact[c] - half[c])
        norms[i, 0], norms[i, 1] = np.sqrt(total) + _TINY, np.sqrt(lost) + _TINY


@compiled
def limits(worst, metric, q_norm, k_max, width, rough, out):  # type: ignore[no-untyped-def]
    """Write the `_limit` of every query into `out` (b,)."""
    for i in range(worst.shape[0]):
        out[i] = _limit(worst[i], metric, q_norm[i], k_max, width, rough)


@compiled
def scan(products, scores, first, queries, keys, metric, direct, found):  # type: ignore[no-untyped-def]
    """Merge one tile of keys into the running nearest neighbors of some queries.

    `products` (b, t) holds float32 ``q.k``; with `scores` of bias (t,), factor (t,), largest norm
    of a key and `rough`, ``bias[j] + factor[j] * products[i, j]`` is the score of `_slack`. Each
    possible neighbor is measured by `_exact`. So the results `found`, ascending distances (b, k),
    indices (b, k) and counts (b,), are exact for any rounding of the products, ties to the lowest
    index; `rough` bounds the rounding of their factors. `direct` measures every row. `queries` are
    rows, norms, scale and ids, `keys` rows, scale and ids; the first key has the index `first`.
    Both ids are empty if nothing is left out.
    """
    (bias, factor, k_max, rough), (query, q_norm, q_scale, query_ids) = scores, queries
    (distances, indices, counts), by_id = found, keys[2].shape[0] > 0
    n_queries, n_keys = products.shape
    n_neighbors = distances.shape[1]
    width = np.float64(query.shape[1])
    # One more than needed, since the query itself may be among them.
    smallest = np.empty(n_neighbors + 1 if by_id else n_neighbors, dtype=np.float32)
    n_lanes = 64
    while n_lanes < 4 * smallest.shape[0]:
        n_lanes *= 2
    lanes = np.empty(n_lanes, dtype=np.float32)
    for i in range(n_queries):
        row, norm, own_id = products[i], q_norm[i], query_ids[i] if by_id else 0
        limit = np.float32(np.inf)
        is_guess = counts[i] == 0 and not direct and n_keys >= 4 * n_lanes
        if counts[i] == n_neighbors and not direct:
            limit = _limit(distances[i, n_neighbors - 1], metric, norm, k_max, width, rough)
        elif is_guess:
            score = np.float64(_first_limit(row, bias, factor, lanes, smallest))
            squared = score + norm * norm if metric <= 1 else score
            slack = 2.0 * _slack(squared, metric, norm, k_max, width, rough)
            limit = np.float32(score + slack + abs(score) * UNIT)
        while True:
            one = (query[i], norm, q_scale[i], own_id)
            lists = (distances[i], indices[i], counts[i])
            count, left_out = _scan_row(
                row, scores, limit, first, one, keys, metric, direct, *lists
            )
            if not is_guess or left_out <= 1:
                break
            # Several keys have the id of the query: the guess assumed one.
            is_guess, limit = False, np.float32(np.inf)
        counts[i] = count


@compiled
def sift(words, first, queries, keys, metric, distances, indices):  # type: ignore[no-untyped-def]
    """Merge the keys flagged as possible neighbors into full lists of neighbors.

    `words` (b, t / 4) uint64 are t bfloat16 per query, negative if a key may be nearer than the
    present last neighbor; such keys are measured by `_exact`, and their number is returned. See
    `scan` for the other arguments.
    """
    (query, _, q_scale, query_ids), (rows, k_scale, key_ids) = queries, keys
    last, n_words, n_measured = distances.shape[1] - 1, words.shape[1], 0
    near, apart = np.empty(4 * n_words + 1, np.int64), np.empty(4 * n_words, np.float32)
    for i in range(words.shape[0]):
        row, found, places, n_near = words[i], distances[i], indices[i], 0
        for start in range(0, n_words, _BLOCK_WORDS):
            stop = min(start + _BLOCK_WORDS, n_words)
            any_sign = np.uint64(0)
            for j in range(np.uint64(start), np.uint64(stop)):
                any_sign |= row[j]
            if not any_sign & _SIGNS:
                continue
            for j in range(start, stop):
                if row[j] & _SIGNS:
                    for lane in range(4):
                        near[n_near] = 4 * j + lane
                        n_near += int((row[j] >> np.uint64(16 * lane + 15)) & np.uint64(1))
        while n_near > 0 and near[n_near - 1] >= rows.shape[0]:  # padding to whole words
            n_near -= 1
        n_measured += n_near
        # Without checks in between, all these rows are fetched from memory in parallel.
        for j in range(n_near):
            apart[j] = _exact(query[i], rows[near[j]], q_scale[i], k_scale[near[j]], metric)
        for j in range(n_near):
            own = key_ids.shape[0] > 0 and key_ids[near[j]] == query_ids[i]
            if not own and apart[j] < found[last]:
                _insert(apart[j], first + near[j], found, places, last + 1)
    return n_measured


@compiled
def measure(query, keys, q_scale, k_scale, metric, out):  # type: ignore[no-untyped-def]
    """Write the exact distances of every query to every key into `out` (b, n) float32."""
    for i in range(query.shape[0]):
        for j in range(keys.shape[0]):
            out[i, j] = _exact(query[i], keys[j], q_scale[i], k_scale[j], metric)


@compiled
def measure_near(query, near, q_scale, k_scale, metric, out):  # type: ignore[no-untyped-def]
    """Write the exact distances of query i to ``near[i, j]`` (b, m, d) into `out` (b, m)."""
    for i in range(near.shape[0]):
        for j in range(near.shape[1]):
            out[i, j] = _exact(query[i], near[i, j], q_scale[i], k_scale[i, j], metric)
