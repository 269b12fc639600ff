"""TableEncoder: from columns of numbers, text and gaps to numbers and category codes."""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

MAX_SPLIT_BY_VALUE = 255  # categories a column may have to be split by value in boosting
MAX_ONE_HOT = 32  # one-hot columns a category column may take in `dense`
LARGE, VERY_LARGE = 5_000, 20_000  # rows above which a fit has to be thrifty
_WIDE = 64
_LARGEST = float(np.finfo(np.float32).max)  # trees and networks compute in float32
_FARTHEST = 1e30  # spreads from the mean, beyond which float32 distances overflow
_EXACT_BELOW = 2**53  # whole floats from there on may stand for several integers
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Encoded:
    """Rows as numbers and category codes.

    Attributes
    ----------
    numbers : float64 array of shape (n, F)
        Numeric columns; NaN where missing.
    codes : int64 array of shape (n, G)
        Category codes from 1; 0 is unknown or missing.
    """

    numbers: np.ndarray
    codes: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: np.ndarray) -> "Encoded":
        """Return some of the rows."""
        return Encoded(self.numbers[rows], self.codes[rows])


@dataclass
class TableEncoder:
    """What is remembered of a table's columns; every field is plain data that JSON can hold.

    Attributes
    ----------
    columns : list of str
        Names, in the order of the training table.
    kinds : dict of str to {"number", "category"}
    categories : dict of str to list
        Values of each category column, most frequent first; position + 1 is the code.
    median, mean, scale : list of float
        Of each numeric column, from the training rows; a constant column has scale 1.
    has_gaps : list of bool
        Whether a numeric column had missing values in training.
    """

    columns: list[str] = field(default_factory=list)
    kinds: dict[str, Literal["number", "category"]] = field(default_factory=dict)
    categories: dict[str, list[Any]] = field(default_factory=dict)
    median: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    has_gaps: list[bool] = field(default_factory=list)

    @property
    def numeric(self) -> list[str]:
        """Names of the numeric columns."""
        return [name for name in self.columns if self.kinds[name] == "number"]

    @property
    def categorical(self) -> list[str]:
        """Names of the category columns."""
        return [name for name in self.columns if self.kinds[name] == "category"]

    @property
    def cardinalities(self) -> list[int]:
        """Codes of each category column, code 0 included."""
        return [len(self.categories[name]) + 1 for name in self.categorical]

    def fit(self, X: pd.DataFrame | np.ndarray) -> Encoded:
        """Learn the columns from training rows and return them encoded.

        Raises
        ------
        ValueError
            If a column holds dates, nested values, infinity, numbers that float32 cannot hold, or
            nothing but gaps.
        """
        frame = as_frame(X)
        self.columns = [str(name) for name in frame.columns]
        frame.columns = pd.Index(self.columns)
        refuse_repeated(self.columns)
        self.kinds = {name: _kind(frame[name]) for name in self.columns}
        for name in self.categorical:
            counts = frame[name].map(plain, na_action="ignore").value_counts(sort=True)
            self.categories[name] = counts[counts > 0].index.tolist()
        numbers = self._numbers(frame)
        gaps = np.isnan(numbers)
        empty = [n for n, hole in zip(self.numeric, gaps.all(axis=0), strict=True) if hole]
        if empty:
            raise ValueError(f"Columns {empty} hold nothing but missing values. Drop them.")
        self.has_gaps = gaps.any(axis=0).tolist()
        self.median = np.nanmedian(numbers, axis=0).tolist() if numbers.shape[1] else []
        filled = np.where(gaps, self.median, numbers) if numbers.shape[1] else numbers
        self.mean = filled.mean(axis=0).tolist()
        spread = filled.std(axis=0)
        flat = spread <= 1e-12 * np.maximum(1.0, np.abs(filled).max(axis=0, initial=0.0))
        self.scale = np.where(flat, 1.0, spread).tolist()
        return Encoded(numbers, self._codes(frame, count=False))

    def transform(self, X: pd.DataFrame | np.ndarray) -> Encoded:
        """Encode rows with the columns of the training table, matched by position.

        A category that is not known as it is, is sought by its text: a CSV's types are guessed
        file by file, and 7, 7.0 and "7" may be the same.

        Raises
        ------
        ValueError
            If a number is too large, or too far from those of training, to compute with in float32.

        Warns
        -----
        UserWarning
            With counts, if categories are unknown (taken as missing) or numbers are missing in
            columns that had no gap in training (filled with the median).
        """
        frame = as_frame(X)
        frame.columns = pd.Index(self.columns)
        numbers = self._numbers(frame)
        _refuse_huge(numbers, self.numeric, _FARTHEST, self.mean, self.scale)
        if numbers.shape[1]:
            new_gaps = np.isnan(numbers).sum(axis=0) * ~np.asarray(self.has_gaps, dtype=bool)
            if new_gaps.any():
                named = _counted(zip(self.numeric, new_gaps, strict=True))
                warnings.warn(
                    f"Missing values in columns that had none in training: {named}. They are "
                    "filled with the training median.",
                    UserWarning,
                    stacklevel=3,
                )
        return Encoded(numbers, self._codes(frame, count=True))

    def _numbers(self, frame: pd.DataFrame) -> np.ndarray:
        parts = [_as_floats(frame[name], name) for name in self.numeric]
        numbers = np.column_stack(parts) if parts else np.zeros((len(frame), 0))
        _refuse_huge(numbers, self.numeric, _LARGEST)
        return numbers

    def _codes(self, frame: pd.DataFrame, *, count: bool) -> np.ndarray:
        codes = np.zeros((len(frame), len(self.categorical)), dtype=np.int64)
        unknown: list[tuple[str, int]] = []
        for place, name in enumerate(self.categorical):
            values = frame[name].map(plain, na_action="ignore")
            known = {value: code for code, value in enumerate(self.categories[name], start=1)}
            found = values.map(known)
            codes[:, place] = found.astype("float64").fillna(0).to_numpy()
            strange = np.flatnonzero(found.isna() & values.notna())
            if len(strange):
                by_text = _code_by_text(self.categories[name])
                codes[strange, place] = [by_text(value) for value in values.iloc[strange]]
            unknown.append((name, int((codes[strange, place] == 0).sum())))
        if count and any(number for _, number in unknown):
            warnings.warn(
                f"Categories that were not in the training table: {_counted(unknown)}. They are "
                "taken as missing.",
                UserWarning,
                stacklevel=4,
            )
        return codes

    def dense(self, rows: Encoded) -> np.ndarray:
        """Standardised numbers, a column for each that had gaps, and one-hot categories.

        Returns
        -------
        matrix : float32 array of shape (n, width)
        """
        parts = []
        if rows.numbers.shape[1]:
            gaps = np.isnan(rows.numbers)
            filled = np.where(gaps, self.median, rows.numbers)
            parts.append((filled - self.mean) / self.scale)
            parts.append(gaps[:, np.asarray(self.has_gaps, dtype=bool)].astype(float))
        for place, size in enumerate(self.cardinalities):
            width = min(size - 1, MAX_ONE_HOT)
            parts.append((rows.codes[:, place, None] == np.arange(1, width + 1)).astype(float))
        return np.concatenate(parts, axis=1).astype(np.float32)

    def ordinal(self, rows: Encoded) -> np.ndarray:
        """Numbers with NaN for gaps, then category codes; for trees. float64 (n, F + G)."""
        return np.concatenate([rows.numbers, rows.codes], axis=1)

    def ordinal_filled(self, rows: Encoded) -> np.ndarray:
        """Numbers with gaps filled by the median, then category codes; float64 (n, F + G)."""
        if not rows.numbers.shape[1]:
            return rows.codes.astype(float)
        filled = np.where(np.isnan(rows.numbers), self.median, rows.numbers)
        return np.concatenate([filled, rows.codes], axis=1)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "TableEncoder":
        """Rebuild an encoder from what `to_json` returned."""
        return cls(**state)


