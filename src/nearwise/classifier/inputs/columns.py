"""What each column of a table is taken for, what is left out, and why."""

import datetime
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from nearwise.classifier.inputs.dates import DateColumn, date_column, holds_dates, text_layout
from nearwise.names import did_you_mean, listed
from nearwise.warn import warn_user

Use = Literal["number", "category", "date", "left out"]
Wish = Literal["keep", "number", "category", "date", "left out"]
WISHES: tuple[Wish, ...] = get_args(Wish)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_PADDED = re.compile(r"[+-]?0\d+", re.ASCII)  # 007 is a code
_GAP_WORDS = frozenset(
    ("", "?", "-", "--", "---", ".", "..", "*", "na", "n/a", "n.a.", "#n/a", "nan", "null", "nil",
     "none", "missing", "unknown", "not available", "not applicable")
)  # fmt: skip
_MOSTLY = 0.9  # share of cells that read as numbers, from which the others look like slips
EMPTY = "no value in any row"  # reason to leave a column out
_FEWEST_IDS = 5  # rows below which distinct values mean nothing, whatever the name
_FEWEST_RUN = 10  # rows from which counting up by one is no accident
_FEWEST_TEXTS = 20  # rows from which a text that is different in every one is a name
_MANY_TEXTS, _NEARLY_ALL = 100, 0.95  # ... in nearly every one
_ID_WORDS = frozenset(("id", "ids", "uuid", "guid", "rowid", "rownum", "rowno"))
_INDEX_NAME = re.compile(
    r"unnamed: \d+|level_\d+|index|#|nr|no|row([ _.-]?(index|number|num|nr|no|id))?", re.IGNORECASE
)
_TIME_WORDS = frozenset(
    ("year", "years", "quarter", "month", "months", "week", "weeks", "day", "days", "date", "hour",
     "hours", "minute", "minutes", "second", "seconds", "time", "timestamp", "period", "step", "t",
     "age")
)  # fmt: skip
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class ColumnWarning(UserWarning):
    """A column is not used as it stands: left out, read with gaps, or hard to understand."""


