"""Hard-negative selection: rows whose neighbors disagree with them are drawn more often."""

import torch
from torch import Tensor

from nearwise.functional import topk_neighbors
from nearwise.nn import soft_targets


def neighbor_disagreement(
    keys: Tensor, labels: Tensor, ids: Tensor, n_classes: int, n_neighbors: int = 10
) -> Tensor:
    """Share of a row's nearest neighbors, itself left out, that are of another class.

    Parameters
    ----------
    keys : Tensor of shape (n, D)
    labels : int64 Tensor of shape (n,) or float Tensor of shape (n, n_classes)
    ids : int64 Tensor of shape (n,)
    n_classes : int
    n_neighbors : int, default=10
        Held to the n - 1 rows there are.

    Returns
    -------
    disagreement : Tensor of shape (n,), in [0, 1].
    """
    k = min(n_neighbors, len(keys) - 1)
    nearest = topk_neighbors(keys, keys, k, query_ids=ids, key_ids=ids).indices
    targets = soft_targets(labels, n_classes)
    return 1 - (targets.unsqueeze(1) * targets[nearest]).sum(dim=2).mean(dim=1)


def hard_row_weights(disagreement: Tensor, *, fraction: float = 0.3, weight: float = 2.0) -> Tensor:
    """Give the hardest `fraction` of the rows the sampling weight `weight`, the others 1.

    A row whose neighbors all agree is never hard, however few hard rows there are.

    Parameters
    ----------
    disagreement : Tensor of shape (n,)
    fraction : float, default=0.3
        In (0, 1].
    weight : float, default=2.0
        At least 1.

    Returns
    -------
    weights : float Tensor of shape (n,).
    """
    n_hard = max(1, round(fraction * len(disagreement)))
    order = torch.argsort(disagreement, descending=True, stable=True)
    weights = torch.ones_like(disagreement)
    weights[order[:n_hard]] = weight
    return torch.where(disagreement > 0, weights, torch.ones_like(weights))
