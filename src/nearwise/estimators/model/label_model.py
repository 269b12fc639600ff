"""How given labels come about from the classes to predict; here they are the same."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.memory import MemoryBank

# Labels (n,), or for networks of images their probabilities (n, C), and the weight of each row.
Target = tuple[np.ndarray, np.ndarray | None]
Fold = tuple[np.ndarray, np.ndarray]  # positions of the rows to learn from, and of those held out


class RememberedLabels(NamedTuple):
    """Classes that the remembered rows are taken to be of.

    Attributes
    ----------
    labels : int64 Tensor of shape (n,)
    certainty : Tensor of shape (n,), or None
        Their probabilities; None where all are certain.
    """

    labels: Tensor
    certainty: Tensor | None


class LabelModel:
    """Labels are taken as they are given.

    Fits and memory use this object wherever labels enter, so that none of them needs to know
    whether a label may differ from the class to predict. A subclass for labels that may differ
    replaces the methods; the methods here are the plain case.

    Attributes
    ----------
    as_given : bool
        Whether every given label is the class to predict.
    caveat : str
        What a promise about new rows takes for granted of the labels; a clause, or empty.
    """

    as_given: bool = True
    caveat: str = ""

    def given_log_proba(self, log_proba: Tensor) -> Tensor:
        """Log-probabilities of the given labels from those of the classes, (n, C)."""
        return log_proba

    def target(self, labels: np.ndarray, weight: np.ndarray | None) -> Target:
        """Labels and weights (n,) that networks are fitted to."""
        return labels, weight

    def likelihood(self, labels: np.ndarray) -> Tensor | None:
        """Probability of each given label for every class (n, C), where networks correct labels."""
        return None

    def class_counts(self, labels: Tensor, weight: Tensor, n_classes: int) -> Tensor:
        """Weighted number of the training rows of each class, (n_classes,)."""
        return torch.zeros(n_classes).scatter_add_(0, labels, weight)

    def class_weights(self, labels: np.ndarray, n_classes: int) -> np.ndarray:
        """How much rows with these labels count as each class, float64 (n, n_classes)."""
        weights: np.ndarray = np.eye(n_classes)[labels]
        return weights

    def tells_nothing(
        self, scores: Tensor, labels: Tensor, weight: Tensor, choice: dict[str, Any]
    ) -> bool:
        """Whether out-of-fold scores (n, C) predict labels no better than class shares do.

        If so, that is warned of, and noted in `choice`.
        """
        return False

    def columns(self, rows: Tensor) -> dict[str, Tensor]:
        """Columns that the memory keeps beside the keys of these training rows."""
        return {}

    def columns_of_new(self, predict: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Columns of rows that come after the fit; `predict` gives their log-probabilities."""
        return {}

    def of_fold(self, fold: int) -> Self:
        """Return what is known without any given label of the rows that a fold holds out."""
        return self

    def of_all(self, folds: list[Fold]) -> Self:
        """Return what is known of each row without the given labels of its own fold."""
        return self

    def remembered(self) -> Self:
        """Return what stays of this model after the fit."""
        return self

    def labels(self, bank: MemoryBank) -> RememberedLabels:
        """Classes of the remembered rows, as they are taken to be."""
        return RememberedLabels(bank.labels, None)

    def refuse_refresh(self) -> None:
        """Raise ValueError where heads cannot go on learning from the remembered labels."""


AS_GIVEN = LabelModel()
