"""The study's multi-head neighbor attention, written out in loops."""

import math

import torch


def slow_multi_head_weights(module, query, neighbors):
    """Weights (B, K) of one query at a time, one head at a time, one neighbor at a time."""
    n_rows, n_neighbors, dim = neighbors.shape
    head_dim = dim // module.num_heads
    low, high = module.temperature_bounds
    weights = torch.zeros(n_rows, n_neighbors, dtype=query.dtype)
    for b in range(n_rows):
        q = module.query_projection(query[b])
        for h in range(module.num_heads):
            part = slice(h * head_dim, (h + 1) * head_dim)
            tau = min(max(math.exp(module.log_temperature[h].item()), low), high)
            scores = []
            for j in range(n_neighbors):
                k = module.key_projection(neighbors[b, j])
                distance = sum((query[b, i] - neighbors[b, j, i]) ** 2 for i in range(dim))
                bias = module.distance_bias(distance.reshape(1))[h]
                scores.append(q[part] @ k[part] / math.sqrt(head_dim) / tau + bias)
            top = max(score.item() for score in scores)
            raised = [math.exp(score.item() - top) for score in scores]
            for j in range(n_neighbors):
                weights[b, j] += raised[j] / sum(raised) / module.num_heads
    return weights