def refuse_repeated(columns: Sequence[str]) -> None:
    """Refuse columns that share a name: nothing could tell them apart."""
    twice = sorted(name for name, count in Counter(columns).items() if count > 1)
    if twice:
        raise ValueError(f"Columns {twice} occur more than once. Rename or drop them.")


def as_frame(X: pd.DataFrame | np.ndarray) -> pd.DataFrame:
    """Return a copy of a table, or an array's columns named x0, x1, ..."""
    if isinstance(X, pd.DataFrame):
        return X.copy(deep=False)
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])


def _kind(column: pd.Series) -> Literal["number", "category"]:
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        if pd.api.types.is_complex_dtype(column):
            raise ValueError(f"Column {column.name!r} holds complex numbers. Split it in two.")
        return "number"
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise ValueError(
            f"Column {column.name!r} holds dates or times. Turn it into numbers first (days since "
            "a date, hour of the day), or drop it."
        )
    if isinstance(column.dtype, pd.CategoricalDtype):
        return "category"
    values = column.dropna()
    if len(values) and all(isinstance(v, int | float | np.number | bool) for v in values):
        return "number"
    nested = next((v for v in values if not isinstance(v, str | int | float | np.generic)), None)
    if nested is not None:
        raise ValueError(
            f"Column {column.name!r} holds {type(nested).__name__} values. Use numbers or text."
        )
    return "category"


