"""Losses of batches, written out in loops."""

import math


def slow_contrastive(keys, labels, temperature):
    """Supervised contrastive loss, pair by pair."""
    rows = []
    for i in range(len(keys)):
        similarity = {
            j: sum(a * b for a, b in zip(keys[i], keys[j], strict=True))
            / math.hypot(*keys[i])
            / math.hypot(*keys[j])
            / temperature
            for j in range(len(keys))
            if j != i
        }
        log_total = math.log(sum(math.exp(s) for s in similarity.values()))
        pairs = [log_total - s for j, s in similarity.items() if labels[j] == labels[i]]
        if pairs:
            rows.append(sum(pairs) / len(pairs))
    return sum(rows) / len(rows) if rows else 0.0
