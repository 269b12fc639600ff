"""How given labels come about from the classes to predict; here they are the same."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.memory import MemoryBank

Target = tuple[np.ndarray, np.ndarray | None]  # labels, and the weight of each row


class RememberedLabels(NamedTuple):
    """Classes that a member takes the remembered rows to be of.

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

    Fits, members and memory ask this object wherever labels enter, so that none of them needs to
    know whether a label may differ from the class to predict. A subclass that says so replaces
    the methods; the methods here are the plain case.

    Attributes
    ----------
    as_given : bool
        Whether every given label is the class to predict.
    n_versions : int
        Versions of the remembered labels; member m works with number min(m, n_versions - 1).
    checkpoint_tag : str
        Tells networks fitted to other targets from those fitted to the labels as given.
    caveat : str
        What a promise about new rows takes for granted of the labels; a clause, or empty.
    """

    as_given: bool = True
    n_versions: int = 1
    checkpoint_tag: str = ""
    caveat: str = ""

    def given_log_proba(self, log_proba: Tensor) -> Tensor:
        """Log-probabilities of the given labels from those of the classes, (n, C)."""
        return log_proba

    def reading_names(self, name: str) -> tuple[str, ...]:
        """Names under which the predictions of the candidate `name` may join a pool."""
        return (name,)

    def reading(self, name: str, log_proba: np.ndarray) -> np.ndarray:
        """Turn a candidate's log-probabilities (n, C) into those of one of its `reading_names`."""
        return log_proba

    def pool_options(self, parts: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Give the pools to try of out-of-fold log-probabilities (n, C), the plainest first."""
        return [parts]

    def target(self, member: int, labels: np.ndarray, weight: np.ndarray | None) -> Target:
        """Labels and weights (n,) that a member's base and networks are fitted to."""
        return labels, weight

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
        """Whether out-of-fold scores (n, C) tell labels no better than class shares do.

        It is then warned of, and noted in `choice`.
        """
        return False

    def columns(self, rows: Tensor) -> dict[str, Tensor]:
        """Columns that the memory keeps beside the keys of these training rows."""
        return {}

    def columns_of_new(self, predict: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Columns of rows that come after the fit; `predict` gives their log-probabilities."""
        return {}

    def remembered(self) -> Self:
        """Return what stays of this model after the fit."""
        return self

    def labels(self, bank: MemoryBank, version: int) -> RememberedLabels:
        """Classes of the remembered rows, as the members of a version take them to be."""
        return RememberedLabels(bank.labels, None)

    def column(self, name: str, member: int) -> str:
        """Name of a column that depends on the labels, as a member has it."""
        return name

    def refuse_refresh(self) -> None:
        """Raise ValueError where heads cannot go on learning from the remembered labels."""


AS_GIVEN = LabelModel()
