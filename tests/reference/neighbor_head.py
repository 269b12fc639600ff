"""The neighbor head and its pieces, written out in loops over queries, neighbors and heads."""

import math

import torch

CLIP = -6.0


def slow_describe(distances, labels, reliability, base_log_proba, own=None, log_weight=None):
    """Features (B, K, 7) and summary (B, 8), one query and one neighbor at a time."""
    n_queries, k = distances.shape
    n_classes = base_log_proba.shape[1]
    features = torch.zeros(n_queries, k, 7)
    summary = torch.zeros(n_queries, 8)
    for b in range(n_queries):
        d = distances[b].tolist()
        w = [1.0] * k if log_weight is None else log_weight[b].exp().tolist()
        raised = [w[j] * math.exp(-(d[j] - d[0])) for j in range(k)]
        votes = {}
        for j in range(k):
            if sum(raised):
                label = int(labels[b, j])
                votes[label] = votes.get(label, 0.0) + raised[j] / sum(raised)
        base = base_log_proba[b].tolist()
        for j in range(k):
            label = int(labels[b, j])
            known = base[label] if label < n_classes else -math.log(n_classes)
            opinion = 0.0 if own is None else max(float(own[b, j]), CLIP) / 3 + 1
            features[b, j] = torch.tensor(
                [
                    d[j] - d[0],
                    d[j] - sum(d) / k,
                    math.log(j + 1) / 3,
                    2 * votes.get(label, 0.0) - 1,
                    max(known, CLIP) / 3 + 1,
                    opinion,
                    2 * float(reliability[b, j]) - 1,
                ]
            )
        mean = sum(d) / k
        proba = [math.exp(value) for value in base]
        summary[b] = torch.tensor(
            [
                d[0] - 1,
                mean - 1,
                math.sqrt(sum((x - mean) ** 2 for x in d) / k),
                slow_entropy(votes.values()),
                2 * max(votes.values(), default=0.0) - 1,
                2 * float(reliability[b].mean()) - 1,
                2 * max(proba) - 1,
                slow_entropy(proba),
            ]
        )
    return features, summary


def slow_entropy(shares):
    return -sum(p * math.log(p) for p in shares if p > 0)


def slow_logits(attention, seen, b, h):
    """Logits of one query's neighbors in one head, and of its null."""
    neighbors = []
    for j in range(seen.distances.shape[1]):
        hidden = torch.nn.functional.gelu(attention.features(seen.features[b, j]))
        score = float(attention.score(hidden)[h])
        pull = float(seen.distances[b, j]) * math.exp(float(attention.log_scale[h]))
        neighbors.append(score - pull + float(seen.log_weight[b, j]))
    top = max(neighbors)
    if top == -math.inf:
        return neighbors, float(attention.null(seen.summary[b])) - 1e4
    total = top + math.log(sum(math.exp(x - top) for x in neighbors))
    return neighbors, float(attention.null(seen.summary[b])) + total


def slow_softmax(scores):
    top = max(scores)
    if top == -math.inf:
        return [0.0] * len(scores)
    raised = [math.exp(x - top) for x in scores]
    return [x / sum(raised) for x in raised]


def slow_weights(head, attentions, spaces, b, sizes=None):
    """Weights of one query: a list a space, and the null's; averaged over heads and sizes."""
    lengths = [seen.distances.shape[1] for seen in spaces]
    sizes = sizes or [max(lengths)]
    n_heads = len(attentions[0].log_scale)
    total = [0.0] * (sum(lengths) + 1)
    for h in range(n_heads):
        logits, nulls = [], []
        for attention, seen in zip(attentions, spaces, strict=True):
            scores, null = slow_logits(attention, seen, b, h)
            logits.append(scores)
            nulls.append(null)
        top = max(nulls)
        null = top + math.log(sum(math.exp(x - top) for x in nulls) / len(nulls))
        for size in sizes:
            scores = [s if j < size else -math.inf for part in logits for j, s in enumerate(part)]
            shares = slow_softmax([*scores, -math.inf if head.null is None else null])
            total = [t + s / n_heads / len(sizes) for t, s in zip(total, shares, strict=True)]
    found = sum(total)
    total = [t / found for t in total] if found else [*total[:-1], 1.0]
    parts, start = [], 0
    for length in lengths:
        parts.append(total[start : start + length])
        start += length
    return parts, total[-1]


