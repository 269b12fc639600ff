"""Predictor: the common fitted parts of classifiers and regressors."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.cached import cached_property
from nearwise.estimators.fit.base import BAYES
from nearwise.estimators.inputs.images import ImageEncoder, TTAView
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.memory_views import FOLD, MemoryViews
from nearwise.estimators.model.row_models import GAUSSIAN, RowModels


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor:
    """The fitted parts of an estimator, immutable once the model is published.

    Attributes
    ----------
    encoder : TableEncoder or ImageEncoder
        Turns given rows into numbers and codes, or pixels.
    row_models : RowModels
        Turn encoded rows into keys and predictions of the base.
    views : MemoryViews
        The memory: key spaces, columns, indexes.
    choice : dict
        Choices of the fit, with the out-of-fold loss behind each.
    history : list of dict
    tta : tuple of str
        Image views that `fit` made.
    n_views : int
        Views of every row in `fit`, the first included.
    """

    encoder: TableEncoder | ImageEncoder
    row_models: RowModels
    views: MemoryViews
    choice: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    tta: tuple[TTAView, ...] = ()
    n_views: int = 1

    @cached_property
    def has_base(self) -> bool:
        """Whether there is a base; without one, the class shares replace it."""
        return self.row_models.has_base

    @property
    def forgets_exactly(self) -> bool:
        """Whether the fit has a closed form, so that `remove` refits and forgets exactly."""
        return self._base_is_closed and "head" not in self.choice

    @property
    def _base_is_closed(self) -> bool:
        """Whether the base, if any, is fitted in closed form, and predicts each row left out."""
        return not self.has_base or {*self.choice["base"]} <= {GAUSSIAN, BAYES}

    @property
    def held_rows_out(self) -> bool:
        """Whether the fit held out one fold: base and keys were trained on all other rows."""
        return "held_out" in self.choice

    @property
    def judged(self) -> Tensor:
        """Mask of calibration rows: base and keys were not trained on their labels, bool (n,)."""
        return self.views.bank.columns[FOLD] >= 0

    def fork(self) -> Self:
        """Shallow copy for copy-on-write changes."""
        return replace(self, views=self.views.fork(), choice=dict(self.choice))

    def to(self, device: torch.device) -> None:
        """Move networks and the searches of their keys to a device; head and bank stay."""
        for network in self.row_models.networks:
            network.to(device)
        if self.held_rows_out:
            self.views.to(device)

    def feature_keys(self, rows: Any) -> Tensor:
        """Keys of new rows in the space "features"."""
        return self.row_models.feature_keys(rows).cpu()

    def keys_of(self, views: list[Any]) -> dict[str, Tensor]:
        """Keys of rows in all key spaces, averaged over their views, on the CPU."""
        return self.keys_of_new(views)[0]

    def keys_of_new(self, views: list[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Keys and bank columns of rows to add to the memory."""
        raise NotImplementedError


def as_float(array: np.ndarray) -> Tensor:
    """Turn an array into a float32 tensor."""
    return torch.from_numpy(np.ascontiguousarray(array)).float()
