"""What a fitted classifier remembers can change: rows come, go or get another label."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.estimators import validation
from nearwise.estimators.embedding import AnyRows
from nearwise.estimators.images import ImageEncoder, encode_views, from_source
from nearwise.estimators.labels import check_labels, label_values, positions_among
from nearwise.estimators.row_storage import append_frame
from nearwise.estimators.state import LearnedState
from nearwise.estimators.table import as_frame, plain
from nearwise.estimators.updates import (
    append_rows,
    drop_rows,
    give_labels,
    refuse_emptied_classes,
)
from nearwise.memory import MemoryBank


class RemembersRows:
    """`add`, `remove` and `relabel` of a classifier with a memory; nothing is trained again."""

    classes_: np.ndarray
    row_names_: np.ndarray | None
    column_types_: dict[str, str]
    _state: LearnedState
    _rows: Any
    _weight_unit: float

    def _all_views(self, rows: AnyRows, views: Sequence[Any] | None) -> list[AnyRows]:
        """Give encoded rows and their further views: those given, or such as `fit` made."""
        optional = [name for name, use in self.column_types_.items() if use == "left out"]
        given = validation.check_views(self, views, len(rows), optional)
        tta = self._state.tta if views is None else None
        return [rows, *encode_views(self._state.encoder, rows, given, tta)]

    @property
    def memory_(self) -> MemoryBank:
        """The remembered rows: keys of every space, labels, ids, sample weights."""
        check_is_fitted(self)
        return self._state.views.bank

    def add(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        views: Sequence[Any] | None = None,
    ) -> Tensor:
        """Remember new rows, of new classes too, without training again.

        Parameters
        ----------
        X, y, sample_weight, views
            As in `fit`; a class may have a single row here.

        Returns
        -------
        ids : int64 Tensor of shape (n_added,)
        """
        check_is_fitted(self)
        X, y, names = from_source(X, y, training=True)
        rows = validation.check_new_rows(self, X)
        everyone = self._all_views(self._state.encoder.transform(rows), views)
        if len(everyone) != self._state.n_views:
            raise ValueError(
                f"The remembered keys are means over {self._state.n_views} views of a row, and "
                f"{len(everyone)} were given. Give as many (views=[...])."
            )
        classes, codes = check_labels(y, len(rows))
        places, fresh = positions_among(self.classes_, classes)
        labels = torch.from_numpy(places[codes])
        weight = validation.check_weight(sample_weight, len(rows))
        weight = None if weight is None else weight / self._weight_unit
        n_classes = len(self.classes_) + len(fresh)
        # First, so that rows that cannot be kept leave the memory as it is.
        if isinstance(self._rows, pd.DataFrame):
            kept: Any = append_frame(self._rows, as_frame(rows))
        else:
            kept = np.concatenate([self._rows, np.asarray(rows, dtype=self._rows.dtype)])
        ids = append_rows(self._state, everyone, labels, weight, n_classes)
        self._name_classes(fresh)
        self._rows = kept
        self._name_rows(names, len(rows))
        return ids

    def _name_rows(self, names: np.ndarray | None, n_rows: int) -> None:
        """Remember the names of new rows; "" for those without one among others that have."""
        if names is None and self.row_names_ is None:
            return
        before = self.row_names_
        if before is None:
            before = np.full(len(self._rows) - n_rows, "")
        self.row_names_ = np.concatenate([before, np.full(n_rows, "") if names is None else names])

    def _name_classes(self, fresh: list[Any]) -> None:
        """Put classes that come later behind those there are."""
        if not fresh:
            return
        extra = np.array(fresh, dtype=np.result_type(self.classes_, np.asarray(fresh)))
        before, self.classes_ = self.classes_, np.concatenate([self.classes_, extra])
        if _is_sorted(before) and not _is_sorted(self.classes_):
            warnings.warn(
                f"classes_ is no longer sorted: {fresh[:5]} came later and stand last, and so do "
                "their columns. scikit-learn's scorers of probabilities (neg_log_loss, "
                "roc_auc_ovr) take columns in sorted order: give them "
                "proba[:, np.argsort(model.classes_)].",
                UserWarning,
                stacklevel=4,
            )

    def remove(self, ids: Any, *, forget_classes: bool = False) -> None:
        """Forget remembered rows by id; the head is not trained again.

        Parameters
        ----------
        ids : int64 array-like of shape (n_removed,)
        forget_classes : bool, default=False
            True lets a class lose its last row. It keeps its place in `classes_`, and only the
            base and the null speak for it.

        Raises
        ------
        ValueError
            If an id is not remembered, a class would lose its last row, or too few rows stay.
            Nothing is then forgotten.
        """
        check_is_fitted(self)
        if not forget_classes:
            at = self.memory_.positions(ids)
            refuse_emptied_classes(self.memory_, at, None, self.classes_, "Removing")
        self._forget(ids)

    def _forget(self, ids: Any) -> None:
        keep = drop_rows(self._state, ids)
        if isinstance(self._rows, pd.DataFrame):
            self._rows = self._rows.iloc[keep].reset_index(drop=True)
        else:
            self._rows = self._rows[keep]
        if self.row_names_ is not None:
            self.row_names_ = self.row_names_[keep]

    def relabel(self, ids: Any, y: Any, *, forget_classes: bool = False) -> None:
        """Give remembered rows other labels among `classes_`; the head is not trained again.

        Parameters
        ----------
        ids : int64 array-like of shape (n_changed,)
        y : array-like of shape (n_changed,)
        forget_classes : bool, default=False
            As in `remove`.

        Raises
        ------
        ValueError
            If an id is not remembered, a label is new, or a class would lose its last row.
        """
        check_is_fitted(self)
        places, strange = positions_among(self.classes_, label_values(y))
        if strange:
            raise ValueError(
                f"Labels {strange[:5]} are not among the classes {self.classes_.tolist()[:10]}. "
                "Rows of new classes come in through add()."
            )
        bank, new = self.memory_, torch.from_numpy(places)
        if not forget_classes and len(places) == len(at := bank.positions(ids)):
            refuse_emptied_classes(bank, at, new, self.classes_, "Relabelling")
        give_labels(self._state, ids, new)

    def _remembered(self, position: int) -> dict[str, Any]:
        """Give the training row at a bank position, column name to value."""
        if isinstance(self._state.encoder, ImageEncoder):
            image = {"image": self._rows[position]}
            name = "" if self.row_names_ is None else str(self.row_names_[position])
            return {"file": name} | image if name else image
        if isinstance(self._rows, pd.DataFrame):
            row = self._rows.iloc[position]
            return {
                str(name): None if value is pd.NA else plain(value) for name, value in row.items()
            }
        return dict(zip(self._state.encoder.columns, self._rows[position].tolist(), strict=True))


def _is_sorted(classes: np.ndarray) -> bool:
    return bool((classes[:-1] <= classes[1:]).all())
