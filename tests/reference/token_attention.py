"""k-NN attention over tokens, one pair at a time."""

import math

import numpy as np
import torch
import torch.nn.functional as F


def knn_attention(
    query,
    key,
    value,
    n_neighbors,
    *,
    metric="matmul",
    scale=None,
    attn_mask=None,
    key_padding_mask=None,
    is_causal=False,
    include_self="candidate",
    candidates=None,
):
    """Attend in float64 with loops over leading dimensions and queries.

    Takes the arguments of `attend`. Returns outputs, indices, -1 in empty slots, and weights.
    """
    if metric == "cosine":  # in single precision at least
        query, key = (x if x.dtype == torch.float64 else x.float() for x in (query, key))
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
    *lead, n_queries, width = query.shape
    n_keys, n_items = key.shape[-2], lead[0] if lead else 1
    if scale is None:
        scale = 1 / math.sqrt(width) if metric == "matmul" else 1.0
    bias = torch.zeros(n_queries, n_keys) if attn_mask is None else attn_mask.detach()
    if bias.dtype == torch.bool:
        bias = torch.zeros(bias.shape).masked_fill(~bias, -torch.inf)
    bias = bias.double().expand(*lead, n_queries, n_keys).numpy()
    padding, chosen = [[False] * n_keys] * n_items, [range(n_keys)] * n_items
    if key_padding_mask is not None:
        padding = key_padding_mask.expand(n_items, -1).tolist()
    if candidates is not None:
        chosen = candidates.expand(n_items, -1).sort().values.tolist()
    query, key, value = (x.detach().double().numpy() for x in (query, key, value))
    output = np.zeros((*lead, n_queries, value.shape[-1]))
    indices = np.full((*lead, n_queries, n_neighbors), -1)
    weights = np.zeros(indices.shape)
    for at in np.ndindex(*lead, n_queries):
        where, i = at[:-1], at[-1]
        item = where[0] if where else 0
        scores = {}
        for j in {*chosen[item], i} if include_self == "always" else chosen[item]:
            a, b = query[at], key[where][j]
            score = -np.linalg.norm(a - b) if metric == "euclidean" else a @ b
            score = float(scale * score + bias[at][j])
            forbidden = padding[item][j] or (is_causal and j > i)
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
        indices[at][: len(best)] = best
        weights[at][: len(best)] = shares
        output[at] = shares @ value[where][best]
    return [torch.from_numpy(x) for x in (output, indices, weights)]
