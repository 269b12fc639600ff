"""Dense contrast of two views: a position is to be recognized among the others of its image."""

import torch
import torch.nn.functional as F
from torch import Tensor


def dense_info_nce(
    anchors: Tensor,
    candidates: Tensor,
    places: Tensor,
    others: Tensor,
    *,
    temperature: float = 0.1,
    sigma: float = 0.08,
) -> Tensor:
    """Cross-entropy of finding the positions of a first view in a second one.

    The target of an anchor is spread over the candidates by a Gaussian of their distance to where
    the anchor comes to lie. Anchors that leave the view have no position there and do not count.

    Parameters
    ----------
    anchors : Tensor of shape (B, A, D)
        Unit-length features of positions in the first view.
    candidates : Tensor of shape (B, C, D)
        Unit-length features of positions in the second view.
    places : Tensor of shape (B, A, 2)
        Where the anchors come to lie in the second view, (y, x).
    others : Tensor of shape (B, C, 2)
        Where the candidates lie there.
    temperature : float, default=0.1
        Positive divisor of the cosines.
    sigma : float, default=0.08
        Deviation of the target, half the image being 1.

    Returns
    -------
    loss : scalar float32 Tensor
        Mean over the anchors that stay inside; 0 where none does.
    """
    cosine = anchors.float() @ candidates.float().transpose(1, 2)
    targets = soft_targets_by_distance(places, others, sigma)
    losses = -(targets * F.log_softmax(cosine / temperature, dim=-1)).sum(-1)
    inside = (places.abs() <= 1).all(-1)
    return (losses * inside).sum() / inside.sum().clamp_min(1)


def soft_targets_by_distance(places: Tensor, others: Tensor, sigma: float) -> Tensor:
    """Weights (B, A, C) of candidates by a Gaussian of their distance, each row summing to 1.

    Parameters
    ----------
    places, others : Tensor of shape (B, A, 2), (B, C, 2)
    sigma : float
    """
    squared = (places[:, :, None] - others[:, None]).square().sum(-1)
    return torch.softmax(squared.float() / (-2 * sigma**2), dim=-1)
