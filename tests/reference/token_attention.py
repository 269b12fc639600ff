"""k-NN attention over tokens, one pair at a time."""

import math

import numpy as np


def knn_attention(
    query,
    key,
    value,
    n_neighbors,
    *,
    metric="matmul",
    scale=None,
    bias=None,
    padding=None,
    is_causal=False,
    include_self="candidate",
    candidates=None,
):
    """Attend in float64 with loops over batch, heads and queries.

    Takes arrays (B, H, N, D), (B, H, M, D), (B, H, M, Dv); `bias` (B, H, N, M), -inf forbids;
    `padding` (B, M), True forbids; `candidates` (B, C). Returns outputs (B, H, N, Dv), indices
    (B, H, N, K), -1 in empty slots, and weights (B, H, N, K).
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    n_items, n_heads, n_queries, width = query.shape
    if scale is None:
        scale = 1 / math.sqrt(width) if metric == "matmul" else 1.0
    output = np.zeros((n_items, n_heads, n_queries, value.shape[-1]))
    indices = np.full((n_items, n_heads, n_queries, n_neighbors), -1)
    weights = np.zeros((n_items, n_heads, n_queries, n_neighbors))
    for b, h, i in np.ndindex(n_items, n_heads, n_queries):
        chosen = range(key.shape[2]) if candidates is None else sorted(candidates[b])
        scores = {}
        for j in {*chosen, i} if include_self == "always" else chosen:
            score = scale * _score(query[b, h, i], key[b, h, j], metric)
            score += 0.0 if bias is None else float(bias[b, h, i, j])
            forbidden = padding is not None and padding[b][j]
            forbidden |= is_causal and j > i
            forbidden |= include_self == "never" and j == i
            if not forbidden and score > -math.inf:
                scores[j] = score
        first = include_self == "always"
        best = sorted(scores, key=lambda j: (not (first and j == i), -scores[j], j))[:n_neighbors]
        best.sort(key=lambda j: (-scores[j], j))
        if not best:
            continue
        raised = np.exp(np.array([scores[j] for j in best]) - scores[best[0]])
        shares = raised / raised.sum()
        indices[b, h, i, : len(best)] = best
        weights[b, h, i, : len(best)] = shares
        output[b, h, i] = shares @ value[b, h, best]
    return output, indices, weights


def _score(a, b, metric):
    if metric == "matmul":
        return float(a @ b)
    if metric == "cosine":
        lengths = max(np.linalg.norm(a), 1e-12) * max(np.linalg.norm(b), 1e-12)
        return float(a @ b) / lengths
    return -float(np.linalg.norm(a - b))
