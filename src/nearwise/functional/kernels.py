"""Compiled CPU loops of the exact search.

They release the interpreter lock and start no threads of their own (`search_cpu` runs them on row
ranges), so they cannot fight with torch's thread pool and are safe to call from any thread.
"""

import math

import numpy as np
from numba import njit

# Sums may be reordered into vector registers; nothing is assumed about NaN or infinity.
_FAST = {"reassoc", "contract"}
_BLOCK = 64


@njit(nogil=True, cache=True, fastmath=_FAST)
def squared_norms(rows, out):  # type: ignore[no-untyped-def]
    """Write the squared L2 norm of every row of `rows` (n, d) into `out` (n,) float64."""
    for i in range(rows.shape[0]):
        row = rows[i]
        total = 0.0
        for c in range(row.shape[0]):
            value = np.float64(row[c])
            total += value * value
        out[i] = total


@njit(nogil=True, cache=True, fastmath=_FAST, inline="never")
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
    for c in range(q.shape[0]):
        total += np.float64(q[c]) * np.float64(k[c])
    return np.float32(-total)


@njit(nogil=True, cache=True)
def _limit(worst, metric, q_norm, k_max, width):  # type: ignore[no-untyped-def]
    """Return the largest score that a row nearer than `worst` can have.

    A score is what `scan` compares: ``|k|^2 - 2 q.k`` (Euclidean), ``-q.k / |k|`` (cosine) or
    ``-q.k``, from a float32 product. Its distance from the true value is bounded by the usual
    ``gamma_n |q| |k|`` of a dot product in any order (Higham, Accuracy and Stability, sec. 3.1).
    """
    unit = 6.6e-8  # 1.1 times the rounding unit of float32
    worst = np.float64(worst)
    if metric <= 1:
        squared = worst * worst if metric == 0 else worst
        slack = (2.0 * width + 16.0) * q_norm * k_max
        slack += 8.0 * (k_max * k_max + q_norm * q_norm + squared)
        bound = squared - q_norm * q_norm + slack * unit
    elif metric == 2:
        bound = q_norm * (worst - 1.0) + (width + 16.0) * q_norm * unit
    else:
        bound = worst + ((width + 16.0) * q_norm * k_max + 8.0 * abs(worst)) * unit
    bound += (width + 1.0) * 1e-37  # products that underflow
    bound += abs(bound) * unit
    return np.float32(bound)


@njit(nogil=True, cache=True)
def scan(  # type: ignore[no-untyped-def]
    products,
    bias,
    factor,
    k_max,
    first,
    query,
    keys,
    q_norm,
    q_scale,
    k_scale,
    query_ids,
    key_ids,
    metric,
    direct,
    distances,
    indices,
    counts,
):
    """Merge one tile of keys into the running nearest neighbors of some queries.

    `products` (b, t) holds float32 ``q.k``; ``bias[j] + factor[j] * products[i, j]`` is the score
    of `_limit`. Rows whose score could belong to a neighbor are measured by `_exact`, so
    `distances` (b, k) ascending, `indices` (b, k) and `counts` (b,) are exact, ties to the lowest
    index, whatever the rounding of the products. `direct` measures every row.
    """
    n_queries, n_keys = products.shape
    n_neighbors = distances.shape[1]
    width = np.float64(query.shape[1])
    for i in range(n_queries):
        count = counts[i]
        limit = np.float32(np.inf)
        if count == n_neighbors and not direct:
            limit = _limit(distances[i, n_neighbors - 1], metric, q_norm[i], k_max, width)
        row = products[i]
        for start in range(0, n_keys, _BLOCK):
            stop = min(start + _BLOCK, n_keys)
            hits = 0
            for j in range(start, stop):
                hits += 1 if bias[j] + factor[j] * row[j] <= limit else 0
            if hits == 0 and not direct:
                continue
            for j in range(start, stop):
                if not direct and not bias[j] + factor[j] * row[j] <= limit:
                    continue
                at = first + j
                if key_ids.shape[0] > 0 and key_ids[j] == query_ids[i]:
                    continue
                value = _exact(query[i], keys[j], q_scale[i], k_scale[j], metric)
                if count == n_neighbors:
                    # Keys come in ascending order: an equal distance loses to the one kept.
                    if not value < distances[i, n_neighbors - 1]:
                        continue
                    slot = n_neighbors - 1
                else:
                    slot = count
                    count += 1
                while slot > 0 and distances[i, slot - 1] > value:
                    distances[i, slot] = distances[i, slot - 1]
                    indices[i, slot] = indices[i, slot - 1]
                    slot -= 1
                distances[i, slot] = value
                indices[i, slot] = at
                if count == n_neighbors and not direct:
                    limit = _limit(distances[i, n_neighbors - 1], metric, q_norm[i], k_max, width)
        counts[i] = count


@njit(nogil=True, cache=True)
def measure(query, keys, q_scale, k_scale, metric, out):  # type: ignore[no-untyped-def]
    """Write the exact distances of every query to every key into `out` (b, n) float32."""
    for i in range(query.shape[0]):
        for j in range(keys.shape[0]):
            out[i, j] = _exact(query[i], keys[j], q_scale[i], k_scale[j], metric)


@njit(nogil=True, cache=True)
def measure_near(query, near, q_scale, k_scale, metric, out):  # type: ignore[no-untyped-def]
    """Write the exact distances of query i to ``near[i, j]`` (b, m, d) into `out` (b, m)."""
    for i in range(near.shape[0]):
        for j in range(near.shape[1]):
            out[i, j] = _exact(query[i], near[i, j], q_scale[i], k_scale[i, j], metric)
