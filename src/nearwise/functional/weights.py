"""Training-free neighbor weights, and votes from weights and labels."""

import torch
from torch import Tensor


def uniform_weights(distances: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return equal weights for all kept neighbors.

    Parameters
    ----------
    distances : Tensor of shape (n_queries, n_neighbors)
        Distances; only shape, dtype and device are used.
    mask : bool Tensor of shape (n_queries, n_neighbors), optional
        True keeps a neighbor. A row that keeps none raises.

    Returns
    -------
    weights : Tensor of shape (n_queries, n_neighbors)
        Non-negative, each row sums to 1, dtype of `distances`.

    Raises
    ------
    ValueError
        If a row keeps no neighbor or the mask does not fit.
    """
    return _softmax(torch.zeros_like(distances), mask)


def distance_weights(
    distances: Tensor, temperature: float | Tensor = 1.0, mask: Tensor | None = None
) -> Tensor:
    """Weight neighbors by ``softmax(-distance / temperature)``.

    Parameters
    ----------
    distances : Tensor of shape (n_queries, n_neighbors)
        Smaller is nearer; infinity has weight 0.
    temperature : float or Tensor that broadcasts to `distances`, default=1.0
        Positive, in the unit of `distances`. Small values trust the nearest few.
    mask : bool Tensor of shape (n_queries, n_neighbors), optional
        True keeps a neighbor. A row that keeps none raises.

    Returns
    -------
    weights : Tensor of shape (n_queries, n_neighbors)
        Non-negative, each row sums to 1, dtype of `distances`.

    Raises
    ------
    ValueError
        If `temperature` is not positive, a kept distance is NaN, or a row keeps no neighbor.
    """
    if not bool(torch.as_tensor(temperature > 0).all()):
        raise ValueError(f"temperature={temperature} is not positive. Give a value above 0.")
    return _softmax(-_at_least_float32(distances) / temperature, mask).to(distances.dtype)


def aggregate_labels(
    weights: Tensor,
    labels: Tensor,
    n_classes: int,
    *,
    eps: float = 0.0,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Turn neighbor weights and labels into class probabilities.

    ``p = sum_j w_j ((1 - eps) L_j + eps / n_classes)``, with the weights first multiplied by
    `sample_weight` and scaled to sum to 1 again.

    Parameters
    ----------
    weights : Tensor of shape (n_queries, n_neighbors)
        Non-negative, each row sums to 1.
    labels : Tensor of shape (n_queries, n_neighbors) or (n_queries, n_neighbors, n_classes)
        int64 class positions, or soft labels; their rows sum to 1.
    n_classes : int
        At least 1.
    eps : float, default=0.0
        Label smoothing in [0, 1].
    sample_weight : Tensor of shape (n_queries, n_neighbors), optional
        Non-negative weights of the neighbors' rows. If all neighbors of a query have weight 0,
        each class gets ``1 / n_classes``.

    Returns
    -------
    proba : Tensor of shape (n_queries, n_classes)
        Each row sums to 1; float32, or float64 if `weights` are. Differentiable in `weights` and
        soft labels.

    Raises
    ------
    ValueError
        If shapes do not fit, a label lies outside [0, n_classes), or `eps` outside [0, 1].
    """
    if not 0.0 <= eps <= 1.0:
        raise ValueError(f"eps={eps} is outside [0, 1]. Give the share of label smoothing.")
    weights = _at_least_float32(weights)
    if sample_weight is not None:
        weights = weights * sample_weight.to(weights.dtype)
    total = weights.sum(-1, keepdim=True)
    known = total > 0
    weights = weights / torch.where(known, total, 1.0)
    if labels.is_floating_point():
        if labels.shape != (*weights.shape, n_classes):
            raise ValueError(
                f"soft labels have shape {tuple(labels.shape)}. "
                f"Pass {(*weights.shape, n_classes)}: one probability per class and neighbor."
            )
        votes = torch.einsum("bk,bkc->bc", weights, labels.to(weights.dtype))
    else:
        votes = _hard_votes(weights, labels, n_classes)
    return torch.where(known, (1.0 - eps) * votes + eps / n_classes, 1.0 / n_classes)


def _hard_votes(weights: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    if labels.shape != weights.shape:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)} and weights {tuple(weights.shape)}. "
            "Pass one class position per neighbor."
        )
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= n_classes):
        raise ValueError(
            f"labels lie in [{int(labels.min())}, {int(labels.max())}] but n_classes={n_classes}. "
            "Pass class positions from 0 to n_classes - 1."
        )
    votes = torch.zeros(len(weights), n_classes, dtype=weights.dtype, device=weights.device)
    return votes.scatter_add(1, labels, weights)


def _at_least_float32(values: Tensor) -> Tensor:
    # float32 here: exp(1 / 0.07) and sums over many neighbors leave float16's range.
    return values if values.dtype == torch.float64 else values.float()


def _softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    dtype = logits.dtype
    logits = _at_least_float32(logits)
    if mask is not None:
        if mask.dtype != torch.bool or mask.shape != logits.shape:
            raise ValueError(
                f"mask has dtype {mask.dtype} and shape {tuple(mask.shape)}. "
                f"Pass bool of shape {tuple(logits.shape)}."
            )
        logits = logits.masked_fill(~mask, -torch.inf)
    if bool(logits.isnan().any()):
        raise ValueError("A kept neighbor has a distance of NaN. Mask it or drop the row.")
    if not bool((logits > -torch.inf).any(-1).all()):
        row = int((~(logits > -torch.inf).any(-1)).nonzero()[0, 0])
        raise ValueError(
            f"Row {row} keeps no neighbor, so its weights cannot sum to 1. "
            "Keep at least one neighbor in each row."
        )
    return torch.softmax(logits, -1).to(dtype)
