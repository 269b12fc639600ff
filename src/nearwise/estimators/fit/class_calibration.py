"""Per-class calibration under the class prior, used if it lowers the held-out NLL."""

import torch
from torch import Tensor

from nearwise.estimators.fit.problem import make_folds
from nearwise.estimators.model.class_prior import ClassCorrection
from nearwise.training import minimize

N_FOLDS = 5
RIDGE = 2.0  # penalty that pulls scales towards 1 and biases towards 0, in rows
FEWEST = 10  # fewest held-out rows of a class with its own scale and bias


def fit_class_correction(
    log_proba: Tensor,
    labels: Tensor,
    weight: Tensor,
    shift: Tensor,
    kinds: tuple[str, ...],
    seed: int,
) -> tuple[ClassCorrection, dict[str, float]]:
    """Choose between the shift alone and a fitted correction beside it, by cross-validated NLL.

    Rows are weighted to the class prior, so that the NLL is that at prediction time. Classes with
    fewer than 10 held-out rows share one scale and have no bias: few rows with large weights would
    overfit.

    `log_proba` (n, C) is held out or out of fold, and calibrated under the training prior; `shift`
    (C,) is the logarithm of the wanted over the training prior. Of `kinds`, "temperature" fits one
    scale, "bias" one scale and a bias per class, "vector" a scale and a bias per class. Also
    returns the weighted NLL of "prior" (the shift alone) and of each kind.
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
    # By chance p unneeded parameters change the sum of the losses in the order of sqrt(p).
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
    """Scale and bias (C,) with the lowest weighted NLL, with a ridge towards 1 and 0.

    Only classes with `free` (C,) equal to 1 get separate values.
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
