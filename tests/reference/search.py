"""The slow search: loops over every pair, sorted by (distance, row)."""

import numpy as np


def slow_distance(q, k, metric):
    """Distance of two vectors in float64, rounded to float32."""
    q, k = np.asarray(q, dtype=np.float64), np.asarray(k, dtype=np.float64)
    if metric == "inner_product":
        return np.float32(-(q * k).sum())
    if metric == "cosine":
        lengths = np.sqrt((q * q).sum()), np.sqrt((k * k).sum())
        if min(lengths) == 0:
            return np.float32(1.0)
        return np.float32(0.5 * ((q / lengths[0] - k / lengths[1]) ** 2).sum())
    if metric == "manhattan":
        return np.float32(np.abs(q - k).sum())
    squared = ((q - k) ** 2).sum()
    return np.float32(np.sqrt(squared) if metric == "euclidean" else squared)


def slow_topk(query, keys, n_neighbors, metric, query_ids=None, key_ids=None):
    """Distances (b, k) and positions (b, k) of the nearest keys, ties to the lowest position."""
    if key_ids is None:
        key_ids = range(len(keys))
    distances, indices = [], []
    for i, q in enumerate(query):
        found = []
        for j, k in enumerate(keys):
            if query_ids is not None and key_ids[j] == query_ids[i]:
                continue
            found.append((slow_distance(q, k, metric), j))
        found.sort()
        distances.append([d for d, _ in found[:n_neighbors]])
        indices.append([j for _, j in found[:n_neighbors]])
    return np.array(distances, dtype=np.float32), np.array(indices, dtype=np.int64)
