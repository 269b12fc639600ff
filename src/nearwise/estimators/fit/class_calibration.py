"""Per-class calibration under the class prior, kept where the held-out NLL falls."""

import torch
from torch import Tensor

from nearwise.estimators.fit.problem import make_folds
from nearwise.estimators.model.class_prior import ClassCorrection
from nearwise.training import minimize

N_FOLDS = 5
RIDGE = 2.0  # pull of scales towards 1 and of biases towards 0, in rows
FEWEST = 10  # held-out rows of a class that get it a scale or a bias of its own


def fit_class_correction(
    log_proba: Tensor,
    labels: Tensor,
    weight: Tensor,
    shift: Tensor,
    kinds: tuple[str, ...],
    seed: int,
) -> tuple[ClassCorrection, dict[str, float]]:
    """Choose between the shift alone and a fitted correction beside it, by cross-validated NLL.

    A row counts as often as its class occurs under the prior, so that the NLL is that of
    the world the prediction is for. Classes with fewer than 10 held-out rows share one scale and
    have no bias: few rows, each counting for many, would be followed too far.

    `log_proba` (n, C) is held out or out of fold, and calibrated under the training shares; `shift`
    (C,) is the logarithm of the wanted over the training shares. Of `kinds`, "temperature" fits one
    scale, "bias" a scale and a bias per class, "vector" a scale and a bias per class each. Beside
    the correction comes the weighted NLL of "prior" (the shift alone) and of each kind.
    """
    scores = torch.log_softmax(log_proba.double(), dim=1) + shift
    importance = weight.double() * torch.exp(shift)[labels]
    folds = [
        (torch.from_numpy(train), torch.from_numpy(held_out))
        for train, held_out in make_folds(labels.numpy(), N_FOLDS, seed)
    ]
    n_classes = scores.shape[1]
    free = (torch.bincount(labels, minlength=n_classes) >= FEWEST).double()
    nll = {"prior": _nll(scores, labels, importance)}
    for kind in kinds:
        held = torch.zeros_like(scores)
        for train, rows in folds:
            scale, bias = _fit(kind, scores[train], labels[train], importance[train], free)
            held[rows] = scale * scores[rows] + bias
        nll[kind] = _nll(held, labels, importance)
    n_effective = float(importance.sum() ** 2 / (importance**2).sum().clamp_min(1e-12))
    # What p parameters that are not needed move the sum of the losses by is of the order sqrt(p).
    chance = {"prior": 0.0, "temperature": 1.0, "bias": 1.0 + n_classes, "vector": 2.0 * n_classes}
    best = min(nll, key=lambda kind: nll[kind] + chance[kind] ** 0.5 / n_effective)
    scale, bias = torch.ones(n_classes), torch.zeros(n_classes)
    if best != "prior":
        scale, bias = _fit(best, scores, labels, importance, free)
    shifts, scales, biases = (tuple(values.tolist()) for values in (shift, scale, bias))
    return ClassCorrection(shifts, scales, biases, best), nll


def _nll(scores: Tensor, labels: Tensor, weight: Tensor) -> float:
    losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    return float((losses * weight).sum() / weight.sum())


def _fit(
    kind: str, scores: Tensor, labels: Tensor, weight: Tensor, free: Tensor
) -> tuple[Tensor, Tensor]:
    """Scale and bias (C,) with the lowest weighted NLL, held to 1 and 0 by a ridge.

    Only the classes where `free` (C,) is 1 get values of their own.
    """
    shared = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    apart = torch.zeros_like(free, requires_grad=True)
    shift = torch.zeros_like(free, requires_grad=True)
    learned = {"temperature": [shared], "bias": [shared, shift]}.get(kind, [shared, apart, shift])
    n_effective = weight.sum() ** 2 / (weight**2).sum().clamp_min(1e-12)
    share = weight / weight.sum()

    def fitted() -> tuple[Tensor, Tensor]:
        return torch.exp(shared + free * apart), free * shift

    def loss() -> Tensor:
        scale, bias = fitted()
        losses = torch.nn.functional.cross_entropy(scale * scores + bias, labels, reduction="none")
        pull = sum((parameter**2).sum() for parameter in learned)
        return (losses * share).sum() + RIDGE / n_effective * pull

    minimize(learned, loss)
    with torch.no_grad():
        return fitted()
