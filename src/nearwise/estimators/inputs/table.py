"""TableEncoder: encoding of table columns as numbers and category codes."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from torch import Tensor

from nearwise.data.tables.numeric_columns import Written
from nearwise.data.tables.spellings import Decimal, Spelling
from nearwise.estimators.inputs.by_text import code_by_text, in_text
from nearwise.estimators.inputs.columns import (
    EMPTY,
    SHOWN,
    ColumnPlan,
    Use,
    Wish,
    plan_columns,
    refuse_nothing_used,
    refuse_repeated,
    warn_of_columns,
)
from nearwise.estimators.inputs.dates import ISO, TIME, DateColumn
from nearwise.estimators.inputs.sparse_columns import SparseColumns
from nearwise.estimators.inputs.texts import N_COMPONENTS, TextColumn
from nearwise.functional.threads import one_thread
from nearwise.warn import RowsWarning, warn_user

MAX_SPLIT_BY_VALUE = 255  # most categories of a column that boosting splits by value
MAX_ONE_HOT = 32  # most one-hot columns per category column in `dense`
LARGE, VERY_LARGE = 5_000, 20_000  # rows above which a fit saves time
_MARKS = {".": "points", ",": "commas"}
_WIDE = 64
_NUMBER_TYPES = ("int", "uint", "float")
_LARGEST = float(np.finfo(np.float32).max)  # trees and networks compute in float32
_FARTHEST = 1e30  # distance from the mean, in spreads, beyond which float32 distances overflow
_CLIP = 5.0  # network inputs are clipped at this many standard deviations
_MOST_UNLIKE = 25.0  # ratios of two components' spreads are clipped here


@dataclass(frozen=True)
class Encoded:
    """Rows as numbers and category codes.

    `numbers`, float64 (n, F), are numeric columns and parts of dates, NaN where missing;
    `codes`, int64 (n, G), are category codes from 1; 0 is unknown or missing. `terms`, float32
    (n, V), are weights of the terms of texts, None without text; components of them are numbers.
    """

    numbers: np.ndarray
    codes: np.ndarray
    terms: sparse.csr_matrix | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: np.ndarray | slice) -> "Encoded":
        """Select some of the rows."""
        terms = None if self.terms is None else self.terms[rows]
        return Encoded(self.numbers[rows], self.codes[rows], terms)

    def digests(self) -> np.ndarray:
        """Content hash of every row, int64 (n,)."""
        numbers = self.numbers + 0.0  # -0 becomes 0
        numbers[np.isnan(numbers)] = np.nan  # one bit pattern for all NaNs
        pairs = zip(numbers, self.codes, strict=True)
        return as_digests(a.tobytes() + b.tobytes() for a, b in pairs)

    @classmethod
    def joined(cls, parts: Sequence["Encoded"]) -> "Encoded":
        """Concatenate several sets of rows."""
        return cls(
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.codes for part in parts]),
            None
            if parts[0].terms is None
            else sparse.vstack([part.terms for part in parts], format="csr"),
        )


@dataclass
class TableEncoder:
    """Encoder of table rows; every field but `texts` and `sparse_columns` is plain data for JSON.

    `categories` are ordered by frequency: position + 1 is the code. `median`, `mean` and `scale`
    have one value per name in `numeric`; a constant column has scale 1. `has_gaps`: missing values
    in training; for a date only its first part records it. `gap_words` are texts that count as
    missing in a column of numbers or dates. `spellings` are the fields of `Spelling` for columns
    with a number format of their own, `decimal` is the decimal mark of the training table ("" if
    unknown). `texts` are the columns of text, whose components count as numbers. `durations` are
    numeric columns that held durations, `dates` the fields of `DateColumn`, `report` the fields of
    `ColumnReport`. The report is empty if an array was given. Of sparse rows the columns are the
    components by `sparse_columns`.
    """

    kind: ClassVar[Literal["table"]] = "table"
    n_networks: ClassVar[int] = 3  # networks that share the memory in a fit with held-out rows
    soft_targets: ClassVar[bool] = False  # scikit-learn's models take one label per row

    columns: list[str] = field(default_factory=list)
    kinds: dict[str, Use] = field(default_factory=dict)
    categories: dict[str, list[Any]] = field(default_factory=dict)
    median: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    has_gaps: list[bool] = field(default_factory=list)
    dates: dict[str, dict[str, Any]] = field(default_factory=dict)
    gap_words: dict[str, list[str]] = field(default_factory=dict)
    durations: list[str] = field(default_factory=list)
    spellings: dict[str, dict[str, Any]] = field(default_factory=dict)
    decimal: Decimal = ""
    report: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, TextColumn] = field(default_factory=dict)
    sparse_columns: SparseColumns | None = None

    @property
    def numeric(self) -> list[str]:
        """Names of the numeric columns and of parts of dates and texts, such as "joined: year"."""
        return [part for name in self.columns for part in self._parts(name)]

    def _parts(self, name: str) -> list[str]:
        """Names of the numeric features of a column; none for a category."""
        kind = self.kinds[name]
        if kind == "date":
            return [f"{name}: {part}" for part in self.dates[name]["parts"]]
        if kind == "text":
            return [f"{name}: component {at + 1}" for at in range(self.texts[name].n_components)]
        return [name] if kind == "number" else []

    @property
    def categorical(self) -> list[str]:
        """Names of the category columns."""
        return [name for name in self.columns if self.kinds[name] == "category"]

    @property
    def left_out(self) -> list[str]:
        """Names of the columns left out of the model."""
        return [name for name in self.columns if self.kinds[name] == "left out"]

    @property
    def shown(self) -> str | None:
        """Name of the column that is shown with each row, if any."""
        return next((one["name"] for one in self.report if one["reason"] == SHOWN), None)

    @property
    def has_only_texts(self) -> bool:
        """Whether every column that is used is text."""
        return {*self.kinds.values()} - {"left out"} == {"text"}

    @property
    def n_components(self) -> int:
        """Number of components of all texts."""
        return sum(one.n_components for one in self.texts.values())

    @property
    def n_columns(self) -> int:
        """Number of numeric and categorical features per row."""
        return len(self.numeric) + len(self.categorical)

    @property
    def cardinalities(self) -> list[int]:
        """Number of codes per category column, including code 0."""
        return [len(self.categories[name]) + 1 for name in self.categorical]

    def learn(
        self,
        X: pd.DataFrame | np.ndarray,
        wishes: Mapping[str, Wish] | None = None,
        before: "TableEncoder | None" = None,
        shown: str | None = None,
    ) -> Encoded:
        """Choose the use of training columns, fit to them and return the encoded rows.

        `wishes` are `columns` of the classifier. `before` is the encoder of an earlier fit to some
        of the rows: columns that it left out with a warning stay left out, and date layouts and
        number formats stay the same. The column `shown` with each row is left out. All columns of
        an array are numbers.
        """
        if isinstance(X, pd.DataFrame):
            frame = X.set_axis([str(name) for name in X.columns], axis=1)
            if before is not None:
                frame, wishes = before.written.attach(frame), {**(wishes or {})} | before.wishes
                shown = before.shown
            plans = plan_columns(frame, wishes, shown=shown)
        elif wishes is not None:
            raise ValueError(
                "columns names columns of a DataFrame, and X is an array. Leave columns out, or "
                "give pd.DataFrame(X, columns=[...])."
            )
        else:
            plans = plan_columns(as_frame(X), judge=False)
        if before is None:
            warn_of_columns(plans)
        encoded = self.fit(X, plans)
        if before is not None:
            self.sparse_columns = before.sparse_columns
            self.keep_gap_words(before)
        return encoded

    def fit(
        self, X: pd.DataFrame | np.ndarray, plans: Sequence[ColumnPlan] | None = None
    ) -> Encoded:
        """Fit to training rows and return them encoded.

        Without `plans` types alone decide. ValueError if every column is left out, or one holds
        nested values, infinity or numbers that float32 cannot hold.
        """
        frame = as_frame(X)
        self.columns = [str(name) for name in frame.columns]
        frame.columns = pd.Index(self.columns)
        refuse_repeated(self.columns)
        self.decimal = Written.of(frame).decimal
        plans = plan_columns(frame, judge=False) if plans is None else plans
        self._adopt(plans)
        refuse_nothing_used([plan.report for plan in plans])
        frame = self.in_numbers(frame)
        numbers_of = (name for name in self.columns if self.kinds[name] == "number")
        self.durations = [name for name in numbers_of if _holds_durations(frame[name])]
        for name in self.categorical:
            values = frame[name].map(plain, na_action="ignore")
            counts = values.value_counts(sort=True)
            if len({isinstance(value, str) for value in counts.index}) > 1:  # 1 equals "1"
                counts = values.astype(object).map(in_text, na_action="ignore").value_counts()
            self.categories[name] = counts[counts > 0].index.tolist()
        terms: dict[str, sparse.csr_matrix] = {}
        n_texts = [*self.kinds.values()].count("text")
        n_components = max(1, N_COMPONENTS // max(1, n_texts))
        for name, plan in zip(self.columns, plans, strict=True):
            if self.kinds[name] == "text":
                found = TextColumn.fit(frame[name], n_components, plan.embed)
                self.texts[name], terms[name] = found
        numbers = self._numbers(frame, terms)
        gaps = np.isnan(numbers)
        self.has_gaps = (gaps.any(axis=0) & self._leads).tolist()
        self.median = np.nanmedian(numbers, axis=0).tolist() if numbers.shape[1] else []
        filled = np.where(gaps, self.median, numbers) if numbers.shape[1] else numbers
        self.mean = filled.mean(axis=0).tolist()
        spread = filled.std(axis=0)
        flat = spread <= 1e-12 * np.maximum(1.0, np.abs(filled).max(axis=0, initial=0.0))
        self.scale = np.where(flat, 1.0, spread).tolist()
        return Encoded(numbers, self._codes(frame, count=False), _joined(terms))

    def _adopt(self, plans: Sequence[ColumnPlan]) -> None:
        named = dict(zip(self.columns, plans, strict=True))
        self.kinds = {name: plan.report.use for name, plan in named.items()}
        self.dates = {name: asdict(p.date) for name, p in named.items() if p.date is not None}
        self.spellings = {
            name: plan.spelling.to_json()
            for name, plan in named.items()
            if plan.spelling is not None and plan.report.use == "number"
        }
        words = {name: list(plan.report.gap_words) for name, plan in named.items()}
        self.gap_words = {name: found for name, found in words.items() if found}
        self.report = [plan.report.to_json() for plan in plans]

    @property
    def written(self) -> Written:
        """Number format of the training table."""
        return Written({n: Spelling(**one) for n, one in self.spellings.items()}, self.decimal)

    @property
    def wishes(self) -> dict[str, str]:
        """Column uses for a refit, so that it parses the columns in the same way."""
        layouts = {name: date["layout"] for name, date in self.dates.items()}
        dated = {
            name: "date" if layout == ISO else f"date:{layout}"
            for name, layout in layouts.items()
            if layout not in ("", TIME)
        }
        counted = [name for name in self.gap_words if self.kinds[name] == "number"]
        reports = [one for one in self.report if one["use"] == "left out"]
        # After removals row numbers no longer count up by one; an empty column may get values.
        left = [one["name"] for one in reports if one["reason"] != EMPTY]
        kept = dict.fromkeys(counted, "number") | dict.fromkeys(left, "left out")
        kept |= {name: "text" for name, one in self.texts.items() if one.vectors is None}
        return dated | {name: use for name, use in kept.items() if name not in self.spellings}

    def keep_gap_words(self, before: "TableEncoder") -> None:
        """Keep the gap words of an earlier fit, also for columns without such words now."""
        words = before.gap_words.items()
        kept = {n: found for n, found in words if n in self.spellings or n in self.dates}
        self.gap_words = kept | self.gap_words

    def in_numbers(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Parse numbers in text by the column's training format; returns a table.

        Gap words among numbers and dates become gaps. Columns are matched by position. ValueError
        if text does not have the training format, or the file was read in another format.
        """
        read, now = frame, Written.of(frame)
        spellings = self.written.columns
        for at, name in enumerate(self.columns):
            words = self.gap_words.get(name, ())
            if name not in spellings and not (words and name in self.dates):
                continue
            column = frame.iloc[:, at]
            if pd.api.types.is_numeric_dtype(column):
                if name in spellings:
                    _refuse_other_spelling(column, name, spellings[name], now)
                continue
            column = _without(column, words)
            if name in spellings:
                column = spellings[name].numbers(column, name)
            if read is frame:
                read = frame.copy(deep=False)
                read.attrs = {}  # the number format of the file no longer applies
            read.isetitem(at, column.array)
        return read

    def transform(self, X: pd.DataFrame | np.ndarray) -> Encoded:
        """Encode rows with the columns of the training table, matched by position.

        A category that is not known is looked up by its text: the types of a CSV are guessed per
        file, and 7, 7.0 and "7" may be the same. A `RowsWarning` counts unknown categories (taken
        as missing) and gaps in columns without gaps in training (filled with the median); also
        booleans in numeric columns (taken as 1 and 0), texts of unknown words and rows without any
        value. ValueError if a number is too large for float32, or too far from the training values.
        """
        self._warn_of_filled(X)
        encoded = self._from_array(X) if self._takes_array(X) else self._from_table(X)
        numbers, codes = encoded.numbers, encoded.codes
        _refuse_huge(numbers, self.numeric, _FARTHEST, self.mean, self.scale)
        if numbers.shape[1]:
            known = np.asarray(self.has_gaps, dtype=bool)
            new_gaps = np.isnan(numbers).sum(axis=0) * (self._leads & ~known)
            if new_gaps.any():
                named = _counted(zip(self.sources, new_gaps, strict=True))
                warn_user(
                    f"Missing values in columns that had none in training: {named}. They are "
                    "filled with the training median.",
                    RowsWarning,
                )
        empty = np.flatnonzero(np.isnan(numbers).all(axis=1) & (codes == 0).all(axis=1))
        if len(empty):
            warn_user(
                f"Rows without any known value: {len(empty)}, first row {empty[0]} (counted from "
                "0). Their predictions carry no information about them.",
                RowsWarning,
            )
        return encoded

    def _takes_array(self, X: pd.DataFrame | np.ndarray) -> bool:
        """Whether rows are a numeric array; then no DataFrame is made, to save a millisecond."""
        numbers = isinstance(X, np.ndarray) and X.dtype.kind in "biuf" and not self.gap_words
        return numbers and all(kind in ("number", "left out") for kind in self.kinds.values())

    def _warn_of_filled(self, X: pd.DataFrame | np.ndarray) -> None:
        """Warn of values in columns that were empty in training and are left out."""
        empty = [at for at, report in enumerate(self.report) if report["reason"] == EMPTY]
        if not empty:
            return
        some = X.iloc[:, empty] if isinstance(X, pd.DataFrame) else X[:, empty]
        filled = np.asarray(~pd.isna(some)).sum(axis=0)
        if filled.any():
            named = _counted(zip((self.columns[at] for at in empty), filled, strict=True))
            warn_user(
                f"Values in columns that had none in training: {named}. They are ignored; fit "
                "again to use them.",
                RowsWarning,
            )

    def _from_array(self, X: Any) -> Encoded:
        used = [kind == "number" for kind in self.kinds.values()]
        numbers = self._checked(np.array(X if all(used) else X[:, used], dtype=float, order="C"))
        return Encoded(numbers, np.zeros((len(X), 0), dtype=np.int64))

    def _from_table(self, X: pd.DataFrame | np.ndarray) -> Encoded:
        frame = as_frame(X)
        frame.columns = pd.Index(self.columns, dtype=object)  # matched by position
        if self.spellings or self.gap_words:
            frame = self.in_numbers(frame)
        self._warn_of_truth(frame)
        terms = {name: one.terms(frame[name]) for name, one in self.texts.items()}
        self._warn_of_strange_texts(frame, terms)
        return Encoded(self._numbers(frame, terms), self._codes(frame, count=True), _joined(terms))

    def _warn_of_strange_texts(
        self, frame: pd.DataFrame, terms: Mapping[str, sparse.csr_matrix]
    ) -> None:
        """Warn of texts that share next to nothing with the texts of the training table."""
        texts = self.texts.items()
        found = [(name, one.n_strange(frame[name], terms[name])) for name, one in texts]
        if any(number for _, number in found):
            warn_user(
                "Texts without any word, or three characters in a row, that the model knows: "
                f"{_counted(found)}. They say next to nothing about their rows.",
                RowsWarning,
            )

    def _warn_of_truth(self, frame: pd.DataFrame) -> None:
        """Warn of booleans in columns with a numeric dtype in training."""
        types = {report["name"]: report["type"].lower() for report in self.report}
        found = [
            (name, _n_truths(frame.iloc[:, at]))
            for at, (name, dtype) in enumerate(zip(self.columns, frame.dtypes, strict=True))
            if dtype.kind in "bO" and types.get(name, "").startswith(_NUMBER_TYPES)
            if self.kinds[name] == "number"
        ]
        if any(number for _, number in found):
            warn_user(
                f"True or false in columns that held numbers in training: {_counted(found)}. They "
                "are taken as 1 and 0.",
                RowsWarning,
            )

    @property
    def sources(self) -> list[str]:
        """Source column of each name in `numeric`."""
        return [name for name in self.columns for _ in self._parts(name)]

    @property
    def _leads(self) -> np.ndarray:
        """Mask of the names in `numeric` that are the first part of their column, bool (F,)."""
        parts = [part for name in self.columns for part, _ in enumerate(self._parts(name))]
        return np.array(parts, dtype=int) == 0

    def _numbers(self, frame: pd.DataFrame, terms: Mapping[str, sparse.csr_matrix]) -> np.ndarray:
        kinds = enumerate(self.kinds.values())
        # By position: selection by name costs a millisecond.
        used = [at for at, kind in kinds if kind in ("number", "date", "text")]
        numbers = frame.take(used, axis=1)
        if (
            not self.dates
            and not self.texts
            and not self.gap_words
            and all(t.kind in "biuf" for t in numbers.dtypes)
        ):
            # All columns at once: each single column would cost a millisecond.
            return self._checked(np.ascontiguousarray(numbers.to_numpy(dtype=float)))
        parts = [
            DateColumn(**self.dates[name]).numbers(frame[name], name)
            if self.kinds[name] == "date"
            else self.texts[name].components(frame[name], terms[name])
            if self.kinds[name] == "text"
            else self._floats(frame[name], name)
            for name in map(str, numbers)
        ]
        columns = np.column_stack(parts) if parts else np.zeros((len(frame), 0))
        _refuse_huge(columns, self.numeric, _LARGEST)
        return columns

    def _floats(self, column: pd.Series, name: str) -> np.ndarray:
        if name in self.durations or _holds_durations(column):
            return _days(column, name)
        return _as_floats(column, name, self.gap_words.get(name, ()))

    def _checked(self, numbers: np.ndarray) -> np.ndarray:
        """Raise ValueError, with the column's name, for infinity and numbers beyond float32."""
        for at in np.flatnonzero(np.isinf(numbers).any(axis=0)):
            _refuse_infinity(numbers[:, at], self.numeric[at])
        _refuse_huge(numbers, self.numeric, _LARGEST)
        return numbers

    def _codes(self, frame: pd.DataFrame, *, count: bool) -> np.ndarray:
        codes = np.zeros((len(frame), len(self.categorical)), dtype=np.int64)
        unknown: list[tuple[str, int]] = []
        gaps: list[tuple[str, int]] = []
        for column, name in enumerate(self.categorical):
            # In plain Python: for one row pandas needs some milliseconds.
            values = [v if isinstance(v, str) else plain_or_gap(v) for v in frame[name].tolist()]
            keys = [(v is True or v is False, v) for v in values]  # 1.0 is 1, True is not
            learned = enumerate(self.categories[name], start=1)
            known = {(v is True or v is False, v): code for code, v in learned} | {(False, None): 0}
            if None in values:
                gaps.append((name, values.count(None)))
            strange = set(keys).difference(known)
            if strange:
                by_text = code_by_text(self.categories[name])
                known |= {key: by_text(key[1]) for key in strange}
                strange = {key for key in strange if not known[key]}
                unknown.append((name, sum(key in strange for key in keys)))
            codes[:, column] = [known[key] for key in keys]
        if count and any(number for _, number in unknown):
            warn_user(
                f"Categories that were not in the training table: {_counted(unknown)}. They are "
                "taken as missing.",
                RowsWarning,
            )
        if count and gaps:
            complete = {report["name"] for report in self.report if not report["missing"]}
            named = _counted(pair for pair in gaps if pair[0] in complete)
            if named:
                warn_user(
                    f"Missing values in columns of categories that had none in training: {named}.",
                    RowsWarning,
                )
        return codes

    def without_texts(self, rows: Encoded) -> tuple["TableEncoder", Encoded]:
        """Leave out the columns of text; without other columns return both unchanged."""
        if not self.texts or self.has_only_texts:
            return self, rows
        is_text = np.array([self.kinds[name] == "text" for name in self.sources], dtype=bool)
        others = [name for name in self.columns if self.kinds[name] != "text"]
        kept = np.flatnonzero(~is_text)
        parts = {
            part: np.asarray(getattr(self, part))[kept].tolist()
            for part in ("median", "mean", "scale", "has_gaps")
        }
        encoder = replace(self, columns=others, texts={}, **parts)
        return encoder, Encoded(rows.numbers[:, kept], rows.codes)

    def components(self, rows: Encoded) -> np.ndarray:
        """Components of all texts, float64 (n, n_components); 0 for a missing text."""
        is_text = np.array([self.kinds[name] == "text" for name in self.sources], dtype=bool)
        return np.nan_to_num(rows.numbers[:, is_text])

    def text_terms(self, rows: Encoded) -> sparse.csr_matrix:
        """Terms of texts alone, float32; none is negative."""
        assert rows.terms is not None
        return rows.terms

    def sparse_terms(self, rows: Encoded) -> sparse.csr_matrix:
        """Terms of texts beside the dense columns of the others, float32, for linear models."""
        assert rows.terms is not None
        encoder, others = self.without_texts(rows)
        if encoder is self:
            return rows.terms
        return sparse.hstack([rows.terms, encoder.dense(others)], format="csr", dtype=np.float32)

    def dense(self, rows: Encoded) -> np.ndarray:
        """Standardised numbers, gap indicators and one-hot categories, as a float32 matrix."""
        parts = []
        if rows.numbers.shape[1]:
            gaps = np.isnan(rows.numbers)
            filled = np.where(gaps, self.median, rows.numbers)
            parts.append((filled - self.mean) / self.scale)
            parts.append(gaps[:, np.asarray(self.has_gaps, dtype=bool)].astype(float))
        for column, size in enumerate(self.cardinalities):
            width = min(size - 1, MAX_ONE_HOT)
            parts.append((rows.codes[:, column, None] == np.arange(1, width + 1)).astype(float))
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

    def network_inputs(self, rows: Encoded) -> tuple[Tensor, Tensor | None]:
        """Network inputs: float32 numbers with filled gaps and gap indicators, and category codes.

        Numbers are standardised. Components of ready embeddings are scaled by the square root of
        their spread, as strong components carry more information.
        """
        numbers = np.zeros((len(rows), 0))
        if rows.numbers.shape[1]:
            gaps = np.isnan(rows.numbers)
            filled = np.where(gaps, self.median, rows.numbers)
            scaled = np.clip((filled - self.mean) / self.scale, -_CLIP, _CLIP)
            if ready_embeddings(self):
                scaled *= _half_spread(np.asarray(self.scale, dtype=float))
            marks = gaps[:, np.asarray(self.has_gaps, dtype=bool)]
            numbers = np.concatenate([scaled, marks], axis=1)
        codes = torch.from_numpy(rows.codes) if rows.codes.shape[1] else None
        return torch.from_numpy(numbers.astype(np.float32)), codes

    def open_files(self, X: Any) -> Any:
        """Return rows unchanged: a table is not given as files."""
        return X

    def views(self, rows: Encoded, given: Sequence[Any], tta: Any) -> list[Encoded]:
        """Encode the given further views of rows."""
        return [self.transform(view) for view in given]

    def frame(self, X: Any, names: np.ndarray | None = None) -> pd.DataFrame:
        """Rows as a DataFrame."""
        return X if isinstance(X, pd.DataFrame) else pd.DataFrame(X, columns=self.columns)

    def with_floats(self, X: Any) -> pd.DataFrame:
        """Rows as a table with floats in columns of numbers, NaN for gaps; durations in days."""
        frame = self.in_numbers(self.frame(X).set_axis(self.columns, axis=1))
        used = [name for name in self.columns if self.kinds[name] == "number"]
        return frame.assign(**{name: self._floats(frame[name], name) for name in used})

    def described(self, X: Any, names: np.ndarray | None = None) -> list[dict[str, Any]]:
        """Each row as a dict of column name to value, in Python types."""
        columns = {str(name): _plain_values(column) for name, column in self.frame(X).items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def apart(self, X: Any) -> np.ndarray:
        """Largest difference of each further row from the first, (n - 1,).

        In standard deviations of a number; a different category counts 1.
        """
        values = self.dense(self.transform(X))
        largest: np.ndarray = np.abs(values[1:] - values[0]).max(axis=1, initial=0.0)
        return largest

    def threads(self, n_jobs: int | None) -> AbstractContextManager[Any]:
        """Context with the threads of a fit."""
        return one_thread(n_jobs)

    def to_json(self) -> dict[str, Any]:
        """Fields as plain data for JSON, of texts only their terms."""
        texts = {name: one.to_json() for name, one in self.texts.items()}
        held = None if self.sparse_columns is None else {"n_columns": self.sparse_columns.n_columns}
        return vars(self) | {"texts": texts, "sparse_columns": held}

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of the columns of text and of sparse columns, by name."""
        held = {} if self.sparse_columns is None else {"sparse/axes": self.sparse_columns.axes}
        return held | {
            f"{at}/{part}": array
            for at, one in enumerate(self.texts.values())
            for part, array in one.arrays().items()
        }

    @classmethod
    def from_json(
        cls, state: dict[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> "TableEncoder":
        """Rebuild an encoder from the results of `to_json` and `arrays`; ValueError or KeyError."""
        of_each: dict[str, dict[str, np.ndarray]] = {}
        for path, array in (arrays or {}).items():
            at, _, part = path.partition("/")
            of_each.setdefault(at, {})[part] = array
        texts = {
            name: TextColumn.from_json(terms, of_each.get(str(at), {}))
            for at, (name, terms) in enumerate(state.get("texts", {}).items())
        }
        held = None
        if state.get("sparse_columns") is not None:
            held = SparseColumns(of_each["sparse"]["axes"])
            if held.n_columns != state["sparse_columns"]["n_columns"]:
                raise ValueError(f"axes of {held.n_columns} sparse columns")
        return cls(**(state | {"texts": texts, "sparse_columns": held}))


def _joined(terms: Mapping[str, sparse.csr_matrix]) -> sparse.csr_matrix | None:
    return sparse.hstack([*terms.values()], format="csr") if terms else None


def as_digests(rows: Iterable[bytes]) -> np.ndarray:
    """Hash of each row by eight bytes, int64 (n,)."""
    found = b"".join(sha256(row).digest()[:8] for row in rows)
    return np.frombuffer(found, dtype="<i8").astype(np.int64)


def as_frame(X: pd.DataFrame | np.ndarray) -> pd.DataFrame:
    """Copy of a table, or a table of an array with columns x0, x1, ..."""
    if isinstance(X, pd.DataFrame):
        return X.copy(deep=False)
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])


def _half_spread(scale: np.ndarray) -> np.ndarray:
    """Square root of each component's spread relative to the median spread, clipped."""
    ratio: np.ndarray = np.clip(scale / np.median(scale), 1 / _MOST_UNLIKE, _MOST_UNLIKE)
    return np.sqrt(ratio)


def _without(column: pd.Series, words: Sequence[str]) -> pd.Series:
    return column.mask(column.isin(words)) if words else column


def _refuse_other_spelling(column: pd.Series, name: str, spelling: Spelling, file: Written) -> None:
    """Raise ValueError if `read_table` used another decimal mark than in training."""
    now = file.columns.get(name, Spelling(file.decimal if column.dtype == np.float64 else ""))
    if spelling.decimal and now.decimal and spelling.decimal != now.decimal:
        then, other = (_MARKS[mark] for mark in (spelling.decimal, now.decimal))
        raise ValueError(
            f"Column {name!r} was written with decimal {then} in training, and this table was "
            f"read with decimal {other}. Read it as the model does: read_table(path, like=model)."
        )


def _as_floats(column: pd.Series, name: str, gap_words: Sequence[str] = ()) -> np.ndarray:
    column = _without(column, gap_words)
    try:
        values = pd.to_numeric(column).to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError):
        bad = np.flatnonzero(pd.to_numeric(column, errors="coerce").isna() & column.notna())
        if not len(bad):
            raise
        raise ValueError(
            f"Column {name!r} held numbers in training and now holds {column.iloc[bad[0]]!r} in "
            f"row {bad[0]} (counted from 0; {len(bad)} such rows of {len(column)}). Give numbers, "
            "or leave the cell empty where the value is missing."
        ) from None
    _refuse_infinity(values, name)
    return values


