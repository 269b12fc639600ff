"""Correction of wrong training labels by a network's own predictions during training."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

_LEAST = 1e-3  # lower bound of a prediction in the average


@dataclass(frozen=True)
class SelfCorrection:
    """Settings of the correction of training labels by the network's own predictions.

    A network learns common patterns long before it memorizes single wrong labels (Liu et al.,
    "Early-Learning Regularization Prevents Memorization of Noisy Labels", NeurIPS 2020). Targets
    from its early predictions delay the memorization. After a warm-up each epoch has new labels:
    the moving average of a row's predictions in the training steps so far, raised to a power, times
    the likelihood of the given label.

    Parameters
    ----------
    likelihood : Tensor of shape (n, n_classes)
        Probability of each row's given label, per true class.
    momentum : float, default=0.7
        Weight of the former average at each new prediction of a row, in [0, 1).
    power : float, default=2.0
        Positive exponent. Predictions of augmented images are underconfident: with a power of 1
        the confidence of labels falls from epoch to epoch.
    warmup : float, default=1/6
        Share of the epochs with the given labels, at least one epoch.
    """

    likelihood: Tensor
    momentum: float = 0.7
    power: float = 2.0
    warmup: float = 1 / 6

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}.")
        if self.power <= 0:
            raise ValueError(f"power must be positive, got {self.power}.")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup is a share of the epochs, in [0, 1]; got {self.warmup}.")
        usable = self.likelihood.isfinite() & (self.likelihood >= 0)
        if self.likelihood.ndim != 2 or not usable.all() or not self.likelihood.any(dim=1).all():
            raise ValueError(
                "likelihood must hold probabilities of shape (n, n_classes), and each row's given "
                "label must be possible in some class."
            )


class FollowedPredictions:
    """Moving averages (n, C) of a network's predictions in its training steps.

    NaN for rows without a step so far.
    """

    def __init__(self, settings: SelfCorrection, smoothing: float, device: torch.device) -> None:
        self._settings, self._smoothing = settings, smoothing
        self._likelihood = settings.likelihood.to(device, torch.float32)
        self.average = torch.full_like(self._likelihood, torch.nan)

    @torch.no_grad()
    def note(self, positions: Tensor, logits: Tensor) -> None:
        """Update the averages of the rows at these positions with predictions (B, C)."""
        n_classes = logits.shape[1]
        # A network fitted to smoothed labels predicts smoothed probabilities.
        proba = torch.softmax(logits.float(), dim=1) - self._smoothing / n_classes
        proba = normalize(proba.div(1 - self._smoothing).clamp_min(_LEAST), p=1, dim=1)
        former, momentum = self.average[positions], self._settings.momentum
        mixed = momentum * former + (1 - momentum) * proba
        self.average[positions] = torch.where(former.isnan(), proba, mixed)

    def labels(self) -> Tensor:
        """Return probabilities of the true labels, (n, C)."""
        known = self.average.nan_to_num(1 / self.average.shape[1])
        return normalize(known**self._settings.power * self._likelihood, p=1, dim=1)
