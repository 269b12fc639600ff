"""The log-linear pool of head and base, merging of views, and final probabilities.

Also the out-of-fold choice of the head's share and of the temperature.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from nearwise.estimators.model.class_prior import ClassCorrection
from nearwise.estimators.model.label_model import AS_GIVEN, LabelModel

PROBABILITY_FLOOR = 1e-6
Merge = Literal["probabilities", "logits"]
_VOTE_SHARPNESS = 4.0  # of distances in units of the typical neighbor distance


class Answer(NamedTuple):
    """Prediction of B rows: log-probabilities (B, C) of the parts, and the null's mass (B,)."""

    log_proba: Tensor
    base_log_proba: Tensor
    neighbor_log_proba: Tensor
    null_mass: Tensor


class Calibration(NamedTuple):
    """Temperatures of the pool, of the base and of the neighbors, and the class correction."""

    whole: float
    base: float
    neighbors: float
    classes: ClassCorrection | None = None

    def in_memory_shares(self) -> "Calibration":
        """Calibration for the class shares of the memory, without a correction to another prior."""
        elsewhere = self.classes is not None and self.classes.wanted is not None
        return self._replace(classes=None) if elsewhere else self

    def corrected(self, answer: Answer) -> Answer:
        """Correct a prediction for the class prior, before the temperatures are applied."""
        if self.classes is None:
            return answer
        alone = self.classes.of_parts()
        return answer._replace(
            log_proba=self.classes(answer.log_proba, self.whole),
            base_log_proba=alone(answer.base_log_proba, self.base),
            neighbor_log_proba=alone(answer.neighbor_log_proba, self.neighbors),
        )


@dataclass(frozen=True)
class Acceptance:
    """Share of the head against the base, and temperature, chosen by out-of-fold NLL.

    Attributes
    ----------
    share : float in [0, 1]
        Power of the head's prediction; the base has the rest. 1 without a base.
    temperature : float
        Positive divisor of the log-probabilities; 1 if no temperature was accepted.
    source : str
        Data that the calibration was fitted on.
    nll : float
        Out-of-fold NLL of the calibrated pool, in nats.
    """

    share: float
    temperature: float
    source: str
    nll: float


NOT_YET = Acceptance(1.0, 1.0, "none", float("nan"))


def joined(answers: list[Answer]) -> Answer:
    """Concatenate the predictions of blocks of rows."""
    (first, *others) = answers
    return Answer(*map(torch.cat, zip(*answers, strict=True))) if others else first


def merge_answers(views: list[Answer], merge: Merge) -> Answer:
    """Merge predictions over views: arithmetic or geometric mean of the distributions."""
    parts = [merge_views(part, merge) for part in list(zip(*views, strict=True))[:3]]
    null_mass = torch.stack([view.null_mass for view in views]).mean(0)
    return Answer(parts[0], parts[1], parts[2], null_mass)


def merge_views(parts: Sequence[Tensor], merge: Merge) -> Tensor:
    """Merge log-probabilities (n, C) over several views."""
    if merge == "probabilities":
        return torch.logsumexp(torch.stack(list(parts)), dim=0) - math.log(len(parts))
    return torch.log_softmax(torch.stack(list(parts)).mean(0), dim=1)


def shrink(head: Tensor, base: Tensor, share: float) -> Tensor:
    """Log-linear shrinkage of the head (B, C) towards the base (B, C0), new classes unchanged."""
    if share == 1.0:
        return head
    n_known = base.shape[1]
    mixed = torch.log_softmax(share * head[:, :n_known] + (1 - share) * base, dim=1)
    if head.shape[1] == n_known:
        return mixed
    rest = torch.logsumexp(head[:, :n_known], dim=1, keepdim=True)
    return torch.cat([mixed + rest, head[:, n_known:]], dim=1)


def with_new_classes(
    base_log_proba: Tensor, distances: Tensor, labels: Tensor, n_classes: int
) -> Tensor:
    """Extend base log-probabilities to new classes by their share of the neighbors, (n, C)."""
    n_known = base_log_proba.shape[1]
    near = torch.softmax(-_VOTE_SHARPNESS * distances, dim=1)
    vote = near.new_zeros(len(near), max(n_classes, int(labels.max()) + 1))
    vote = vote.scatter_add_(1, labels, near)[:, n_known:n_classes].clamp(1e-6, 1 - 1e-6)
    rest = torch.log1p(-vote.sum(1, keepdim=True).clamp_max(1 - 1e-6))
    own = torch.log_softmax(base_log_proba, dim=1)
    return torch.log_softmax(torch.cat([own + rest, torch.log(vote)], dim=1), dim=1)