def _n_truths(column: pd.Series) -> int:
    if column.dtype.kind == "b":
        return int(column.count())
    return sum(isinstance(value, bool | np.bool_) for value in column.tolist())


def _holds_durations(column: pd.Series) -> bool:
    if pd.api.types.is_object_dtype(column):
        return isinstance(next(iter(column.dropna()), None), datetime.timedelta)
    return pd.api.types.is_timedelta64_dtype(column)


def _days(column: pd.Series, name: str) -> np.ndarray:
    """Durations, or their text ("1 days 06:30:00"), in days; numbers are days already."""
    if pd.api.types.is_numeric_dtype(column):
        return _as_floats(column, name)
    known = column
    if pd.api.types.is_object_dtype(column):  # pandas refuses booleans even if coerced
        known = column.mask(column.map(lambda value: isinstance(value, bool)))
    durations = pd.to_timedelta(known, errors="coerce")
    bad = np.flatnonzero(durations.isna() & column.notna())
    if len(bad):
        raise ValueError(
            f"Column {name!r} held durations in training and now holds {column.iloc[bad[0]]!r} in "
            f"row {bad[0]} (counted from 0; {len(bad)} such rows of {len(column)}). Give durations "
            "such as '1 days 06:30:00', numbers of days, or leave the cell empty where the value "
            "is missing."
        )
    return (durations.dt.total_seconds() / 86400).to_numpy(dtype=float, na_value=np.nan)


