"""Counts about one data set: rows, columns, classes, gaps, duplicates."""

import hashlib
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nearwise.data import Dataset


@dataclass(frozen=True)
class DatasetSummary:
    """Counts about one data set; `str()` gives a few readable lines.

    `name`, `kind`, `target_name` and `source` are as in `Dataset`, `n_rows` and `n_columns` the
    shape of the features (of images: pixels times channels), `n_test` the rows of the official test
    part. `classes` has the rows of each class, sorted; `categoricals` how many different values a
    column of categories or text has; `missing` how many rows miss a column; `n_duplicates` the rows
    whose features equal those of an earlier row; `image_shape` is (height, width, channels).
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

    NaN in embeddings counts as missing under the column's name f0, f1, ...
    """
    labels, counts = np.unique(dataset.y, return_counts=True)
    X, about = dataset.X, (dataset.name, dataset.kind, dataset.target_name, dataset.source)
    n_test = 0 if dataset.test_index is None else len(dataset.test_index)
    classes = {str(label): int(n) for label, n in zip(labels, counts, strict=True)}
    if dataset.kind == "images":
        shape = X.shape[1:]
        rows = (np.ascontiguousarray(X[i]).reshape(-1) for i in range(len(X)))
        distinct = {hashlib.blake2b(row.data, digest_size=16).digest() for row in rows}
        n_duplicates = len(X) - len(distinct)
        size = int(np.prod(shape))
        return DatasetSummary(*about, len(X), size, n_test, classes, {}, {}, n_duplicates, shape)
    frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X).add_prefix("f")
    missing = {str(name): int(n) for name, n in frame.isna().sum().items() if n}
    texts = frame.select_dtypes(exclude=["number", "bool", "datetime", "datetimetz"])
    categoricals = {str(name): int(column.nunique()) for name, column in texts.items()}
    n_duplicates = int(frame.duplicated().sum())
    size = frame.shape[1]
    return DatasetSummary(
        *about, len(frame), size, n_test, classes, categoricals, missing, n_duplicates
    )


def _listed(counts: dict[str, int], unit: str, most: int = 12) -> str:
    if not counts:
        return ""
    shown = ", ".join(f"{name} {n:,}" for name, n in list(counts.items())[:most])
    more = f", and {len(counts) - most} more" if len(counts) > most else ""
    return f" ({unit}: {shown}{more})"
