"""Compiled CPU loops of the pretrained head: input features and layers.

They release the interpreter lock and start no threads.
"""

import numpy as np

from nearwise.functional.kernels import compiled, reordered

N_FEATURES, N_OF_QUERY, HAS_BASE = 17, 22, 10
LEAST = -6.0  # lower log-probabilities are clipped
_F = np.float32
_LEAST, _OUT = _F(LEAST), _F(-1e4)  # the second clips log-weights
_NO_MASS, _FLOOR = _F(1e-3), _F(1e-9)


@compiled
def _number_classes(labels, slots, firsts):  # type: ignore[no-untyped-def]
    """Assign numbers to the classes of neighbors, in order of appearance; return how many."""
    n_slots = 0
    for j in range(labels.shape[0]):
        slot = 0
        while slot < n_slots and firsts[slot] != labels[j]:
            slot += 1
        if slot == n_slots:
            firsts[slot] = labels[j]
            n_slots += 1
        slots[j] = slot
    return n_slots


@reordered
def _vote(relative, log_weight, sharpness, slots, share, vote):  # type: ignore[no-untyped-def]
    """Compute attention weights from distances, and their sum per class."""
    largest, total = _F(-np.inf), _F(0)
    for j in range(share.shape[0]):
        share[j] = max(log_weight[j], _OUT) - sharpness * min(max(relative[j], _F(-1)), _F(3))
        largest = max(largest, share[j])
    for j in range(share.shape[0]):
        share[j] = np.exp(share[j] - largest)
        total += share[j]
    vote[:] = 0
    for j in range(share.shape[0]):
        share[j] /= total
        vote[slots[j]] += share[j]


@reordered
def describe_rows(facts, labels, summary, log_prior, features, of_query, relative):  # type: ignore[no-untyped-def]
    """Write the features `features` (B, K, 17) of neighbors and `of_query` (B, 22) of queries.

    `facts` are the seven (B, K) fields of a `NeighborSet` in order, without `labels`; `relative`
    (B, K) gets the distances divided by their mean, minus 1.
    """
    distances, own_distance, reliability, opinion, own_opinion, likeness, log_weight = facts
    n_rows, k = labels.shape
    slots, firsts = np.empty(k, dtype=np.int64), np.empty(k, dtype=np.int64)
    share, votes = np.empty(k, dtype=_F), np.empty((3, k), dtype=_F)
    for row in range(n_rows):
        n_slots = _number_classes(labels[row], slots, firsts)
        mean, n_there = _F(0), _F(0)
        for j in range(k):
            if log_weight[row, j] > -np.inf:
                mean += distances[row, j]
                n_there += 1
        mean /= max(n_there, _F(1))
        for j in range(k):
            relative[row, j] = distances[row, j] / max(mean, _F(1e-6)) - 1
        for at in range(2, -1, -1):  # plain share last, since it is used below
            sharpness = _F(0) if at == 0 else _F(4) if at == 1 else _F(12)
            _vote(relative[row], log_weight[row], sharpness, slots, share, votes[at])
        base, supervised = summary[row, HAS_BASE], summary[row, -1]
        spread, reliable, first = _F(0), _F(0), min(max(relative[row, 0], _F(-1)), _F(3))
        for j in range(k):
            near, one = votes[1, slots[j]], features[row, j]
            prior = max(log_prior[row, labels[row, j]], _LEAST)
            gap = min(max(relative[row, j], _F(-1)), _F(3))
            far = np.log(distances[row, j] + _F(0.01))
            said, own = max(opinion[row, j], _LEAST), max(own_opinion[row, j], _LEAST)
            one[0], one[1], one[2] = gap, (gap - first) / 2, far / 2
            one[3] = np.log(_F(j + 1)) / 3
            one[4], one[5] = 2 * votes[0, slots[j]] - 1, 2 * near - 1
            one[6], one[7] = 2 * votes[2, slots[j]] - 1, 2 * reliability[row, j] - 1
            one[8], one[9] = prior / 3, (np.log(near + _F(0.01)) - prior) / 3
            one[10] = far - np.log(own_distance[row, j] + _F(0.01))
            one[11], one[12] = (said / 3 + 1) * base, (said - prior) / 3 * base
            one[13], one[14] = (own / 3 + 1) * base, (2 * likeness[row, j] - 1) * base
            one[15], one[16] = base, supervised
            spread += share[j] * gap**2
            reliable += share[j] * reliability[row, j]
        entropy, top = _F(0), _F(0)
        for slot in range(n_slots):
            top = max(top, votes[1, slot])
            if votes[1, slot] > 0:
                entropy -= votes[1, slot] * np.log(votes[1, slot])
        of_query[row, 0], of_query[row, 1] = np.log(mean + _F(0.01)) / 2, features[row, 0, 2]
        of_query[row, 2], of_query[row, 3], of_query[row, 4] = np.sqrt(spread), entropy, top
        of_query[row, 5] = reliable
        of_query[row, 6:] = summary[row]


