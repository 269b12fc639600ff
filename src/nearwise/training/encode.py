"""Keys, head predictions and neighbor votes of many rows, in chunks and without gradient."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nearwise.nn import NeighborNetwork, neighbor_vote
from nearwise.training.rows import TrainingRows

_CHUNK = 8192


@contextmanager
def evaluating(network: NeighborNetwork) -> Iterator[None]:
    """Eval mode without gradient inside, the former mode after."""
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(was_training)


def encode(
    network: NeighborNetwork,
    rows: TrainingRows,
    *,
    average_views: bool = False,
    chunk_size: int = _CHUNK,
) -> Tensor:
    """Keys of rows, shape (n, dim), in eval mode.

    Parameters
    ----------
    network : NeighborNetwork
    rows : TrainingRows
        On the network's device.
    average_views : bool, default=False
        Average the keys of both views (and scale them to unit length again, where the embedder
        does), for rows that have two.
    chunk_size : int, default=8192
        Rows at a time.
    """
    embedder = network.embedder
    with evaluating(network):
        keys = _chunked(embedder, rows.x_num, rows.x_cat, chunk_size)
        if average_views and rows.second_x_num is not None:
            second = _chunked(embedder, rows.second_x_num, rows.x_cat, chunk_size)
            keys = (keys + second) / 2
            keys = torch.nn.functional.normalize(keys, dim=1) if embedder.normalize else keys
    return keys


def _chunked(
    embedder: torch.nn.Module, x_num: Tensor, x_cat: Tensor | None, chunk_size: int
) -> Tensor:
    parts = [
        embedder(
            x_num[start : start + chunk_size],
            None if x_cat is None else x_cat[start : start + chunk_size],
        )
        for start in range(0, max(len(x_num), 1), chunk_size)
    ]
    return torch.cat(parts)


def predict_head(
    network: NeighborNetwork, rows: TrainingRows, *, keys: Tensor | None = None
) -> Tensor:
    """Log-probabilities of the linear head, shape (n, n_classes), in eval mode.

    Parameters
    ----------
    network : NeighborNetwork
        With a head; ValueError without.
    rows : TrainingRows
    keys : Tensor of shape (n, dim), optional
        Ready keys of the rows, to save computing them.
    """
    if network.head is None:
        raise ValueError("This network has no linear head. Build it with head=True.")
    keys = encode(network, rows) if keys is None else keys
    with evaluating(network):
        return torch.log_softmax(network.head(keys), dim=1)


def predict_neighbors(
    network: NeighborNetwork,
    queries: TrainingRows,
    memory: TrainingRows,
    *,
    query_keys: Tensor | None = None,
    memory_keys: Tensor | None = None,
) -> Tensor:
    """Vote of all memory rows by the softmax of their scores, own row left out by id.

    Parameters
    ----------
    network : NeighborNetwork
    queries, memory : TrainingRows
        A query never counts the memory row that has its id.
    query_keys, memory_keys : Tensor, optional
        Ready keys, to save computing them.

    Returns
    -------
    proba : Tensor of shape (n_queries, n_classes), rows sum to 1.
    """
    query_keys = encode(network, queries) if query_keys is None else query_keys
    memory_keys = encode(network, memory) if memory_keys is None else memory_keys
    return neighbor_vote(
        query_keys,
        memory_keys,
        network.scale,
        memory.labels,
        network.n_classes,
        query_ids=queries.row_ids,
        key_ids=memory.row_ids,
        similarity=network.similarity,
        candidate_weight=memory.sample_weight,
    )
