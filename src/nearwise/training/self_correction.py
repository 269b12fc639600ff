"""Labels, some of them wrong, that follow a network's own predictions while it trains."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

_LEAST = 1e-3  # of a probability, before a prediction joins the average


@dataclass(frozen=True)
class SelfCorrection:
    """How labels follow the network's own predictions of the rows it is trained on.

    A network learns what is common to many rows long before it learns single wrong labels (Liu et
    al., "Early-Learning Regularization Prevents Memorization of Noisy Labels", NeurIPS 2020), and
    learns them later if what it knew by then becomes its target. After a warm-up each epoch starts
    with new labels: the moving average of the predictions of a row in the training steps so far,
    raised to a power, times the likelihood of the label that was given.

    Parameters
    ----------
    likelihood : Tensor of shape (n, n_classes)
        Probability of each training row's given label if a class is the true one.
    momentum : float, default=0.7
        Share of a row's average that stays when the row is predicted again, in [0, 1).
    power : float, default=2.0
        Positive. Predictions of changed images are too unsure: with a power of 1 labels grow
        less sure from epoch to epoch.
    warmup : float, default=1/6
        Share of the epochs in which labels stay as they are, one epoch at least.
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

    Not a number for rows that were in no step yet.
    """

    def __init__(self, settings: SelfCorrection, smoothing: float, device: torch.device) -> None:
        self._settings, self._smoothing = settings, smoothing
        self._likelihood = settings.likelihood.to(device, torch.float32)
        self.average = torch.full_like(self._likelihood, torch.nan)

    @torch.no_grad()
    def note(self, positions: Tensor, logits: Tensor) -> None:
        """Take predictions (B, C) of the rows at these positions into their averages."""
        n_classes = logits.shape[1]
        # A network fitted to smoothed labels predicts these.
        proba = torch.softmax(logits.float(), dim=1) - self._smoothing / n_classes
        proba = normalize(proba.div(1 - self._smoothing).clamp_min(_LEAST), p=1, dim=1)
        former, momentum = self.average[positions], self._settings.momentum
        mixed = momentum * former + (1 - momentum) * proba
        self.average[positions] = torch.where(former.isnan(), proba, mixed)

    def labels(self) -> Tensor:
        """Probabilities of the true labels, (n, C)."""
        known = self.average.nan_to_num(1 / self.average.shape[1])
        return normalize(known**self._settings.power * self._likelihood, p=1, dim=1)
