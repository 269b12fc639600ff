"""Models of the given labels, given the true classes; in this one both are equal."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.memory import MemoryBank

# Labels (n,), or for image networks their probabilities (n, C), and the weight of each row.
Target = tuple[np.ndarray, np.ndarray | None]
Fold = tuple[np.ndarray, np.ndarray]  # positions of training rows and of held-out rows


class RememberedLabels(NamedTuple):
    """Estimated true classes of the remembered rows.

    Attributes
    ----------
    labels : int64 Tensor of shape (n,)
    certainty : Tensor of shape (n,), or None
        Probabilities of these classes; None if all are certain.
    """

    labels: Tensor
    certainty: Tensor | None


class LabelModel:
    """Label model without wrong labels: every given label is the true class.

    Fits and memory access labels only through this object, so that the code is the same with and
    without wrong labels. A subclass for wrong labels overrides the methods.

    Attributes
    ----------
    as_given : bool
        Whether every given label is the true class.
    caveat : str
        Assumption about the labels behind guarantees for new rows; a clause, or empty.
    """

    as_given: bool = True
    caveat: str = ""

    def given_log_proba(self, log_proba: Tensor) -> Tensor:
        """Log-probabilities of the given labels from log-probabilities of the classes, (n, C)."""
        return log_proba

    def target(self, labels: np.ndarray, weight: np.ndarray | None) -> Target:
        """Training labels and weights (n,) of networks."""
        return labels, weight

    def likelihood(self, labels: np.ndarray) -> Tensor | None:
        """Likelihood of each given label under every class (n, C); None without wrong labels."""
        return None

    def class_counts(self, labels: Tensor, weight: Tensor, n_classes: int) -> Tensor:
        """Weighted number of training rows per class, (n_classes,)."""
        return torch.zeros(n_classes).scatter_add_(0, labels, weight)

    def class_weights(self, labels: np.ndarray, n_classes: int) -> np.ndarray:
        """Weights of rows with these labels in each class, float64 (n, n_classes)."""
        weights: np.ndarray = np.eye(n_classes)[labels]
        return weights

    def tells_nothing(
        self, scores: Tensor, labels: Tensor, weight: Tensor, choice: dict[str, Any]
    ) -> bool:
        """Whether out-of-fold scores (n, C) predict labels no better than class shares.

        If so, warns and records it in `choice`.
        """
        return False

    def columns(self, rows: Tensor) -> dict[str, Tensor]:
        """Columns of the memory for these training rows."""
        return {}

    def columns_of_new(self, predict: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Columns of rows added after the fit; `predict` returns their log-probabilities."""
        return {}

    def of_fold(self, fold: int) -> Self:
        """Label model that uses no given label of the rows that a fold holds out."""
        return self

    def of_all(self, folds: list[Fold]) -> Self:
        """Label model that for each row uses no given label of its fold."""
        return self

    def remembered(self) -> Self:
        """Label model to store with the fitted model."""
        return self

    def labels(self, bank: MemoryBank) -> RememberedLabels:
        """Estimated true classes of the remembered rows."""
        return RememberedLabels(bank.labels, None)

    def refuse_refresh(self) -> None:
        """Raise ValueError if heads cannot be trained further on the remembered labels."""


AS_GIVEN = LabelModel()
