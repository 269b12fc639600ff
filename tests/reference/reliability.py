"""The reliability of remembered rows, written out in loops over queries and neighbors."""

import torch


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