@reordered
def _renew(x, query, layer, weight, slots, sums, share, message, inner):  # type: ignore[no-untyped-def]
    """Apply one layer: update neighbors `x` (N, width) and the query (width,) in place.

    The last column of `sums` (classes, width + heads + 1) holds the classes' log shares.
    """
    score, score_bias, of_class, class_bias, of_query, of_neighbor, out, norm, shift, two = layer
    (n, width), heads, n_slots = x.shape, share.shape[1], sums.shape[0]
    depth, all_of = width // heads, np.zeros(2 * width, dtype=_F)
    total = np.full(heads, _FLOOR)
    np.dot(x, score, share)
    for j in range(n):
        for h in range(heads):
            value = min(max(share[j, h] + score_bias[h], _F(-8)), _F(8))
            share[j, h] = np.exp(value) * weight[j]
            total[h] += share[j, h]
    sums[:, :-1] = 0
    each = np.empty(width, dtype=_F)
    for j in range(n):
        row, into = x[j], sums[slots[j]]
        for h in range(heads):
            part = share[j, h] / total[h]
            into[width + h] += part
            for i in range(depth):
                each[h * depth + i] = part
        for i in range(np.uint64(width)):
            into[i] += each[i] * row[i]
    mean = query.mean()
    factor = 1 / np.sqrt(((query - mean) ** 2).mean() + _F(1e-5))
    for i in range(width):
        all_of[i] = (query[i] - mean) * factor * norm[i] + shift[i]
    for slot in range(n_slots):
        for h in range(heads):
            for i in range(h * depth, (h + 1) * depth):
                all_of[width + i] += sums[slot, i]
                sums[slot, i] /= sums[slot, width + h] + _NO_MASS
            sums[slot, width + h] = np.log(sums[slot, width + h] + _NO_MASS) / 3
    query += np.dot(np.maximum(np.dot(all_of, two[0]) + two[1], _F(0)), two[2]) + two[3]
    of_all = np.dot(query, of_query)
    np.dot(sums, of_class, message)
    np.dot(x, of_neighbor, inner)
    for slot in range(n_slots):
        for i in range(message.shape[1]):
            message[slot, i] += class_bias[i] + of_all[i]
    for j in range(n):
        row, more = inner[j], message[slots[j]]
        for i in range(np.uint64(row.shape[0])):
            row[i] = max(row[i] + more[i], _F(0))
    change = np.dot(inner, out)
    for j in range(n):
        row, more = x[j], change[j]
        for i in range(np.uint64(width)):
            row[i] += more[i]


@compiled
def pool_rows(tokens, query, labels, log_weight, log_prior, layers):  # type: ignore[no-untyped-def]
    """Update tokens (B, N, width) and queries (B, width) in place, layer by layer.

    `labels` and `log_weight` are (B, N), `log_prior` (B, C); each of `layers` is a tuple of
    float32 weights (in, out) and biases of a `_ClassPooling`.
    """
    (n_rows, n, width), heads, wide = tokens.shape, layers[0][0].shape[1], layers[0][4].shape[1]
    slots, firsts = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    share, inner, weight = np.empty((n, heads), _F), np.empty((n, wide), _F), np.empty(n, _F)
    all_sums, all_messages = np.empty((n, width + heads + 1), _F), np.empty((n, wide), _F)
    for row in range(n_rows):
        n_slots = _number_classes(labels[row], slots, firsts)
        sums, message = all_sums[:n_slots], all_messages[:n_slots]
        for slot in range(n_slots):
            sums[slot, -1] = max(log_prior[row, firsts[slot]], 2 * _LEAST) / 3
        for j in range(n):
            weight[j] = np.exp(log_weight[row, j])
        for layer in layers:
            _renew(tokens[row], query[row], layer, weight, slots, sums, share, message, inner)