def _refuse_infinity(values: np.ndarray, name: str) -> None:
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise ValueError(
            f"Column {name!r} holds infinity in {len(infinite)} rows, first in row {infinite[0]} "
            "(counted from 0). Give finite numbers, or leave the cell empty where the value is "
            "missing."
        )


def _refuse_huge(
    numbers: np.ndarray, names: list[str], limit: float, mean: Any = 0.0, scale: Any = 1.0
) -> None:
    """Raise ValueError, with names, for numbers more than `limit` scales from the mean."""
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
    """Category as plain data for JSON; intervals, dates and similar values become text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float) else str(value)


def plain_or_gap(value: Any) -> Any:
    """Category as plain data for JSON; a missing value becomes None."""
    return None if pd.isna(value) is True else plain(value)


def _plain_values(column: pd.Series) -> list[Any]:
    values = column.tolist()
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return values
    return list(map(plain_or_gap, values))


def _counted(pairs: Any) -> str:
    named = [f"{name} ({int(number)})" for name, number in pairs if number]
    return ", ".join(named[:5]) + (f" and {len(named) - 5} more columns" if len(named) > 5 else "")


def category_places(encoder: TableEncoder) -> Sequence[int]:
    """Positions in `TableEncoder.ordinal` of the category columns that trees can split by value.

    Columns with more codes than scikit-learn's boosting supports are used as numbers: their codes
    are ordered by frequency.
    """
    start = len(encoder.numeric)
    sizes = enumerate(encoder.cardinalities, start=start)
    return [position for position, size in sizes if size <= MAX_SPLIT_BY_VALUE]


def ready_embeddings(encoder: Any) -> bool:
    """Whether the columns look like a ready embedding: at least 64 numbers, no category."""
    return len(encoder.numeric) >= _WIDE and not encoder.categorical and not encoder.texts
