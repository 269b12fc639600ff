"""Checks of labels and probabilities, with a remedy in each error."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearwise.cached import cached_property

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ROW_SUM_TOLERANCE = 1e-4
"""Tolerance of the sum of a row of probabilities."""


@dataclass(frozen=True)
class Predictions:
    """Checked class positions (n_rows,), float64 probabilities, and derived arrays."""

    labels: IntArray
    proba: FloatArray

    @property
    def n_rows(self) -> int:
        """Number of rows, at least 1."""
        return int(self.proba.shape[0])

    @property
    def n_classes(self) -> int:
        """Number of columns of `proba`, at least 1."""
        return int(self.proba.shape[1])

    @cached_property
    def predicted(self) -> IntArray:
        """Most probable class position of each row; ties go to the lowest position."""
        predicted: IntArray = self.proba.argmax(axis=1)
        return predicted

    @cached_property
    def confidence(self) -> FloatArray:
        """Probability of the predicted class of each row."""
        rows = np.arange(self.n_rows)
        confidence: FloatArray = self.proba[rows, self.predicted]
        return confidence

    @cached_property
    def correct(self) -> BoolArray:
        """Whether the predicted class is the true one."""
        correct: BoolArray = self.predicted == self.labels
        return correct


def check_predictions(y: npt.ArrayLike, proba: npt.ArrayLike) -> Predictions:
    """Check class positions and probabilities (n_rows, n_classes), and return both.

    Raises ValueError if a shape, a label or a probability is out of its range, or a row does not
    sum to 1 within 1e-4.
    """
    checked = check_probabilities(proba)
    labels = check_labels(y, n_classes=checked.shape[1])
    check_same_rows(labels.shape[0], checked.shape[0], "proba")
    return Predictions(labels, checked)


def check_probabilities(proba: npt.ArrayLike) -> FloatArray:
    """Return `proba` as float64 with entries capped at 1, or raise ValueError."""
    raw = np.asarray(proba)
    if raw.ndim != 2:
        advice = "For two classes pass both columns, np.column_stack([1 - p, p])."
        raise ValueError(f"proba must have shape (n_rows, n_classes), got {raw.shape}. {advice}")
    if raw.shape[0] == 0 or raw.shape[1] == 0:
        raise ValueError(f"proba is empty, its shape is {raw.shape}. Pass at least one row.")
    if raw.dtype.kind not in "fiub":
        raise ValueError(f"proba must be numeric, got dtype {raw.dtype}. Convert it to float.")
    checked = raw.astype(np.float64, copy=False)
    sums = checked.sum(axis=1)
    if not np.isfinite(sums).all():
        row = int(np.flatnonzero(~np.isfinite(sums))[0])
        raise ValueError(f"proba has NaN or infinity, first in row {row}. Remove or repair it.")
    if checked.min() < 0:
        row = int(np.flatnonzero(checked.min(axis=1) < 0)[0])
        raise ValueError(
            f"proba has a negative entry, {checked[row].min():.3g} in row {row}. "
            "Pass probabilities, not logits or log-probabilities."
        )
    off = np.abs(sums - 1.0)
    if off.max() > ROW_SUM_TOLERANCE:
        row = int(off.argmax())
        raise ValueError(
            f"Rows of proba must sum to 1 within {ROW_SUM_TOLERANCE:g}; row {row} sums to "
            f"{sums[row]:.6g}. Divide each row by its sum, or convert float16 output first."
        )
    # A row that sums to 1 within rounding may hold 1.0000001: the metrics promise [0, 1].
    return np.minimum(checked, 1.0) if checked.max() > 1.0 else checked


def check_labels(y: npt.ArrayLike, n_classes: int | None = None, name: str = "y") -> IntArray:
    """Return `y` as int64 class positions in [0, n_classes), or raise ValueError."""
    raw = np.asarray(y)
    if raw.ndim != 1:
        raise ValueError(f"{name} must have shape (n_rows,), got {raw.shape}. Flatten it.")
    if raw.shape[0] == 0:
        raise ValueError(f"{name} is empty. Pass at least one row.")
    if raw.dtype.kind not in "iub":
        raise ValueError(
            f"{name} must hold integer class positions, got dtype {raw.dtype}. "
            "Encode labels first, for example np.searchsorted(classes, labels)."
        )
    labels = raw.astype(np.int64, copy=False)
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise ValueError(f"{name} holds {low}; class positions start at 0. Re-encode the labels.")
    if n_classes is not None and high >= n_classes:
        raise ValueError(
            f"{name} holds class position {high}, but there are {n_classes} classes "
            f"(positions 0 to {n_classes - 1}). Add the column or re-encode the labels."
        )
    return labels


def check_same_rows(n_labels: int, n_other: int, name: str) -> None:
    """Raise ValueError unless y and `name` have the same number of rows."""
    if n_labels != n_other:
        raise ValueError(
            f"y has {n_labels} rows and {name} has {n_other}. Pass one label for each row."
        )


def check_level(level: float, name: str = "level") -> None:
    """Raise ValueError unless `level` lies strictly between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"{name} must lie between 0 and 1, got {level}. For 95 % pass 0.95.")


def check_positive_int(value: int, name: str) -> None:
    """Raise ValueError unless `value` is an integer of at least 1."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
