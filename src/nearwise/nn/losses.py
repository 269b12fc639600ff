"""Losses for keys, neighbor votes and heads; every one takes hard or soft labels."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

# A vote for the right class counts at least this much, as in ModernNCA: a row whose class is
# nowhere near gives a large but finite loss.
VOTE_FLOOR = 1e-7


def soft_targets(labels: Tensor, n_classes: int, smoothing: float = 0.0) -> Tensor:
    """Class probabilities of hard or soft labels, smoothed.

    Parameters
    ----------
    labels : int64 Tensor of shape (n,) or float Tensor of shape (n, n_classes)
    n_classes : int
    smoothing : float, default=0.0
        Share in [0, 1) of each target that is spread evenly over the classes.

    Returns
    -------
    targets : float Tensor of shape (n, n_classes)
        Rows sum to 1 where the soft labels do.
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


def leave_self_out(scores: Tensor, query_ids: Tensor, candidate_ids: Tensor) -> Tensor:
    """Set the score of a query's own row (or rows) to minus infinity, found by id.

    Parameters
    ----------
    scores : Tensor of shape (B, N)
        Log-weights of candidates.
    query_ids : int64 Tensor of shape (B,) or (B, m)
        Ids to leave out for each query; m = 2 for a MixUp query, which has two sources.
    candidate_ids : int64 Tensor of shape (N,)

    Returns
    -------
    scores : Tensor of shape (B, N)

    Raises
    ------
    ValueError
        If a query has no candidate left.
    """
    own = query_ids.reshape(len(query_ids), -1, 1) == candidate_ids
    own = own.squeeze(1) if own.shape[1] == 1 else own.any(dim=1)
    if (own.sum(dim=1) == len(candidate_ids)).any():
        raise ValueError(
            "A query has no candidate left after leaving out its own row "
            f"({len(candidate_ids)} candidates). Pass more candidates."
        )
    return scores.masked_fill(own, -torch.inf)


def vote_nll(
    proba: Tensor,
    labels: Tensor,
    *,
    smoothing: float = 0.0,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Negative log-likelihood of probabilities (B, n_classes), floored at 1e-7, in nats."""
    targets = soft_targets(labels, proba.shape[1], smoothing)
    return _mean(-(targets * (proba + VOTE_FLOOR).log()).sum(dim=1), sample_weight)


def supervised_contrastive(
    keys: Tensor, labels: Tensor, n_classes: int, *, temperature: float = 0.1
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

    Returns
    -------
    loss : scalar Tensor; 0 where no row has a positive.

    References
    ----------
    Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, eq. 2.
    """
    similarity, log_total, pairs = _contrast(keys, labels, n_classes, temperature)
    return _mean_over_positives(log_total - similarity, pairs)


def margin_contrastive(
    keys: Tensor,
    labels: Tensor,
    n_classes: int,
    *,
    margin: float = 0.5,
    temperature: float = 0.1,
) -> Tensor:
    """Margin form of the contrastive loss: ``-log(exp(s_pos + m) / sum exp(s))``, at least 0.

    The sum runs over all other rows of the batch. As written, the margin only shifts the value;
    floored at 0 a pair whose share of the softmax has reached ``exp(-m)`` is unchanged, which is
    what a margin is for.

    Parameters
    ----------
    keys, labels, n_classes, temperature
        As in `supervised_contrastive`.
    margin : float, default=0.5
        In the unit of the scaled similarity; not negative.

    Returns
    -------
    loss : scalar Tensor, not negative.
    """
    similarity, log_total, pairs = _contrast(keys, labels, n_classes, temperature)
    return _mean_over_positives((log_total - similarity - margin).clamp_min(0.0), pairs)


def contrastive(
    kind: Literal["supervised", "margin"],
    keys: Tensor,
    labels: Tensor,
    n_classes: int,
    *,
    temperature: float = 0.1,
    margin: float = 0.5,
) -> Tensor:
    """Call the loss named `kind`: `supervised_contrastive` or `margin_contrastive`."""
    if kind == "supervised":
        return supervised_contrastive(keys, labels, n_classes, temperature=temperature)
    if kind == "margin":
        return margin_contrastive(keys, labels, n_classes, margin=margin, temperature=temperature)
    raise ValueError(f'kind must be "supervised" or "margin", got {kind!r}.')


def weight_entropy(scores: Tensor) -> Tensor:
    """Mean entropy, in nats, of the weights ``softmax(scores)`` over candidates, scalar.

    Parameters
    ----------
    scores : Tensor of shape (B, N)
        Log-weights; minus infinity leaves a candidate out and adds nothing.
    """
    log_weights = torch.log_softmax(scores, dim=1)
    return -(log_weights.exp() * log_weights.clamp_min(-1e4)).sum(dim=1).mean()


def _contrast(
    keys: Tensor, labels: Tensor, n_classes: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled similarities (B, B), log of their sum over others (B, 1), weights of pairs (B, B)."""
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    unit = F.normalize(keys, dim=1)
    similarity = unit @ unit.T / temperature
    self_pair = torch.eye(len(keys), dtype=torch.bool, device=keys.device)
    log_total = similarity.masked_fill(self_pair, -torch.inf).logsumexp(dim=1, keepdim=True)
    targets = soft_targets(labels, n_classes)
    return similarity, log_total, (targets @ targets.T).masked_fill(self_pair, 0.0)


def _mean_over_positives(pair_loss: Tensor, pairs: Tensor) -> Tensor:
    mass = pairs.sum(dim=1)
    has_positive = mass > 0
    if not has_positive.any():
        return pair_loss.new_zeros(()) + 0.0 * pair_loss.nan_to_num(0.0, 0.0, 0.0).sum()
    row_loss = (pairs * pair_loss)[has_positive].sum(dim=1) / mass[has_positive]
    return row_loss.mean()


def _mean(values: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return values.mean()
    return (weight * values).sum() / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)
