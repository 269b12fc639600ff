"""Searches of the study: training rows in their own memory, and queries for an evaluation."""

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from nearwise.functional import topk_neighbors
from nearwise.training.encoding import Precision
from nearwise_lab.experiments.study.model import StudyModel, encode, vote

_CHUNK = 1000


class Memory(NamedTuple):
    """Keys (n, dim) and labels (n,) of the remembered rows."""

    keys: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Found:
    """Neighbors of queries from one search.

    Attributes
    ----------
    query : Tensor of shape (n, dim)
        Keys of the queries.
    distances, indices : Tensor of shape (n, k_max)
        Squared L2 distances, ascending, and positions in the memory.
    seconds, search_seconds : float
        Wall time of encoding and searching, and of searching alone.
    """

    query: Tensor
    distances: Tensor
    indices: Tensor
    seconds: float = 0.0
    search_seconds: float = 0.0

    def nearest(self, k: int) -> "Found":
        """Return the nearest `k` of them (all, where there are fewer)."""
        return replace(self, distances=self.distances[:, :k], indices=self.indices[:, :k])


def training_neighbors(keys: Tensor, k: int, *, leave_self_out: bool) -> Found:
    """Find the neighbors of training rows among these: as in the study, each finds itself first.

    Parameters
    ----------
    keys : Tensor of shape (n, dim)
    k : int
        Held to the rows there are.
    leave_self_out : bool
        Leave each row out of its own neighbors, by its id.
    """
    ids = torch.arange(len(keys), device=keys.device) if leave_self_out else None
    k = min(k, len(keys) - leave_self_out)
    found = topk_neighbors(keys, keys, k, metric="sqeuclidean", query_ids=ids, key_ids=ids)
    return Found(keys, found.distances, found.indices)


def look_up(
    model: StudyModel, rows: Tensor, memory: Memory, k_max: int, precision: Precision
) -> Found:
    """Encode rows and find their nearest `k_max` (or all) remembered rows, timed."""
    start = time.perf_counter()
    query = encode(model.embedder, rows, memory.keys.device, precision)
    encoded = _now(query)
    k_max = min(k_max, len(memory.keys))
    found = topk_neighbors(query, memory.keys, k_max, metric="sqeuclidean")
    end = _now(query)
    return Found(query, found.distances, found.indices, end - start, end - encoded)


def _now(query: Tensor) -> float:
    """Time when what was asked of the device of `query` is done."""
    if query.is_cuda:
        torch.cuda.synchronize(query.device)
    return time.perf_counter()


@torch.no_grad()
def attention_weights(
    model: StudyModel, found: Found, memory: Memory, mask: Tensor | None = None
) -> Tensor:
    """Learned weights (n, k) of found neighbors, in chunks; True in `mask` keeps a neighbor."""
    parts = []
    for start in range(0, len(found.query), _CHUNK):
        rows = slice(start, start + _CHUNK)
        kept = None if mask is None else mask[rows]
        neighbors = memory.keys[found.indices[rows]]
        parts.append(model.weigh(found.query[rows], neighbors, found.distances[rows], kept))
    return torch.cat(parts)


def attention_vote(
    model: StudyModel, found: Found, memory: Memory, mask: Tensor | None = None
) -> Tensor:
    """Class probabilities (n, C) by learned attention over found neighbors."""
    weights = attention_weights(model, found, memory, mask)
    return vote(weights, memory.labels[found.indices], model.n_classes)


def purity(found: Found, labels: Tensor, n_classes: int) -> float:
    """Mean share of a query's neighbors that carry their most common label, in [1 / k, 1]."""
    counts = torch.zeros(len(found.indices), n_classes, device=labels.device)
    ones = torch.ones_like(found.distances)
    counts.scatter_add_(1, labels[found.indices], ones)
    return float((counts.max(dim=1).values / found.indices.shape[1]).mean())
