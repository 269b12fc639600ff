"""Losses of the original study, on a batch's embeddings and its most confident rows."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from nearwise.nn import soft_targets


def supervised_contrastive(
    keys: Tensor,
    labels: Tensor,
    n_classes: int,
    *,
    temperature: float = 0.1,
    over: Literal["rows", "pairs"] = "rows",
) -> Tensor:
    """Supervised contrastive loss over a batch: pull a row to the rows of its class.

    Each row is left out of its own softmax; the loss of a row is the mean over its positives;
    rows without a positive are skipped. Soft labels weigh a pair by the probability that both
    are of one class, which for hard labels is exactly 0 or 1.

    Parameters
    ----------
    keys : Tensor of shape (B, D)
        Scaled to unit length here. Two views of a row may both be in the batch: they are
        positives of each other.
    labels : int64 Tensor of shape (B,) or float Tensor of shape (B, n_classes)
    n_classes : int
    temperature : float, default=0.1
        Positive divisor of the cosine similarity.
    over : {"rows", "pairs"}, default="rows"
        Whether all rows count alike, or all pairs, so that rows of large classes count more.

    Returns
    -------
    loss : scalar Tensor; 0 where no row has a positive.

    References
    ----------
    Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, eq. 2.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    unit = F.normalize(keys, dim=1)
    similarity = unit @ unit.T / temperature
    self_pair = torch.eye(len(keys), dtype=torch.bool, device=keys.device)
    log_total = similarity.masked_fill(self_pair, -torch.inf).logsumexp(dim=1, keepdim=True)
    targets = soft_targets(labels, n_classes)
    pairs = (targets @ targets.T).masked_fill(self_pair, 0.0)
    pair_loss, mass = log_total - similarity, pairs.sum(dim=1)
    has_positive = mass > 0
    if not has_positive.any():
        return 0.0 * pair_loss.nan_to_num(0.0, 0.0, 0.0).sum()
    total, mass = (pairs * pair_loss)[has_positive].sum(dim=1), mass[has_positive]
    return total.sum() / mass.sum() if over == "pairs" else (total / mass).mean()


def selective_risk(losses: Tensor, confidence: Tensor) -> Tensor:
    """Mean loss of the most confident rows, averaged over coverages: AURC with any loss.

    Parameters
    ----------
    losses : Tensor of shape (B,)
    confidence : Tensor of shape (B,)
        Ranks the rows; no gradient goes through it.

    References
    ----------
    Geifman and El-Yaniv, "SelectiveNet", ICML 2019, train for one coverage; here all count.
    """
    kept = torch.arange(1, len(losses) + 1, device=losses.device)
    # The i-th surest row is in every mean of i rows and more.
    shares = (1 / kept).flip(0).cumsum(0).flip(0)
    return (shares * losses[confidence.argsort(descending=True)]).mean()
