"""Losses over neighbors and batches: written out in loops, and by plain torch operations."""

import math

import torch
from torch import Tensor

from nearwise.nn import NeighborNetwork, euclidean, soft_targets, vote_nll


def slow_leave_one_out_nll(query, keys, scale, query_labels, labels, query_ids, ids, smoothing=0.0):
    """Mean NLL of the vote softmax(-scale * distance), own ids left out; labels are soft rows."""
    n_classes = len(labels[0])
    losses = []
    for b in range(len(query)):
        own = set(query_ids[b]) if isinstance(query_ids[b], (list, tuple)) else {query_ids[b]}
        votes, total = [0.0] * n_classes, 0.0
        for i in range(len(keys)):
            if ids[i] in own:
                continue
            weight = math.exp(-scale * math.dist(query[b], keys[i]))
            total += weight
            for c in range(n_classes):
                votes[c] += weight * labels[i][c]
        loss = 0.0
        for c in range(n_classes):
            target = (1 - smoothing) * query_labels[b][c] + smoothing / n_classes
            loss -= target * math.log(votes[c] / total + 1e-7)
        losses.append(loss)
    return sum(losses) / len(losses)


def leave_self_out(scores: Tensor, query_ids: Tensor, candidate_ids: Tensor) -> Tensor:
    """Scores (B, N) with those of a query's own rows, found by id, at minus infinity.

    Ids of queries have shape (B,), or (B, m) with m ids to leave out.
    """
    own = query_ids.reshape(len(query_ids), -1, 1) == candidate_ids
    return scores.masked_fill(own.any(dim=1), -torch.inf)


def neighbor_scores(network: NeighborNetwork, query: Tensor, keys: Tensor) -> Tensor:
    """Log-weights before the softmax of queries (B, dim) over keys (N, dim), shape (B, N)."""
    if network.similarity == "cosine":
        return (network.scale * query) @ keys.T
    return -network.scale * euclidean(query, keys)


def neighbor_probabilities(
    scores: Tensor, labels: Tensor, n_classes: int, candidate_weight: Tensor | None = None
) -> Tensor:
    """Vote (B, n_classes) of candidates weighted by the softmax of their scores (B, N)."""
    if candidate_weight is not None:
        scores = scores + candidate_weight.log()
    return torch.softmax(scores, dim=1) @ soft_targets(labels, n_classes).to(scores.dtype)


def leave_one_out_nll(
    scores: Tensor,
    query_labels: Tensor,
    candidate_labels: Tensor,
    query_ids: Tensor,
    candidate_ids: Tensor,
    n_classes: int,
    *,
    smoothing: float = 0.0,
    sample_weight: Tensor | None = None,
    candidate_weight: Tensor | None = None,
) -> Tensor:
    """`fused_leave_one_out_nll` of ready scores (B, N), by plain torch operations."""
    scores = leave_self_out(scores, query_ids, candidate_ids)
    proba = neighbor_probabilities(scores, candidate_labels, n_classes, candidate_weight)
    return vote_nll(proba, query_labels, smoothing=smoothing, sample_weight=sample_weight)
