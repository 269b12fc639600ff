"""Token layers written out: loops over tokens, dense masks over pairs."""

import math

import torch

BETWEEN = {
    "matmul": lambda q, k: float(q @ k) / math.sqrt(len(q)),
    "cosine": lambda q, k: float(q @ k) / float(q.norm() * k.norm()),
    "euclidean": lambda q, k: float((q - k).norm()),
}


def ranked_neighbors(query, key, n_neighbors, similarity, candidates=None):
    """Neighbors of every token of one head, best first: lists of (position, similarity).

    With candidates a token itself comes first, with a similarity or distance of 1.
    """
    between, sign = BETWEEN[similarity], -1 if similarity == "euclidean" else 1
    result = []
    for i in range(len(query)):
        allowed = range(len(key)) if candidates is None else sorted(set(candidates) - {i})
        pairs = [(j, between(query[i], key[j])) for j in allowed]
        pairs.sort(key=lambda pair: (-sign * pair[1], pair[0]))
        if candidates is None:
            result.append(pairs[:n_neighbors])
        else:
            result.append([(i, 1.0), *pairs[: n_neighbors - 1]])
    return result


def slot_factors(scores, similarity, weighting):
    """Factors of the values from similarities or distances."""
    scores = torch.tensor(scores, dtype=torch.float64)
    if weighting == "softmax":
        return torch.softmax(-scores if similarity == "euclidean" else scores, dim=0)
    return 1 / (scores + 1e-8) if similarity == "euclidean" else scores


def convnn(layer, x, candidates=None):
    """A `ConvNNAttention` without coordinates on tokens (B, N, dim), in float64."""
    batch, n_tokens, dim = x.shape
    width, weight = dim // layer.num_heads, layer.conv.weight.double()
    parts = torch.nn.functional.linear(x.double(), layer.qkv.weight.double())
    parts = parts.view(batch, n_tokens, 3, layer.num_heads, width)
    parts = parts.detach()
    heads = torch.zeros(batch, n_tokens, layer.num_heads, width, dtype=torch.float64)
    for b in range(batch):
        for h in range(layer.num_heads):
            query, key, value = parts[b, :, :, h].unbind(1)
            all_ranked = ranked_neighbors(query, key, layer.n_neighbors, layer.metric, candidates)
            for i, ranked in enumerate(all_ranked):
                factors = slot_factors([s for _, s in ranked], layer.metric, layer.weighting)
                for slot, (j, _) in enumerate(ranked):
                    given = factors[slot] * value[j]
                    if layer.conv.kind == "standard":
                        heads[b, i, h] += weight[:, :, slot] @ given
                    else:
                        heads[b, i, h] += weight[:, 0, slot] * given
    if layer.conv.kind == "depthwise-separable":
        heads = heads @ layer.conv.pointwise.weight.double().T
    output = heads.flatten(2) @ layer.proj.weight.double().T
    return output if layer.proj.bias is None else output + layer.proj.bias.double()


def neighborhood(length, kernel, stride=1, dilation=1, causal=False):
    """Who attends whom on a line by NATTEN's rules, (N, N), token by token."""
    allowed = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        group = [j for j in range(length) if j % dilation == i % dilation]
        at = group.index(i)
        if causal:
            leader = min(at // stride * stride + stride - 1, len(group) - 1)
            window = range(max(leader - kernel + 1, 0), at + 1)
        else:
            leader = min(at // stride * stride + stride // 2, len(group) - 1)
            start = min(max(leader - kernel // 2, 0), len(group) - kernel)
            window = range(start, start + kernel)
        for j in window:
            allowed[i, group[j]] = True
    return allowed


def masked_attention(layer, x, allowed):
    """Attention of a layer's own projections under a dense mask (N, N), in its dtype."""
    query, key, value = layer._split(layer.qkv(x))
    query, key = layer.q_norm(query), layer.k_norm(key)
    scores = query @ key.transpose(-2, -1) * layer.scale
    weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)
    return layer.proj((weights @ value).transpose(1, 2).flatten(2))
