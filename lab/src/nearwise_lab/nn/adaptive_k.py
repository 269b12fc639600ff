"""The study's rule for the number of neighbors of each query."""

import torch
from torch import Tensor


def entropy_adaptive_k(weights: Tensor) -> Tensor:
    """Choose a neighborhood size for each query from how spread its weights are.

    The study's rule: with the entropy of the weights divided by ``log k_max``, under 0.5 take 30 %
    of k_max (at least 5), under 1.0 take 60 % (at least 10), else all.

    Parameters
    ----------
    weights : Tensor of shape (n_queries, k_max)
        Non-negative, each row sums to 1. The study used k_max = 50.

    Returns
    -------
    n_neighbors : int64 Tensor of shape (n_queries,)
        In [1, k_max]. Use it with `nearest_mask`.
    """
    k_max = weights.shape[-1]
    precise = weights if weights.dtype == torch.float64 else weights.float()
    entropy = torch.special.entr(precise).sum(-1)
    # One neighbor has nothing to spread over; 1e-6 forgives the rounding of uniform weights.
    spread = entropy / torch.log(torch.tensor(float(max(k_max, 2)))) + 1e-6
    sizes = torch.full(spread.shape, k_max, dtype=torch.int64, device=weights.device)
    sizes[spread < 1.0] = min(k_max, max(10, 6 * k_max // 10))
    sizes[spread < 0.5] = min(k_max, max(5, 3 * k_max // 10))
    return sizes


def nearest_mask(n_neighbors: Tensor, k_max: int) -> Tensor:
    """Return a mask (n_queries, k_max) that keeps the first ``n_neighbors[i]`` of row i."""
    return torch.arange(k_max, device=n_neighbors.device) < n_neighbors[:, None]
