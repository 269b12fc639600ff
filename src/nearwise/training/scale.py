"""A start for the scale of the neighbor weights: the best one for the keys as they are."""

import torch
from torch import Tensor, nn

from nearwise.nn import NeighborNetwork, euclidean, neighbor_vote, vote_nll
from nearwise.training.encode import Precision, autocast, encode_in_pieces
from nearwise.training.rows import TrainingRows

# Factors on the reciprocal of the mean distance: from nearly uniform to nearly the nearest alone.
_FACTORS = tuple(2.0 ** (step / 2) for step in range(-2, 14))


@torch.no_grad()
def fit_start_scale(
    network: NeighborNetwork,
    rows: TrainingRows,
    generator: torch.Generator,
    precision: Precision = "float32",
    *,
    n_queries: int = 512,
    n_candidates: int = 4096,
) -> float:
    """Set the scale to the one with the lowest leave-one-out NLL on training rows.

    Training then starts from well-tuned distance weighting, and need not bend the keys to make up
    for a scale that is far off.

    Parameters
    ----------
    network : NeighborNetwork
        Its `log_scale` is set in place.
    rows : TrainingRows
        On the network's device.
    generator : torch.Generator
        On the CPU; decides which rows are looked at.
    precision : {"float32", "bfloat16"}, default="float32"
        Of the embedder.
    n_queries, n_candidates : int
        Rows looked at, and rows they are compared with, at most.

    Returns
    -------
    nll : float
        Leave-one-out NLL at the chosen scale.
    """
    chosen = rows.take(torch.randperm(len(rows), generator=generator)[:n_candidates])
    keys = _keys_without_dropout(network, chosen, precision)
    queries = keys[:n_queries]
    cosine = network.similarity == "cosine"
    distances = 1 - queries @ keys.T if cosine else euclidean(queries, keys)
    unit = 1 / distances.mean().clamp_min(1e-6)
    best_nll, best_scale = float("inf"), network.scale
    for factor in _FACTORS:
        scale = factor * unit
        proba = neighbor_vote(
            queries,
            keys,
            scale,
            chosen.labels,
            network.n_classes,
            query_ids=chosen.row_ids[:n_queries],
            key_ids=chosen.row_ids,
            similarity=network.similarity,
            candidate_weight=chosen.sample_weight,
        )
        weight = None if chosen.sample_weight is None else chosen.sample_weight[:n_queries]
        nll = float(vote_nll(proba, chosen.labels[:n_queries], sample_weight=weight))
        if nll < best_nll:
            best_nll, best_scale = nll, scale
    network.log_scale.copy_(best_scale.log())
    return best_nll


def _keys_without_dropout(
    network: NeighborNetwork, rows: TrainingRows, precision: Precision
) -> Tensor:
    """Keys with batch statistics, those of training, as the running ones are still empty."""
    was_training = network.training
    network.train()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    with autocast(rows.x_num.device, precision):
        keys = encode_in_pieces(network.embedder, rows)
    network.train(was_training)
    return keys
