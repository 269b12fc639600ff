"""Counts about one data set: rows, columns, classes, gaps, duplicates."""

import hashlib
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nearwise.data import Dataset


@dataclass(frozen=True)
class DatasetSummary:
    """Counts about one data set; `str()` gives a few readable lines.

    Parameters
    ----------
    name, kind, target_name, source : str
        As in `Dataset`.
    n_rows, n_columns : int
        Shape of the features; the columns of images are their pixels times channels.
    n_test : int
        Rows of the official test part; 0 where there is none.
    classes : dict of str to int
        Rows of each class, classes sorted.
    categoricals : dict of str to int
        Columns of categories or text, and how many different values each has.
    missing : dict of str to int
        Columns with missing values, and how many rows miss them.
    n_duplicates : int
        Rows whose features equal those of an earlier row.
    image_shape : (int, int, int), optional
        Height, width and channels of images; None for other kinds.
    """

    name: str
    kind: str
    target_name: str
    source: str
    n_rows: int
    n_columns: int
    n_test: int
    classes: dict[str, int]
    categoricals: dict[str, int]
    missing: dict[str, int]
    n_duplicates: int
    image_shape: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        """Return the summary as lines of text."""
        test = f", {self.n_test:,} of them the official test part" if self.n_test else ""
        lines = [
            f"{self.name} ({self.kind}, {self.source})",
            f"rows: {self.n_rows:,}{test}; with the features of an earlier row: "
            f"{self.n_duplicates:,}",
            *self._features(),
            f"target {self.target_name}: {len(self.classes)} classes"
            f"{_listed(self.classes, 'rows')}",
        ]
        return "\n".join(lines)

    def _features(self) -> list[str]:
        if self.image_shape is not None:
            height, width, channels = self.image_shape
            color = "1 channel (grey)" if channels == 1 else "3 channels (color)"
            return [f"images: {height} x {width} pixels, {color}"]
        return [
            f"columns: {self.n_columns}, of them categorical: {len(self.categoricals)}"
            f"{_listed(self.categoricals, 'levels')}",
            f"missing values: {sum(self.missing.values()):,}{_listed(self.missing, 'rows')}",
        ]


def describe_dataset(dataset: Dataset) -> DatasetSummary:
    """Count rows, columns, classes, categories, missing values and duplicates.

    Parameters
    ----------
    dataset : Dataset
        What to describe.

    Returns
    -------
    summary : DatasetSummary
        The counts. NaN in embeddings counts as missing under the column's name f0, f1, ...
    """
    labels, counts = np.unique(dataset.y, return_counts=True)
    X = dataset.X
    n_test = 0 if dataset.test_index is None else len(dataset.test_index)
    classes = {str(label): int(n) for label, n in zip(labels, counts, strict=True)}
    about = (dataset.name, dataset.kind, dataset.target_name, dataset.source)
    if dataset.kind == "images":
        height, width, channels = X.shape[1:]
        rows = (np.ascontiguousarray(X[i]).reshape(-1) for i in range(len(X)))
        distinct = {hashlib.blake2b(row.data, digest_size=16).digest() for row in rows}
        return DatasetSummary(
            *about,
            n_rows=len(X),
            n_columns=height * width * channels,
            n_test=n_test,
            classes=classes,
            categoricals={},
            missing={},
            n_duplicates=len(X) - len(distinct),
            image_shape=(height, width, channels),
        )
    frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X).add_prefix("f")
    missing = frame.isna().sum()
    return DatasetSummary(
        *about,
        n_rows=len(frame),
        n_columns=frame.shape[1],
        n_test=n_test,
        classes=classes,
        categoricals={
            str(name): int(frame[name].nunique())
            for name in frame.columns
            if not pd.api.types.is_numeric_dtype(frame[name].dtype)
            and not pd.api.types.is_datetime64_any_dtype(frame[name].dtype)
        },
        missing={str(name): int(n) for name, n in missing.items() if n},
        n_duplicates=int(frame.duplicated().sum()),
    )


def _listed(counts: dict[str, int], unit: str, most: int = 12) -> str:
    if not counts:
        return ""
    shown = ", ".join(f"{name} {n:,}" for name, n in list(counts.items())[:most])
    more = f", and {len(counts) - most} more" if len(counts) > most else ""
    return f" ({unit}: {shown}{more})"