def _as_floats(column: pd.Series, name: str) -> np.ndarray:
    try:
        values = pd.to_numeric(column).to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError):
        text = next((v for v in column if isinstance(v, str)), column.iloc[0])
        raise ValueError(
            f"Column {name!r} held numbers in training and now holds {text!r}. Give numbers, or "
            "leave the cell empty where the value is missing."
        ) from None
    if np.isinf(values).any():
        raise ValueError(
            f"Column {name!r} holds infinity in {int(np.isinf(values).sum())} rows. Give finite "
            "numbers, or leave the cell empty where the value is missing."
        )
    return values


def _refuse_huge(
    numbers: np.ndarray, names: list[str], limit: float, mean: Any = 0.0, scale: Any = 1.0
) -> None:
    """Name the columns with numbers more than `limit` scales away from their mean."""
    if not numbers.size:
        return
    ends = np.stack([np.fmin.reduce(numbers, axis=0), np.fmax.reduce(numbers, axis=0)])
    with np.errstate(over="ignore"):
        huge = (np.abs(ends - mean) / scale > limit).any(axis=0)
    if huge.any():
        named = [name for name, bad in zip(names, huge, strict=True) if bad]
        largest = np.abs(ends[:, huge]).max()
        raise ValueError(
            f"Columns {named[:5]}{' and more' if len(named) > 5 else ''} hold numbers too large to "
            f"compute with in 32 bits, up to {largest:.3g} in size. Rescale these columns before "
            "fitting (divide them, or take logarithms), or drop such rows or columns."
        )


def plain(value: Any) -> Any:
    """Turn a category into what JSON can hold: intervals, dates and the like become text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float) else str(value)


def _code_by_text(known: list[Any]) -> Callable[[Any], int]:
    """Make a function that finds a value's code by its text; 0 where none or several fit.

    The text itself comes first. Then a number or truth value is what a CSV reader would make of a
    text: 7 of "07", True of "true". Two texts are never the same that way.
    """
    texts: dict[str, set[int]] = defaultdict(set)
    read: dict[str, set[int]] = defaultdict(set)
    for code, value in enumerate(known, start=1):
        texts[_in_text(value)].add(code)
        read[_as_read(value)].add(code)

    def code_of(value: Any) -> int:
        text = _in_text(value)
        fit = texts.get(text) or read.get(_as_read(value), set())
        if len(fit) != 1:
            return 0
        (code,) = fit
        other = known[code - 1]
        alike = isinstance(value, str) and isinstance(other, str)
        return 0 if alike and text != other else code

    return code_of


def _in_text(value: Any) -> str:
    """Write a category out; a whole float as its integer."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_BELOW:
        return str(int(value))
    return str(value)


def _as_read(value: Any) -> str:
    """Write out what a CSV reader would make of a category if its column were all like it."""
    if not isinstance(value, str):
        return _in_text(value)
    word = value.strip()
    if word in ("true", "TRUE", "false", "FALSE"):
        return word.title()
    if not _NUMBER.fullmatch(word):
        return word
    return str(int(word)) if word.lstrip("+-").isdigit() else _in_text(float(word))


def _counted(pairs: Any) -> str:
    named = [f"{name} ({int(number)})" for name, number in pairs if number]
    return ", ".join(named[:5]) + (f" and {len(named) - 5} more columns" if len(named) > 5 else "")


def category_places(encoder: TableEncoder) -> Sequence[int]:
    """Positions in `TableEncoder.ordinal` of the category columns that trees can split by value.

    Columns with more codes than scikit-learn's boosting takes are left to it as numbers: their
    codes are ordered by frequency.
    """
    start = len(encoder.numeric)
    sizes = enumerate(encoder.cardinalities, start=start)
    return [place for place, size in sizes if size <= MAX_SPLIT_BY_VALUE]


def ready_embeddings(encoder: TableEncoder) -> bool:
    """Whether the columns look like a ready embedding: 64 or more numbers and no category."""
    return len(encoder.numeric) >= _WIDE and not encoder.categorical
