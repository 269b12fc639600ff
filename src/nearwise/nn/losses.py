"""Losses of neighbor votes and heads, for hard or soft labels."""

import torch
from torch import Tensor
from torch.nn import functional as F

# Lower bound of the vote for the right class, as in ModernNCA: without any neighbor of the class
# the loss is large but finite.
VOTE_FLOOR = 1e-7


def soft_targets(labels: Tensor, n_classes: int, smoothing: float = 0.0) -> Tensor:
    """Return class probabilities of hard or soft labels, smoothed.

    Parameters
    ----------
    labels : int64 Tensor of shape (n,) or float Tensor of shape (n, n_classes)
    n_classes : int
    smoothing : float, default=0.0
        Share of each target spread evenly over the classes, in [0, 1).

    Returns
    -------
    targets : float Tensor of shape (n, n_classes)
        Rows sum to 1 if those of the soft labels do.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be in [0, 1), got {smoothing}.")
    if labels.ndim == 1:
        targets = F.one_hot(labels, n_classes).to(torch.float32)
    elif labels.shape[1] == n_classes:
        targets = labels if labels.is_floating_point() else labels.to(torch.float32)
    else:
        raise ValueError(
            f"labels must have shape (n,) or (n, {n_classes}), got {tuple(labels.shape)}."
        )
    return (1 - smoothing) * targets + smoothing / n_classes if smoothing else targets


def soft_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float = 0.0,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of a head against hard or soft labels.

    Parameters
    ----------
    logits : Tensor of shape (B, n_classes)
    labels : int64 Tensor of shape (B,) or float Tensor of shape (B, n_classes)
    smoothing : float, default=0.0
        Label smoothing, in [0, 1).
    sample_weight : Tensor of shape (B,), optional
        Non-negative; the loss is the weighted mean.

    Returns
    -------
    loss : scalar Tensor, in nats.
    """
    targets = soft_targets(labels, logits.shape[1], smoothing)
    return _mean(-(targets * F.log_softmax(logits, dim=1)).sum(dim=1), sample_weight)


def vote_nll(
    proba: Tensor,
    labels: Tensor,
    *,
    smoothing: float = 0.0,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Mean negative log-likelihood in nats of probabilities (B, n_classes), floored at 1e-7."""
    targets = soft_targets(labels, proba.shape[1], smoothing)
    return _mean(-(targets * (proba + VOTE_FLOOR).log()).sum(dim=1), sample_weight)


def _mean(values: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return values.mean()
    return (weight * values).sum() / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)
