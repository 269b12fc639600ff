"""MemoryBank: labelled rows with keys in one or more key spaces."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.memory import checks
from nearwise.memory.gate import taken_apart
from nearwise.memory.store import read_folder, write_folder

DEFAULT_SPACE = "default"
KIND = "memory bank"
_VERSION = 1

Rows = Tensor | np.ndarray
Ids = Tensor | np.ndarray | Sequence[int]


class BankRow(NamedTuple):
    """One remembered row: its id, key in each space, label, sample weight and columns."""

    id: int
    keys: dict[str, Tensor]
    label: int | Tensor
    sample_weight: float
    columns: dict[str, Tensor]


class MemoryBank:
    """Remembered rows: keys in one or more named spaces, labels, ids, weights and columns.

    Parameters
    ----------
    keys : Tensor or ndarray of shape (n_rows, n_features), or mapping of str to such
        Floating point and finite. A single space is named "default"; several spaces hold the
        same rows, each with its own width and dtype. Not copied: do not modify them.
    labels : int Tensor of shape (n_rows,) or float Tensor of shape (n_rows, n_classes)
        Class positions from 0, or soft labels: non-negative, each row sums to 1.
    ids : int64 Tensor of shape (n_rows,), optional
        Unique; 0, 1, 2, ... by default. Ids are permanent and never reused.
    sample_weight : Tensor of shape (n_rows,), optional
        Non-negative and finite; 1 by default.
    n_classes : int, optional
        Number of classes; by default the largest label plus one, or the width of soft labels.
    columns : mapping of str to Tensor of shape (n_rows, ...), optional
        Further values per row, of any name, dtype and width. Columns are never searched.
        Not copied.

    Attributes
    ----------
    keys : dict of str to Tensor of shape (n_rows, n_features)
        One entry per key space.
    labels : int64 Tensor of shape (n_rows,) or float32 Tensor of shape (n_rows, n_classes)
        Hard or soft labels.
    ids : int64 Tensor of shape (n_rows,)
        Unique ids.
    sample_weight : float32 Tensor of shape (n_rows,)
        Weights.
    n_classes : int
        Number of classes.
    columns : dict of str to Tensor of shape (n_rows, ...)

    Raises
    ------
    ValueError
        If a part does not fit the others or a value is not allowed.

    Examples
    --------
    >>> bank = MemoryBank(torch.eye(3), torch.tensor([0, 1, 1]))
    >>> bank.remove([1])
    >>> bank.ids.tolist(), bank.labels.tolist()
    ([0, 2], [0, 1])
    """

    def __init__(
        self,
        keys: Rows | Mapping[str, Rows],
        labels: Rows,
        ids: Ids | None = None,
        sample_weight: Rows | None = None,
        n_classes: int | None = None,
        *,
        columns: Mapping[str, Tensor] | None = None,
        next_id: int = 0,
    ) -> None:
        self.keys = checks.as_spaces(keys, DEFAULT_SPACE)
        n_rows, device = self._shape()
        self.labels, self.n_classes = checks.as_labels(labels, n_rows, n_classes, device)
        self.ids = (
            torch.arange(n_rows, device=device)
            if ids is None
            else checks.as_ids(ids, device, n_rows)
        )
        self.sample_weight = checks.as_sample_weight(sample_weight, n_rows, device)
        self.columns = checks.as_columns(columns, n_rows, device)
        self._next_id = max(next_id, int(self.ids.max()) + 1 if n_rows else 0)

    def _shape(self) -> tuple[int, torch.device]:
        first = next(iter(self.keys.values()))
        return len(first), first.device

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[BankRow]:
        for i in range(len(self)):
            label: int | Tensor = self.labels[i] if self.is_soft else int(self.labels[i])
            keys = {name: rows[i] for name, rows in self.keys.items()}
            columns = {name: column[i] for name, column in self.columns.items()}
            yield BankRow(int(self.ids[i]), keys, label, float(self.sample_weight[i]), columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryBank):
            return NotImplemented
        mine, theirs = self.state(), other.state()
        return mine[1] == theirs[1] and all(
            mine[0][name].dtype == theirs[0][name].dtype
            and torch.equal(mine[0][name].cpu(), theirs[0][name].cpu())
            for name in mine[0]
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        widths = {name: rows.shape[1] for name, rows in self.keys.items()}
        kind = "soft" if self.is_soft else "hard"
        return (
            f"MemoryBank(n_rows={len(self)}, spaces={widths}, "
            f"n_classes={self.n_classes}, labels={kind!r})"
        )

    @property
    def is_soft(self) -> bool:
        """Whether the labels are soft, (n_rows, n_classes)."""
        return self.labels.ndim == 2

    def soft_labels(self) -> Tensor:
        """Return the labels as float32 (n_rows, n_classes); one-hot for hard labels."""
        if self.is_soft:
            return self.labels
        return F.one_hot(self.labels, self.n_classes).float()

    @property
    def next_id(self) -> int:
        """Default id of the next row: larger than any id used so far."""
        return self._next_id

    @next_id.setter
    def next_id(self, at_least: int) -> None:
        self._next_id = max(self._next_id, at_least)

    def positions(self, ids: Ids) -> Tensor:
        """Return the row positions of `ids`, int64 of shape (n_ids,).

        Raises
        ------
        ValueError
            If an id is not in the bank.
        """
        return checks.find_ids(ids, self.ids, "memory bank")

    def add(
        self,
        keys: Rows | Mapping[str, Rows],
        labels: Rows,
        ids: Ids | None = None,
        sample_weight: Rows | None = None,
        n_classes: int | None = None,
        columns: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Append rows.

        Parameters
        ----------
        keys, labels, ids, sample_weight, columns
            As in the constructor, with the bank's spaces, columns and widths. Hard labels fit a
            soft bank. By default ids go on from the largest ever given.
        n_classes : int, optional
            New number of classes, at least the present one; needed to add rows of new
            classes.

        Returns
        -------
        ids : int64 Tensor of shape (n_added,)
            Ids of the new rows.

        Raises
        ------
        ValueError
            If the rows do not fit or an id is taken. The bank is then unchanged.
        """
        n_classes = self.n_classes if n_classes is None else n_classes
        if n_classes < self.n_classes:
            raise ValueError(
                f"n_classes={n_classes} is below the bank's {self.n_classes}. "
                "Classes can be added but not dropped; make a new MemoryBank instead."
            )
        spaces = checks.as_spaces(keys, DEFAULT_SPACE)
        checks.same_widths("key spaces", spaces, self.keys)
        n_rows, device = len(next(iter(spaces.values()))), self.ids.device
        new_labels = self._fit_labels(labels, n_rows, n_classes)
        new_weight = checks.as_sample_weight(sample_weight, n_rows, device)
        new_columns = checks.as_columns(columns, n_rows, device)
        checks.same_widths("columns", new_columns, self.columns)
        if ids is None:
            new_ids = torch.arange(self._next_id, self._next_id + n_rows, device=device)
        else:
            new_ids = checks.as_ids(ids, device, n_rows)
            checks.refuse_taken(new_ids, self.ids, "memory bank")
        old_labels = self.labels
        if self.is_soft and n_classes > self.n_classes:
            old_labels = F.pad(old_labels, (0, n_classes - self.n_classes))
        self.keys = {
            name: torch.cat([rows, spaces[name].to(rows)]) for name, rows in self.keys.items()
        }
        self.columns = {
            name: torch.cat([column, new_columns[name].to(column)])
            for name, column in self.columns.items()
        }
        self.labels = torch.cat([old_labels, new_labels])
        self.ids = torch.cat([self.ids, new_ids])
        self.sample_weight = torch.cat([self.sample_weight, new_weight])
        self.n_classes = n_classes
        if n_rows:
            self._next_id = max(self._next_id, int(new_ids.max()) + 1)
        return new_ids

    def _fit_labels(self, labels: Rows, n_rows: int, n_classes: int) -> Tensor:
        """Check labels and bring them into the bank's form, hard or soft."""
        new, _ = checks.as_labels(labels, n_rows, n_classes, self.ids.device)
        if new.ndim == 2 and not self.is_soft:
            raise ValueError(
                "The labels are soft and the memory bank holds hard ones. Make a soft bank first: "
                "MemoryBank(bank.keys, bank.soft_labels(), bank.ids, bank.sample_weight, "
                "columns=bank.columns)."
            )
        if new.ndim == 1 and self.is_soft:
            return F.one_hot(new, n_classes).to(self.labels.dtype)
        return new

    def remove(self, ids: Ids) -> None:
        """Remove the rows with these ids; the others keep their order and ids.

        Raises
        ------
        ValueError
            If an id is not in the bank. The bank is then unchanged.
        """
        keep = torch.ones(len(self), dtype=torch.bool, device=self.ids.device)
        keep[self.positions(ids)] = False
        self._change(lambda tensor: tensor[keep])

    def relabel(self, ids: Ids, labels: Rows) -> None:
        """Assign new labels to the rows with these ids.

        Parameters
        ----------
        ids : int64 array-like of shape (n_ids,)
            Distinct ids of rows in the bank.
        labels : Tensor of shape (n_ids,) or (n_ids, n_classes)
            Hard labels, or soft ones in a soft bank.

        Raises
        ------
        ValueError
            If an id is not in the bank or the labels do not fit. The bank is then unchanged.
        """
        at = self.positions(checks.as_ids(ids, self.ids.device))
        new = self._fit_labels(labels, len(at), self.n_classes)
        self.labels = self.labels.index_copy(0, at, new)

    def fork(self) -> "MemoryBank":
        """Return a shallow copy: its changes leave this bank unchanged, and tensors are shared."""
        fork = copy.copy(self)
        fork.keys, fork.columns = dict(self.keys), dict(self.columns)
        return fork

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        self.keys = {name: change(rows) for name, rows in self.keys.items()}
        self.columns = {name: change(column) for name, column in self.columns.items()}
        self.labels, self.ids = change(self.labels), change(self.ids)
        self.sample_weight = change(self.sample_weight)

    def to(self, device: torch.device | str) -> "MemoryBank":
        """Return the bank with its tensors on `device`."""
        moved = copy.copy(self)
        moved._change(lambda tensor: tensor.to(device))
        return moved

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the bank as tensors and a JSON object, to store inside another folder."""
        tensors = {f"keys.{name}": rows for name, rows in self.keys.items()}
        tensors |= {f"columns.{name}": column for name, column in self.columns.items()}
        tensors |= {"labels": self.labels, "ids": self.ids, "sample_weight": self.sample_weight}
        meta = {
            "spaces": list(self.keys),
            "columns": list(self.columns),
            "n_classes": self.n_classes,
            "next_id": self._next_id,
        }
        return tensors, meta

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> "MemoryBank":
        """Make a bank from the return value of `state`."""
        keys = {name: tensors[f"keys.{name}"] for name in meta["spaces"]}
        return cls(
            keys,
            tensors["labels"],
            tensors["ids"],
            tensors["sample_weight"],
            meta["n_classes"],
            columns={name: tensors[f"columns.{name}"] for name in meta["columns"]},
            next_id=int(meta["next_id"]),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bank to a folder, safe against crashes; see `nearwise.memory.write_folder`.

        Raises
        ------
        StoreError
            If the folder holds something else.
        OSError
            If the disk is full or read-only. The former content is unchanged.
        """
        tensors, meta = self.state()
        write_folder(path, kind=KIND, format_version=_VERSION, tensors=tensors, meta=meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "MemoryBank":
        """Read a bank that `save` wrote; the round trip is equal bit for bit.

        Raises
        ------
        StoreError
            If the folder is missing, foreign, torn, newer than this library, or holds what `save`
            never writes.
        """
        folder = read_folder(path, kind=KIND, newest_version=_VERSION)
        with taken_apart(path):
            return cls.from_state(folder.tensors, folder.meta)
