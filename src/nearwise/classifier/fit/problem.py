"""What a fit works on: checked settings, the encoded training rows and their folds."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ConfigDict, Field
from sklearn.model_selection import KFold, StratifiedKFold
from torch import Tensor

from nearwise.classifier.fit.embedding import AnyEncoder, AnyRows
from nearwise.classifier.inputs.images import TTAView
from nearwise.classifier.inputs.labels import judging_weight, lone_rows
from nearwise.classifier.inputs.table import LARGE, Encoded, TableEncoder
from nearwise.classifier.model.label_model import AS_GIVEN, LabelModel, Target
from nearwise.classifier.model.predictor import as_float
from nearwise.classifier.progress import Progress
from nearwise.classifier.settings import Preset, Settings
from nearwise.functional import Metric


class Unseen(NamedTuple):
    """What is known of the training rows without their own given labels.

    `keys` (n, width): neighbors in them do not depend on the labels that the neighbors carry.
    `log_proba` (n, C) are of the given labels, by networks that did not see the row; None without
    networks. `agreement` is the share of the rows held out of which two of them predict the same
    class.
    """

    keys: Tensor
    log_proba: Tensor | None = None
    agreement: float | None = None


class LabelFitter:
    """Fits the label model of a problem; this one leaves labels as they are given.

    `description` is plain data that distinguishes fitters; None for this one.
    """

    description: Any = None

    def fit(
        self,
        problem: "Problem",
        settings: "FitSettings",
        unseen: Callable[[], Unseen],
        progress: Progress,
    ) -> None:
        """Set `problem.label_model`; `unseen` gives what is known of rows without their labels."""


class FitSettings(Settings):
    """Settings and parameters of the estimator, checked for the rows at hand.

    What "auto" means is decided for all but `base`, `embedder`, `pooling` and `tta_merge`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    n_neighbors: int
    embedder: str
    base: Any
    preset: Preset
    metric: Metric
    class_prior: np.ndarray | None
    seed: int
    device: str
    validation_fraction: float | None
    n_jobs: int | None
    checkpoint: Path | None = None
    label_fitter: LabelFitter = Field(default_factory=LabelFitter)

    @property
    def fast(self) -> bool:
        """Whether to use fewer folds and candidates."""
        return self.preset == "fast"

    @property
    def search_device(self) -> torch.device | None:
        """Accelerator for searches and heads; None: the CPU."""
        device = torch.device(self.device)
        return None if device.type == "cpu" else device


@dataclass
class Problem:
    """The training rows of one fit, and what it notes: its choices and training curves.

    `views` are further views of the same rows; `ids` those of rows that were remembered before.
    """

    encoder: AnyEncoder
    rows: AnyRows
    labels: np.ndarray
    weight: np.ndarray | None
    n_classes: int
    folds: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    views: list[AnyRows] = field(default_factory=list)
    tta: tuple[TTAView, ...] = ()
    ids: Tensor | None = None
    label_model: LabelModel = AS_GIVEN
    choice: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    def target(self, member: int) -> Target:
        """Labels and weights that a fold's models are fitted to."""
        return self.label_model.target(member, self.labels, self.weight)

    @property
    def table(self) -> tuple[TableEncoder, Encoded]:
        """Encoder and rows, where they are a table's; images never come here."""
        assert isinstance(self.encoder, TableEncoder) and isinstance(self.rows, Encoded)
        return self.encoder, self.rows

    @property
    def row_weight(self) -> Tensor:
        """Weight of each row, ones by default; float32 (n,)."""
        return torch.ones(len(self.labels)) if self.weight is None else as_float(self.weight)

    @property
    def judging_weight(self) -> Tensor:
        """As `row_weight`, but 0 for the only row of a class; float32 (n,)."""
        weight = judging_weight(self.labels, self.weight)
        return self.row_weight if weight is None else as_float(weight)

    @property
    def truth(self) -> Tensor:
        """Class positions, int64 (n,)."""
        return torch.from_numpy(self.labels)

    @property
    def prior(self) -> Tensor:
        """Weighted class shares, each class counted half a row more; float32 (C,)."""
        counts = self.label_model.class_counts(self.truth, self.row_weight, self.n_classes) + 0.5
        return counts / counts.sum()


def auto_folds(n_rows: int, *, fast: bool) -> int:
    """Folds that `n_members="auto"` takes: fewer where each costs much."""
    return 3 if fast or n_rows > LARGE else 5


def cross_fit_folds(
    labels: np.ndarray, n_members: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Stratified folds; the only row of a class is never held out, and all learn from it."""
    lone = lone_rows(labels)
    rest, always = np.flatnonzero(~lone), np.flatnonzero(lone)
    return [
        (np.sort(np.concatenate([rest[train], always])), rest[held_out])
        for train, held_out in make_folds(labels[rest], n_members, seed)
    ]


def make_folds(
    labels: np.ndarray, n_members: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Stratified folds; at most as many as the largest class has rows."""
    largest = int(np.bincount(labels).max())
    n_splits = max(2, min(n_members, largest))
    # Where no class has two rows there is nothing to stratify by.
    kind = StratifiedKFold if largest > 1 else KFold
    splitter = kind(n_splits, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # A rare class is missing from some folds; the base's floor and the neighbors stand in.
        warnings.filterwarnings("ignore", message="The least populated class")
        return [
            (train, held_out) for train, held_out in splitter.split(np.zeros(len(labels)), labels)
        ]