def accept(
    head: Tensor,
    base: Tensor | None,
    labels: Tensor,
    weight: Tensor,
    label_model: LabelModel = AS_GIVEN,
    *,
    ridge: float = 0.0,
) -> Acceptance:
    """Choose share and temperature jointly on out-of-fold rows.

    Each is one parameter, and is used only if it lowers the out-of-fold NLL of smoothed labels by
    more than 1/n, the gain of one parameter by chance. Jointly, because an accurate but unsure
    base helps only together with a temperature.

    Parameters
    ----------
    head : Tensor of shape (n, C)
        Out-of-fold log-probabilities.
    base : Tensor of shape (n, C) or None
    labels : int64 Tensor of shape (n,)
    weight : Tensor of shape (n,)
    label_model : LabelModel, optional
        Model of the given labels, given the predicted classes.
    ridge : float, default=0.0
        Penalty on the temperature; see `fit_temperature`.
    """
    worth = 1.0 / len(labels)
    sources = "out-of-fold head (no temperature needed)", "out-of-fold temperature"
    shares = [1.0] if base is None else [1.0, *np.linspace(0.0, 0.95, 20).tolist()]
    tried: list[tuple[float, Acceptance]] = []
    for share in shares:
        mixed = head if base is None else shrink(head, base, share)
        fitted = fit_temperature(mixed, labels, weight, label_model, ridge=ridge)
        plain = 1.0, mean_nll(mixed, labels, weight, label_model)
        for (temperature, nll), source in zip((plain, fitted), sources, strict=True):
            tempered = torch.log_softmax(mixed / temperature, dim=1)
            cost = worth * ((share != 1.0) + (source == sources[1]))
            found = Acceptance(share, temperature, source, nll)
            tried.append((smoothed_nll(tempered, labels, weight, label_model) + cost, found))
    return min(tried, key=lambda found: found[0])[1]


def clearly_better(
    log_proba: Tensor,
    other: Tensor,
    labels: Tensor,
    weight: Tensor,
    label_model: LabelModel = AS_GIVEN,
) -> bool:
    """Whether predictions (n, C) of new rows are better than others by more than chance.

    That is, the NLL of smoothed labels is lower by over 1/n and by over one standard error of the
    paired differences.
    """
    before, after = (
        smoothed_losses(label_model.given_log_proba(one), labels) for one in (other, log_proba)
    )
    share = weight / weight.sum()
    gain = ((before - after) * share).sum()
    error = ((before - after - gain) * share).norm()
    return bool(gain > max(1 / len(labels), float(error)))


def fit_temperature(
    log_proba: Tensor,
    labels: Tensor,
    weight: Tensor,
    label_model: LabelModel = AS_GIVEN,
    *,
    ridge: float = 0.0,
) -> tuple[float, float]:
    """Temperature with the lowest NLL of smoothed labels, and the NLL at it.

    The search runs over the logarithm in [-3, 3]; `ridge` times its square is added to the
    objective.
    """

    def tempered(log_t: float) -> Tensor:
        return torch.log_softmax(log_proba / float(np.exp(log_t)), dim=1)

    def objective(log_t: float) -> float:
        return smoothed_nll(tempered(log_t), labels, weight, label_model) + ridge * log_t**2

    log_t = float(minimize_scalar(objective, bounds=(-3.0, 3.0), method="bounded").x)
    return float(np.exp(log_t)), mean_nll(tempered(log_t), labels, weight, label_model)


def mean_nll(
    log_proba: Tensor, labels: Tensor, weight: Tensor, label_model: LabelModel = AS_GIVEN
) -> float:
    """Weighted NLL of the labels, in nats, from log-probabilities (n, C) of the classes."""
    given = label_model.given_log_proba(log_proba)
    losses = torch.nn.functional.nll_loss(given, labels, reduction="none")
    return float((losses * weight).sum() / weight.sum())


def smoothed_losses(given_log_proba: Tensor, labels: Tensor) -> Tensor:
    """NLL (n,), in nats, of labels smoothed by half a row spread over all classes.

    Probabilities are floored like predictions. If all of a few rows are predicted right, the plain
    NLL is lowest for certain predictions, and one wrong new row then costs more than all of them
    gained. With many rows the half row hardly counts.

    References
    ----------
    Platt, "Probabilistic Outputs for Support Vector Machines", 1999, sec. 2.2.
    """
    floored = given_log_proba.clamp_min(math.log(PROBABILITY_FLOOR))
    half = 0.5 / (len(labels) + 0.5)
    return F.cross_entropy(floored, labels, reduction="none", label_smoothing=half)


def smoothed_nll(
    log_proba: Tensor, labels: Tensor, weight: Tensor, label_model: LabelModel = AS_GIVEN
) -> float:
    """Weighted mean of `smoothed_losses`, from log-probabilities (n, C) of the classes."""
    losses = smoothed_losses(label_model.given_log_proba(log_proba), labels)
    return float((losses * weight).sum() / weight.sum())


def finish(log_proba: Tensor, temperature: float) -> np.ndarray:
    """Probabilities at a temperature, floored and normalised, float64 (n, C)."""
    proba = torch.softmax(log_proba.double() / temperature, dim=1)
    floored = proba.clamp_min(PROBABILITY_FLOOR)
    result: np.ndarray = (floored / floored.sum(1, keepdim=True)).numpy()
    return result