@dataclass(frozen=True)
class ColumnReport:
    """What a column of the training table is and how it is used.

    Attributes
    ----------
    name : str
    type : str
        Of the values, as pandas names it.
    missing : int
        Rows without a value; cells in `gap_words` count.
    distinct : int or None
        Different values; None where they cannot be compared.
    use : {"number", "category", "date", "left out"}
    parts : tuple of str
        Numbers that a date becomes.
    gap_words : tuple of str
        Texts in a column of numbers that count as missing.
    reason : str
        Why, where the type alone does not explain it.
    change : {"", "keep", "number", "category"}
        What to give for this column in `columns`, or as a flag of 'nearwise fit', to have it used
        in the other way.
    """

    name: str
    type: str
    missing: int
    distinct: int | None
    use: Use
    parts: tuple[str, ...] = ()
    gap_words: tuple[str, ...] = ()
    reason: str = ""
    change: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        plain = asdict(self)
        return plain | {"parts": list(self.parts), "gap_words": list(self.gap_words)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "ColumnReport":
        """Rebuild a report from what `to_json` returned."""
        tuples = {"parts": tuple(state["parts"]), "gap_words": tuple(state["gap_words"])}
        return cls(**(state | tuples))


@dataclass(frozen=True)
class ColumnPlan:
    """A report beside what reading the column needs; `warn`: the user gets a warning."""

    report: ColumnReport
    date: DateColumn | None = None
    warn: bool = False


def plan_columns(
    frame: pd.DataFrame, wishes: Mapping[str, Wish] | None = None, *, judge: bool = True
) -> list[ColumnPlan]:
    """Decide what each column of a training table is used as.

    Types decide first: numbers and truth values are numbers, dates are dates, all else is a
    category. Text that writes a date in every row is one; texts among numbers that stand for a gap
    ("?", "unknown") are gaps. Left out are row numbers, row ids, and text that differs in (nearly)
    every row, which do not help to predict new rows. `wishes` override all this; "keep" only
    forbids leaving a column out. Without `judge` types alone decide. A column without any value is
    left out in any case.

    ValueError if a wish names no column or no use, cannot be fulfilled, or if a column holds what
    is none of numbers, text and dates.
    """
    chosen = _check_wishes(wishes, frame)
    return [
        plan_column(frame[name], str(name), chosen.get(str(name)), judge=judge)
        for name in frame.columns
    ]


def refuse_nothing_used(reports: Sequence[ColumnReport]) -> None:
    """Refuse a table in which every column is left out."""
    if any(report.use != "left out" for report in reports):
        return
    if all(report.reason == EMPTY for report in reports):
        raise ValueError(
            f"All {len(reports)} columns are empty ({listed([r.name for r in reports])}): no cell "
            "holds a value. Give a table with some."
        )
    first = next(report for report in reports if report.reason != EMPTY)
    text = first.reason.startswith("text")
    raise ValueError(
        f"Every column is left out, {first.name!r} first ({first.reason}). Keep those that "
        f"describe a row: columns={{{first.name!r}: 'keep'}}."
        + (" Text is not read as language: give embeddings of it, as numbers." if text else "")
    )


def refuse_repeated(columns: Sequence[str]) -> None:
    """Refuse columns that share a name: they could not be distinguished."""
    twice = sorted(name for name, count in Counter(columns).items() if count > 1)
    if twice:
        raise ValueError(f"Columns {twice} occur more than once. Rename or drop them.")


def warn_of_columns(plans: list[ColumnPlan]) -> None:
    """Warn once of what the user should know."""
    spoken = [plan.report for plan in plans if plan.warn]
    if not spoken:
        return
    lines = [
        f"Column {report.name!r} {_spoken(report)} "
        f"(columns={{{report.name!r}: {report.change!r}}} changes it)."
        if report.change
        else f"Column {report.name!r} {_spoken(report)}."
        for report in spoken[:5]
    ]
    more = f" So are {len(spoken) - 5} more: see column_report_." if len(spoken) > 5 else ""
    warn_user(" ".join(lines) + more, ColumnWarning)


def _spoken(report: ColumnReport) -> str:
    used = "is left out" if report.use == "left out" else f"is used as a {report.use}"
    return f"{used}: {report.reason}"


def _check_wishes(wishes: Mapping[str, Wish] | None, frame: pd.DataFrame) -> dict[str, Wish]:
    if wishes is None:
        return {}
    if not isinstance(wishes, Mapping):
        raise ValueError(
            f"columns={wishes!r} must be None or a mapping such as {{'zip': 'category'}}."
        )
    chosen = {str(name): wish for name, wish in wishes.items()}
    for name, wish in chosen.items():
        if name not in frame.columns:
            raise ValueError(
                f"columns names {name!r}, and X has no such column."
                f"{did_you_mean(name, frame.columns)}"
            )
        if not isinstance(wish, str) or wish not in WISHES:
            options = ", ".join(map(repr, WISHES))
            raise ValueError(
                f"columns={{{name!r}: {wish!r}}} is not known.{did_you_mean(wish, WISHES)} Use one "
                f"of {options}."
            )
    return chosen


def plan_column(
    column: pd.Series, name: str, wish: Wish | None = None, *, judge: bool = True
) -> ColumnPlan:
    """Decide what one column is used as; `plan_columns` gives the rules."""
    if wish == "left out":
        return ColumnPlan(_report(column, name, "left out", reason="as you said"))
    if not column.notna().any():
        return ColumnPlan(_report(column, name, "left out", reason=EMPTY), warn=True)
    kind = kind_of(column)
    if wish == "category":
        return ColumnPlan(_report(column, name, "category"))
    if wish == "number":
        return _as_number(column, name, kind)
    if kind == "date" or wish == "date":
        return _as_date(column, name, kind)
    plan = ColumnPlan(_report(column, name, kind))
    if not judge:
        return plan
    if kind == "category" and not isinstance(column.dtype, pd.CategoricalDtype):
        plan = _judge_text(column, name, plan)
    if wish == "keep" or plan.report.use in ("date", "left out"):
        return _kept(plan, column) if wish == "keep" else plan
    reason = _row_number(column, name, plan.report)
    return _left_out(plan, reason) if reason else plan


def _kept(plan: ColumnPlan, column: pd.Series) -> ColumnPlan:
    if plan.report.use != "left out":
        return plan
    return ColumnPlan(_report(column, plan.report.name, kind_of(column)))


def kind_of(column: pd.Series) -> Literal["number", "category", "date"]:
    """Classify a column by its type; ValueError where it is none of numbers, text and dates."""
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        if pd.api.types.is_complex_dtype(column):
            raise ValueError(f"Column {column.name!r} holds complex numbers. Split it in two.")
        return "number"
    if pd.api.types.is_timedelta64_dtype(column):
        return "number"
    if isinstance(column.dtype, pd.CategoricalDtype | pd.StringDtype):
        return "category"
    if holds_dates(column):
        return "date"
    values = column.dropna()
    number = int | float | np.number | bool | Decimal | datetime.timedelta
    if len(values) and all(isinstance(v, number) for v in values):
        return "number"
    nested = next((v for v in values if not isinstance(v, str | int | float | np.generic)), None)
    if nested is not None:
        raise ValueError(
            f"Column {column.name!r} holds {type(nested).__name__} values. Use numbers or text, or "
            f"leave the column out: columns={{{str(column.name)!r}: 'left out'}}."
        )
    return "category"


def _report(column: pd.Series, name: str, use: Use, **more: Any) -> ColumnReport:
    missing = int(column.isna().sum())
    try:
        distinct: int | None = int(column.nunique())
    except TypeError:  # lists and the like
        distinct = None
    return ColumnReport(name, str(column.dtype), missing, distinct, use, **more)


def _as_number(column: pd.Series, name: str, kind: str) -> ColumnPlan:
    if kind == "date":
        raise ValueError(
            f"columns={{{name!r}: 'number'}}: the column holds dates. Leave that out: dates become "
            "numbers by themselves."
        )
    words = () if kind == "number" else _texts_among_numbers(column)
    if not words:
        return ColumnPlan(_report(column, name, "number"))
    rows = np.flatnonzero(column.isin(words))
    first = column.iloc[rows[0]]
    if len(rows) == column.notna().sum():
        raise ValueError(
            f"columns={{{name!r}: 'number'}}: no value reads as a number, such as {first!r}. Leave "
            f"that out, or use the column otherwise: columns={{{name!r}: 'category'}}."
        )
    return _with_words_as_gaps(column, name, words, rows)


def _as_date(column: pd.Series, name: str, kind: str) -> ColumnPlan:
    layout = ""
    if kind != "date":
        values = column.dropna().astype(object).unique().tolist()
        texts = kind == "category" and all(isinstance(v, str) for v in values)
        found = text_layout(values, name, required=True) if texts and values else None
        if found is None:
            raise ValueError(
                f"columns={{{name!r}: 'date'}}: not all values are dates, such as "
                f"{next(iter(values), None)!r}. Write them as 2024-12-31."
            )
        layout = found
    return _dated(column, name, layout)


def _dated(column: pd.Series, name: str, layout: str) -> ColumnPlan:
    date = date_column(column, name, layout)
    reason = "" if not layout else "text that is a date in every row"
    change = "category" if layout else ""
    parts = tuple(date.parts)
    return ColumnPlan(
        _report(column, name, "date", parts=parts, reason=reason, change=change), date
    )


def _judge_text(column: pd.Series, name: str, plan: ColumnPlan) -> ColumnPlan:
    """Examine the text of a column."""
    counts = column.astype(object).value_counts()
    values = counts.index.tolist()
    if all(isinstance(value, str) for value in values):
        layout = text_layout(values, name)
        if layout is not None:
            return _dated(column, name, layout)
    texts = [value for value in values if not reads_as_number(value)]
    n_texts = int(counts[texts].sum())
    if not texts:
        return _numbers_as_text(column, name, values, plan)
    if n_texts <= (1 - _MOSTLY) * counts.sum():
        return _nearly_numbers(column, name, texts, plan)
    reason = _every_row_its_own(plan.report, len(column))
    return _left_out(plan, reason) if reason else plan


def reads_as_number(value: Any) -> bool:
    """Whether a cell is a number, or text that reads as one."""
    return not isinstance(value, str) or NUMBER.fullmatch(value.strip()) is not None


def _texts_among_numbers(column: pd.Series) -> tuple[str, ...]:
    values = column.dropna().astype(object).unique()
    return tuple(sorted(v for v in values if not reads_as_number(v)))


def _numbers_as_text(
    column: pd.Series, name: str, values: list[Any], plan: ColumnPlan
) -> ColumnPlan:
    """Numbers written as text stay categories, unless they differ in (nearly) every row."""
    reason = _every_row_its_own(plan.report, len(column))
    padded = any(isinstance(v, str) and _PADDED.fullmatch(v.strip()) for v in values)
    if reason and (padded or _is_id_name(name)):
        return _left_out(plan, reason, change="number")
    if reason:
        report = _report(
            column, name, "number", change="category", reason="text that is a number in every row"
        )
        return ColumnPlan(report, warn=True)
    return ColumnPlan(replace(plan.report, reason="text that reads as numbers", change="number"))


def _nearly_numbers(column: pd.Series, name: str, texts: list[str], plan: ColumnPlan) -> ColumnPlan:
    """Numbers except for a few cells of text, which may stand for gaps."""
    rows = np.flatnonzero(column.isin(texts))
    if all(text.strip().casefold() in _GAP_WORDS for text in texts):
        return _with_words_as_gaps(column, name, tuple(sorted(texts)), rows)
    reason = f"numbers, but {_cells_of_text(column, rows)}"
    return ColumnPlan(replace(plan.report, reason=reason, change="number"), warn=True)


def _with_words_as_gaps(
    column: pd.Series, name: str, words: tuple[str, ...], rows: np.ndarray
) -> ColumnPlan:
    """Numbers in which some text, at these rows, counts as missing."""
    reason = _cells_of_text(column, rows, " that counts as missing")
    report = _report(column, name, "number", gap_words=words, reason=reason, change="category")
    missing = report.missing + len(rows)
    distinct = None if report.distinct is None else report.distinct - len(words)
    return ColumnPlan(replace(report, missing=missing, distinct=distinct), warn=True)


def _cells_of_text(column: pd.Series, rows: np.ndarray, counts: str = "") -> str:
    first = f"{column.iloc[rows[0]]!r} in row {rows[0]}, counted from 0"
    return f"{len(rows)} of {len(column)} cells hold text{counts} (first {first})"


def _every_row_its_own(report: ColumnReport, n_rows: int) -> str:
    """Report that a text differs in (nearly) every row; empty where it does not."""
    n, distinct = n_rows - report.missing, report.distinct or 0
    if n < 0.9 * n_rows:
        return ""  # whether there is a value may be informative
    if distinct == n and n >= _FEWEST_IDS and _is_id_name(report.name):
        return "a row id by its name, different in every row"
    if distinct == n and n >= _FEWEST_TEXTS:
        return "text that is different in every row"
    if n >= _MANY_TEXTS and distinct >= _NEARLY_ALL * n:
        return f"text that is different in nearly every row ({distinct} in {n})"
    return ""


def _row_number(column: pd.Series, name: str, report: ColumnReport) -> str:
    """Report that whole numbers count or name the rows; empty where they do not."""
    n = len(column) - report.missing
    if report.use != "number" or report.distinct != n or n < _FEWEST_IDS:
        return ""
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        return ""
    values = pd.to_numeric(column.dropna(), errors="coerce").to_numpy(dtype=float)
    if np.isnan(values).any() or not np.isfinite(values).all() or (values % 1 != 0).any():
        return ""
    if _is_id_name(name):
        return "a row id by its name, different in every row"
    whole = pd.api.types.is_integer_dtype(column) and n == len(column) >= _FEWEST_RUN
    if whole and (np.diff(values) == 1).all() and not _TIME_WORDS & set(_words(name)):
        return f"row numbers: {values[0]:.0f} to {values[-1]:.0f} in order"
    return ""


def counts_rows(column: pd.Series, name: str) -> bool:
    """Whether a column numbers the rows of its own table from 0 or 1, and is not called an id."""
    if len(column) < 2 or set(_words(name)) & _ID_WORDS or column.isna().any():
        return False
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return bool(numbers[0] in (0, 1) and (np.diff(numbers) == 1).all())


def _words(name: str) -> list[str]:
    return [word.casefold() for word in _WORDS.findall(name)]


def _is_id_name(name: str) -> bool:
    words = _words(name)
    named = bool(words) and (words[-1] in _ID_WORDS or words[0] in _ID_WORDS)
    return named or _INDEX_NAME.fullmatch(name.strip()) is not None


def _left_out(plan: ColumnPlan, reason: str, change: Wish = "keep") -> ColumnPlan:
    report = replace(plan.report, use="left out", reason=reason, change=change)
    return ColumnPlan(report, warn=True)
