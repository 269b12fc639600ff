"""Calibration as something to descend on: a soft-binned calibration error and the Brier score."""

import torch
from torch import Tensor


def soft_binned_ece(
    log_proba: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    *,
    n_bins: int = 15,
    width: float = 0.01,
    power: float = 2.0,
) -> Tensor:
    """Calibration error of the top label, with soft membership in its bins.

    Parameters
    ----------
    log_proba : Tensor of shape (B, C)
    labels : int64 Tensor of shape (B,)
    weight : Tensor of shape (B,), optional
        Non-negative row weights; ones by default.
    n_bins : int, default=15
        Bins of equal width; a row belongs to bin j with share softmax(-(confidence - middle_j)^2 /
        width).
    width : float, default=0.01
        Positive; smaller is nearer to hard bins.
    power : float, default=2.0
        At least 1: the error is (sum of mass * |accuracy - confidence|^power)^(1 / power).

    Returns
    -------
    error : Tensor, scalar in [0, 1]
        Differentiable in the confidences; which label is on top counts as given.

    References
    ----------
    Karandikar et al., "Soft Calibration Objectives for Neural Networks", NeurIPS 2021, sec. 3.
    """
    weight = torch.ones_like(log_proba[:, 0]) if weight is None else weight
    confidence, top = log_proba.exp().max(dim=1)
    right = (top == labels).to(confidence)
    middles = (torch.arange(n_bins).to(confidence) + 0.5) / n_bins
    member = torch.softmax(-((confidence[:, None] - middles) ** 2) / width, dim=1)
    member = member * weight[:, None]
    mass = member.sum(0)
    gap = (member * (right - confidence)[:, None]).sum(0) / mass.clamp_min(1e-12)
    error = (mass / mass.sum().clamp_min(1e-12) * gap.abs() ** power).sum()
    # The root has no slope at exactly 0, which a batch that is all right at confidence 1 reaches.
    return (error + 1e-12) ** (1 / power)


def brier_loss(log_proba: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Weighted mean squared distance of the probabilities from the one-hot label, in [0, 2]."""
    weight = torch.ones_like(log_proba[:, 0]) if weight is None else weight
    proba = log_proba.exp()
    picked = proba.gather(1, labels[:, None])[:, 0]
    each = (proba**2).sum(1) - 2 * picked + 1
    return (each * weight).sum() / weight.sum().clamp_min(1e-12)
