"""FittedModel: everything a fitted classifier predicts with, as one value that never changes."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nearwise.classifier.inputs.rows import KnownColumns
from nearwise.classifier.model.predictor import Predictor
from nearwise.memory import MemoryBank


@dataclass(frozen=True)
class StreamState:
    """How far a stream has come; ids count the rows that arrived.

    `seed` decides which rows a full memory gives up. At the last refresh, or the fit,
    `refreshed_at` rows had arrived and `refreshed_size` were remembered; `first` came in the first
    fit. `declared`: `partial_fit` got all classes. `half_life`: rows after which a vote counts
    half; None where votes do not fade. `changed` counts the rows that came, went or got another
    label since the model was last judged again.
    """

    seed: int
    refreshed_at: int
    refreshed_size: int
    first: int
    declared: bool = False
    half_life: float | None = None
    changed: int = 0


class RememberedRow(NamedTuple):
    """A remembered row: its id, label as given, weight as given, and column name to value."""

    id: int
    label: Any
    weight: float
    row: dict[str, Any]


@dataclass(frozen=True, eq=False)
class FittedModel:
    """One version of a fitted classifier.

    A model that has been published is never changed, so any number of threads may predict with it.
    A change takes a `fork`, works on that, and publishes it with one assignment; readers go on with
    the version that they have.

    Attributes
    ----------
    predictor : Predictor
        Encoder, base, heads, calibration, and the memory as it is searched.
    columns : KnownColumns
        Of the training rows.
    classes : ndarray of shape (n_classes,)
    rows : DataFrame or ndarray
        The remembered rows as they were given, in the order of the memory.
    row_names : ndarray of str of shape (n_remembered,), or None
        File of every remembered image.
    weight_unit : float
        Mean sample weight in `fit`; later weights are divided by it.
    target_name : str
    stream : StreamState
    evicted : int64 Tensor of shape (n_evicted,)
        Ids that the last change forgot for the capacity.
    """

    predictor: Predictor
    columns: KnownColumns
    classes: np.ndarray
    rows: Any
    row_names: np.ndarray | None
    weight_unit: float
    target_name: str
    stream: StreamState
    evicted: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    holds_memory: ClassVar[bool] = True  # rather than a store

    @property
    def bank(self) -> MemoryBank:
        """The remembered rows: keys of every space, labels, ids, sample weights."""
        return self.predictor.views.bank

    @property
    def n_remembered(self) -> int:
        """Number of remembered rows."""
        return len(self.bank)

    @property
    def next_id(self) -> int:
        """Id that the next row gets."""
        return self.bank.next_id

    @property
    def rows_per_class(self) -> np.ndarray:
        """Number of remembered rows of each class, int64 (n_classes,)."""
        return np.bincount(self.label_positions.numpy(), minlength=self.n_classes)

    @property
    def n_classes(self) -> int:
        """Number of classes, those that came after the fit included."""
        return len(self.classes)

    @property
    def label_positions(self) -> Tensor:
        """Class positions of the remembered rows, int64 (n_remembered,)."""
        held = self.bank.labels
        return held.argmax(1) if held.ndim == 2 else held

    def labels_at(self, positions: Any = slice(None)) -> np.ndarray:
        """Labels as they were given of remembered rows, all by default, (n,)."""
        found: np.ndarray = self.classes[self.label_positions[positions].numpy()]
        return found

    def rows_at(self, positions: Any) -> Any:
        """Remembered rows at bank positions, as they were given."""
        is_table = isinstance(self.rows, pd.DataFrame)
        return self.rows.iloc[positions] if is_table else self.rows[positions]

    def fork(self) -> Self:
        """Copy the model for a change; what the change replaces is the copy's own."""
        return replace(self, predictor=self.predictor.fork())

    # What follows is for models that fetch what they need of their memory; here all is in memory.

    def for_query(self, *, remembered: bool) -> Self:
        """Give the model that a query uses, about remembered rows or others."""
        return self

    def release(self) -> None:
        """Let go of what was fetched."""

    def holding(self, ids: Any) -> Self:
        """Give a model that holds remembered rows; UnknownIdError if one is not remembered."""
        return self

    def check_changeable(self) -> None:
        """Raise ValueError where the memory is changed elsewhere."""

    def draw_id(self, rng: np.random.Generator) -> int:
        """Draw the id of a remembered row."""
        return int(rng.choice(self.bank.ids.numpy()))

    def look_up(self, ids: Any) -> list[RememberedRow]:
        """Give remembered rows by id; UnknownIdError if one is not remembered."""
        if not len(ids):
            return []
        held = self.holding(ids)
        positions = held.bank.positions(ids).tolist()
        weights = (held.bank.sample_weight[positions] * self.weight_unit).tolist()
        labels, rows = held.labels_at(positions).tolist(), held.remembered(positions)
        return list(map(RememberedRow, map(int, ids), labels, weights, rows))

    def remembered(self, positions: list[int]) -> list[dict[str, Any]]:
        """Give the training rows at bank positions, column name to value."""
        names = None if self.row_names is None else self.row_names[positions]
        return self.predictor.encoder.described(self.rows_at(positions), names)