def slow_head(head, spaces, base_log_proba, sizes=None):
    """Probabilities (B, C) pooled, of the neighbors alone, weights and null mass; known classes."""
    n, n_classes = base_log_proba.shape
    prior = head.prior.tolist()
    eps = 1 / (1 + math.exp(-float(head.smoothing)))
    gates = [math.log1p(math.exp(float(g))) for g in head.space_gate]
    base_gate = math.log1p(math.exp(float(head.base_gate))) if head.has_base else 0.0
    pooled, alone = torch.zeros(n, n_classes), torch.zeros(n, n_classes)
    all_weights, null_mass = [], []
    for b in range(n):
        base = base_log_proba[b].tolist()
        shares = [g / sum(gates) for g in gates]
        if head.pooling == "mixture":
            parts, null = slow_weights(head, head.attention, spaces, b, sizes)
            votes = slow_votes(spaces, parts, b, n_classes)
            votes = smoothed(votes, eps)
            from_base = head.has_base and head.null != "prior"
            carried = [math.exp(x) for x in base] if from_base else prior
            pooled[b] = torch.tensor(normalised(votes, null, carried))
            alone[b] = torch.tensor(normalised(votes, null, prior))
            weights = parts
        else:
            logs, weights, null = [0.0] * n_classes, [], 0.0
            helped = [0.0] * n_classes
            from_base = head.has_base and head.null == "parametric"
            carried = [math.exp(x) for x in base] if from_base else prior
            for s, seen in enumerate(spaces):
                parts, empty = slow_weights(head, [head.attention[s]], [seen], b, sizes)
                votes = smoothed(slow_votes([seen], parts, b, n_classes), eps)
                opinion = normalised(votes, empty, prior)
                logs = [x + shares[s] * math.log(p) for x, p in zip(logs, opinion, strict=True)]
                whole = normalised(votes, empty, carried)
                helped = [x + shares[s] * math.log(p) for x, p in zip(helped, whole, strict=True)]
                weights.append([shares[s] * w for w in parts[0]])
                null += shares[s] * empty
            both = [sum(gates) * x + base_gate * y for x, y in zip(helped, base, strict=True)]
            pooled[b] = torch.tensor(slow_softmax(both))
            alone[b] = torch.tensor(slow_softmax(logs))
        all_weights.append([w for part in weights for w in part])
        null_mass.append(null)
    return pooled, alone, torch.tensor(all_weights), torch.tensor(null_mass)


def slow_votes(spaces, parts, b, n_classes):
    votes = [0.0] * n_classes
    for seen, weights in zip(spaces, parts, strict=True):
        for label, weight in zip(seen.labels[b].tolist(), weights, strict=True):
            votes[label] += weight
    return votes


def smoothed(votes, eps):
    return [(1 - eps) * v + eps * sum(votes) / len(votes) for v in votes]


def normalised(votes, null, carried):
    mass = [max(v + null * p, 1e-9) for v, p in zip(votes, carried, strict=True)]
    return [m / sum(mass) for m in mass]


def slow_pair_reliability(neighbors, own, labels, query):
    """Reliability (B, K) of each neighbor for each query, that query struck from its neighbors.

    `own` (n, M) lists each row's own nearest rows; the first M - 1 count, the last is a spare.
    """
    width = own.shape[1]
    counted = max(width - 1, 1)
    result = torch.zeros(neighbors.shape)
    for b in range(len(neighbors)):
        for place, j in enumerate(neighbors[b].tolist()):
            nearest = own[j].tolist()
            asked = [row for row in nearest if row != int(query[b])][:counted]
            if int(query[b]) in nearest and width == 1:
                result[b, place] = 0.5
                continue
            result[b, place] = sum(int(labels[r]) == int(labels[j]) for r in asked) / counted
    return result
