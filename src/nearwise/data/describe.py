"""What is in a data set: sizes, classes, missing values, categories, duplicates."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nearwise.data.dataset import Dataset


@dataclass(frozen=True)
class DatasetSummary:
    """Counts about one data set; `str()` gives a few readable lines.

    Parameters
    ----------
    name, kind, target_name, source : str
        As in `Dataset`.
    n_rows, n_columns : int
        Shape of the features.
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

    def __str__(self) -> str:
        """Return the summary as lines of text."""
        test = f", {self.n_test:,} of them the official test part" if self.n_test else ""
        lines = [
            f"{self.name} ({self.kind}, {self.source})",
            f"rows: {self.n_rows:,}{test}; with the features of an earlier row: "
            f"{self.n_duplicates:,}",
            f"columns: {self.n_columns}, of them categorical: {len(self.categoricals)}"
            f"{_listed(self.categoricals, 'levels')}",
            f"missing values: {sum(self.missing.values()):,}{_listed(self.missing, 'rows')}",
            f"target {self.target_name}: {len(self.classes)} classes"
            f"{_listed(self.classes, 'rows')}",
        ]
        return "\n".join(lines)


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
    frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X).add_prefix("f")
    missing = frame.isna().sum()
    return DatasetSummary(
        name=dataset.name,
        kind=dataset.kind,
        target_name=dataset.target_name,
        source=dataset.source,
        n_rows=len(frame),
        n_columns=frame.shape[1],
        n_test=0 if dataset.test_index is None else len(dataset.test_index),
        classes={str(label): int(n) for label, n in zip(labels, counts, strict=True)},
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
