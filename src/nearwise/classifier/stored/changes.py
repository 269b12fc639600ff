"""Changes of a memory in a store: what of each row is to be written, and what follows of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.inputs.labels import check_labels, label_values, positions_among
from nearwise.classifier.online.changes import Bound, NewRows, classes_with
from nearwise.classifier.stored.facts import Counted, relabelled, rows_to_add, stored, with_counts
from nearwise.classifier.stored.row_codec import RowCodec
from nearwise.classifier.stored.working_set import MemorySummary, StoredFittedModel
from nearwise.memory.stores import RowReader, StoredRows

_FEWEST = 2  # rows that a memory keeps


@dataclass(frozen=True)
class Pending:
    """What a change writes; the fields are those of `Edit`."""

    put: StoredRows
    removed: np.ndarray
    summary: MemorySummary


@dataclass(frozen=True, eq=False)
class ChangeableModel(StoredFittedModel):
    """A version of a model in a store, or what a change would make of it: then it is `pending`."""

    pending: Pending | None = None

    def check_changeable(self) -> None:
        """Refuse changes that the store would not see."""
        raise ValueError(
            "The memory of this model is in a store, whose changes are to survive. Make them by "
            "the add, remove and relabel of nearwise.classifier.open_live(FOLDER), or by the "
            "commands of these names."
        )

    def at(self, reader: RowReader) -> Self:
        """Give another version."""
        return replace(super().at(reader), pending=None)

    def with_rows(self, new: NewRows, bound: Bound) -> tuple[Self, Tensor]:
        """Remember rows, of new classes too; give the change, and the new rows' ids."""
        if bound.capacity is not None:
            raise ValueError(
                f"capacity={bound.capacity} was given, and a memory in a store does not forget "
                "rows by itself. Leave it out, and remove rows."
            )
        n_views = self.predictor.n_views
        if len(new.views) != n_views:
            raise ValueError(
                f"The remembered keys are means over {n_views} views of a row, and "
                f"{len(new.views)} were given. Give as many (views=[...])."
            )
        present, codes = check_labels(new.y, len(new.given))
        positions, fresh = positions_among(self.classes, present)
        if fresh and self.predictor.has_base:
            raise ValueError(
                f"Rows of the new classes {fresh[:5]} cannot be added to a memory in a store "
                "whose model has a base: what the base predicts for them depends on the whole "
                "memory. Add them to the model before 'nearwise move', or fit with base=None."
            )
        classes = classes_with(self.classes, fresh)
        fork = self.fetching()
        memory, labels = stored(fork), positions[codes]
        codec = RowCodec(memory.summary.row_schemas)
        weight = None if new.weight is None else new.weight / self.weight_unit
        rows, counted = rows_to_add(fork, new.views, new.given, new.names, labels, weight, codec)
        summary = with_counts(memory.summary, classes, labels, counted, 1)
        summary = replace(summary, next_id=summary.next_id + len(rows), row_schemas=codec.schemas)
        nothing = np.empty(0, np.int64)
        return self._pending(rows, nothing, summary), torch.from_numpy(rows.ids)

    def without_rows(self, ids: Any, *, forget_classes: bool) -> Self:
        """Forget remembered rows by id."""
        gone = _distinct(ids)
        if not len(gone):
            return self._unchanged()
        fork = self.holding(gone)
        memory = stored(fork)
        positions = memory.bank.positions(torch.from_numpy(gone))
        summary = self._counted(fork, positions, -1, memory.summary)
        if summary.n_rows < _FEWEST:
            raise ValueError(
                f"Removing {len(gone)} of {memory.summary.n_rows} rows leaves fewer than "
                f"{_FEWEST}. Keep at least {_FEWEST}."
            )
        self._refuse_emptied(memory.summary, summary, forget_classes)
        return self._pending(memory.reader.fetch(gone[:0], rows=True), gone, summary)

    def with_labels(self, ids: Any, labels: np.ndarray, *, forget_classes: bool) -> Self:
        """Give remembered rows other labels, as class positions."""
        changed = np.asarray(ids, dtype=np.int64).reshape(-1)
        if len(np.unique(changed)) != len(changed) or len(changed) != len(labels):
            raise ValueError(
                f"{len(changed)} ids and {len(labels)} labels were given. Give one label for each "
                "id, and each id once."
            )
        if not len(changed):
            return self._unchanged()
        fork = self.holding(changed)
        memory = stored(fork)
        positions = memory.bank.positions(torch.from_numpy(changed))
        summary = self._counted(fork, positions, -1, memory.summary)
        put = relabelled(fork, changed, labels)
        summary = self._counted(fork, memory.hold(changed), 1, summary)
        self._refuse_emptied(memory.summary, summary, forget_classes)
        return self._pending(put, np.empty(0, np.int64), summary)

    def imagined(self, removed: Any, labels: Mapping[int, Any]) -> Self:
        """Copy that takes some rows for removed and others for labelled otherwise."""
        positions, unknown = positions_among(self.classes, label_values(list(labels.values())))
        if unknown:
            raise ValueError(f"Labels {unknown[:5]} are not among the classes.")
        self.holding(list(labels))  # refuses ids that are not remembered
        gone, summary = _distinct(removed), stored(self).summary
        if len(gone):
            pending = self.without_rows(gone, forget_classes=True).pending
            assert pending is not None  # it is what changes give
            summary = pending.summary
        copy = self.fetching()
        views = stored(copy)
        views.summary = summary
        views.hidden = np.union1d(views.hidden, gone)
        views.relabelled = views.relabelled | dict(zip(labels, positions.tolist(), strict=True))
        views.close()
        return copy

    def _pending(self, put: StoredRows, removed: np.ndarray, summary: MemorySummary) -> Self:
        return replace(self, pending=Pending(put, removed, summary))

    def _unchanged(self) -> Self:
        """Give the change that changes no row."""
        views = stored(self)
        nothing = views.reader.fetch(np.empty(0, np.int64), rows=True)
        return self._pending(nothing, nothing.ids, views.summary)

    def _counted(
        self,
        fork: StoredFittedModel,
        positions: Tensor,
        sign: int,
        summary: MemorySummary,
    ) -> MemorySummary:
        """Count rows that a fork holds out of the summary, or in."""
        memory = stored(fork)
        counted = Counted(memory.labels[positions].numpy(), memory.weighed(positions).numpy())
        given = fork.label_positions[positions].numpy()
        return with_counts(summary, self.classes, given, counted, sign)

    def _refuse_emptied(
        self, before: MemorySummary, after: MemorySummary, forget_classes: bool
    ) -> None:
        counts = np.array(before.rows_per_class), np.array(after.rows_per_class)
        emptied = np.flatnonzero((counts[0] > 0) & (counts[1] <= 0))
        if len(emptied) and not forget_classes:
            named = ", ".join(map(repr, self.classes[emptied].tolist()[:5]))
            raise ValueError(
                f"This leaves no row of the class {named} that may be found. Keep one, or pass "
                "forget_classes=True (--forget-classes): the class keeps its column, but has no "
                "neighbors."
            )


def _distinct(ids: Any) -> np.ndarray:
    return np.unique(np.asarray(ids, dtype=np.int64).reshape(-1))
