"""Choice of each table column's use, with the reason: number, category, date, text, left out."""

import datetime
import decimal
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from nearwise.data.tables.numeric_columns import Written
from nearwise.data.tables.spellings import Common, Decimal, Spelling
from nearwise.estimators.inputs.dates import (
    TIME,
    DateColumn,
    check_format,
    date_column,
    holds_dates,
    holds_times,
    spelled_layout,
)
from nearwise.estimators.inputs.group_columns import alike_by
from nearwise.estimators.inputs.text_columns import (
    dates_among,
    dates_unlike,
    decimal_of,
    may_be_gaps,
    numbers_among,
)
from nearwise.estimators.inputs.text_vectors import FOLDER, Embed, kind_of_folder
from nearwise.estimators.inputs.texts import holds_text
from nearwise.names import did_you_mean, listed
from nearwise.warn import warn_user

Use = Literal["number", "category", "date", "text", "left out"]
# Also "date:%d.%m.%y", "text:FOLDER", or a function from texts to vectors.
Wish = Literal["keep", "number", "category", "date", "text", "left out"] | str | Embed
WISHES = ("keep", "number", "category", "date", "text", "left out")
_PADDED = re.compile(r"[+-]?0\d+", re.ASCII)  # 007 is a code
_MOSTLY = 0.9  # smallest share of numeric cells for which the others count as typing errors
ALIKE = "rows of one value are nearly alike, as those of one person or device are"
EMPTY = "no value in any row"  # reasons to leave a column out
SHOWN = "shown with each row"
ROW_ID = "a row id by its name, different in every row"
_FEWEST_IDS = 5  # fewest rows to detect a row id by its name and distinct values
_FEWEST_RUN = 10  # fewest rows to detect row numbers that count up by one
_FEWEST_TEXTS = 20  # fewest rows to detect a text that differs in every row
_MANY_TEXTS, _NEARLY_ALL = 100, 0.95  # ... in nearly every row
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
    """Warning about a column that is left out, parsed with gaps, or ambiguous."""


@dataclass(frozen=True)
class ColumnReport:
    """Properties and use of a column of the training table.

    Attributes
    ----------
    name : str
    type : str
        Type of the values, as named by pandas.
    missing : int
        Number of rows without a value, including cells with a text in `gap_words`.
    distinct : int or None
        Number of different values; None if they cannot be compared.
    use : {"number", "category", "date", "text", "left out"}
    parts : tuple of str
        Numeric features made of a date.
    gap_words : tuple of str
        Texts that count as missing in a column of numbers or dates.
    reason : str
        Reason for the use; empty if the type explains it.
    change : {"", "keep", "number", "category", "date", "text", "groups"}
        Value for this column in `columns`, or flag of 'nearwise fit', for the alternative use.
        "groups": its values may identify groups of rows, see `groups` of `fit`.
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
        """Fields as plain data for JSON."""
        plain = asdict(self)
        return plain | {"parts": list(self.parts), "gap_words": list(self.gap_words)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "ColumnReport":
        """Rebuild a report from the result of `to_json`."""
        tuples = {"parts": tuple(state["parts"]), "gap_words": tuple(state["gap_words"])}
        return cls(**(state | tuples))


@dataclass(frozen=True)
class ColumnPlan:
    """Report of a column, and how to parse it; `warn`: the user gets a warning.

    `spelling` describes numbers that are not plain digits with a decimal point. `embed` is the
    folder of a model of texts, or a function from texts to vectors.
    """

    report: ColumnReport
    date: DateColumn | None = None
    warn: bool = False
    spelling: Spelling | None = None
    embed: str | Embed | None = None


def plan_columns(
    frame: pd.DataFrame,
    wishes: Mapping[str, Wish] | None = None,
    *,
    judge: bool = True,
    shown: str | None = None,
) -> list[ColumnPlan]:
    """Choose the use of each column of a training table.

    Types decide first: numbers and truth values are numbers, dates are dates, all else is a
    category. Cells of several words become text. Text with a date or a time of day in every row
    becomes dates. Text with numbers that
    share a sign or unit, or have thousands separators, becomes numbers. Words for a gap among them
    ("?", "unknown") and rare texts are gaps. Row numbers, row ids, and text that differs in
    (nearly) every row are left out, as they do not help to predict new rows. `wishes` override
    all this; "keep" only forbids leaving a column out. Without `judge` types alone decide. A
    column without any value is always left out, and so is the column `shown` with each row.

    ValueError if a wish names no column or no use or cannot be fulfilled, or if a column holds
    values other than numbers, text and dates.
    """
    chosen = _check_wishes(wishes, frame)
    if shown is not None and chosen.get(shown, "left out") != "left out":
        raise ValueError(
            f"columns={{{shown!r}: {chosen[shown]!r}}}: a column that is shown (show={shown!r}) is "
            "no feature. To use it too, show a copy of it under another name."
        )
    written = Written.of(frame)
    usual = written.decimal or (decimal_of(frame) if judge else "")
    plans = [
        ColumnPlan(_report(frame[name], str(name), "left out", reason=SHOWN))
        if name == shown
        else plan_column(frame[name], str(name), chosen.get(str(name)), written, usual, judge=judge)
        for name in frame.columns
    ]
    return _with_groups(frame, plans, chosen) if judge else plans


def _with_groups(
    frame: pd.DataFrame, plans: list[ColumnPlan], chosen: Mapping[str, Wish]
) -> list[ColumnPlan]:
    """Mark columns that may identify groups of rows, except columns with a wish."""
    used = {plan.report.name: plan.report for plan in plans if plan.report.use != "left out"}
    alike = set(alike_by({name: frame[name] for name in used}))
    found = []
    for plan in plans:
        name, report = plan.report.name, plan.report
        few = report.distinct is not None and 2 <= report.distinct <= len(frame) / 2
        named = few and report.use != "date" and is_id_name(name)
        if name in used and name not in chosen and (named or name in alike):
            why = ALIKE if name in alike else "an id by its name, and values repeat"
            reason = f"{report.reason}; {why}" if report.reason else why
            plan = replace(
                plan,
                report=replace(report, reason=reason, change="groups"),
                warn=plan.warn or name in alike,
            )
        found.append(plan)
    return found


def refuse_nothing_used(reports: Sequence[ColumnReport]) -> None:
    """Raise ValueError if every column is left out."""
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
        + (f" To read its words: columns={{{first.name!r}: 'text'}}." if text else "")
    )


def refuse_repeated(columns: Sequence[str]) -> None:
    """Raise ValueError if columns share a name and cannot be distinguished."""
    twice = sorted(name for name, count in Counter(columns).items() if count > 1)
    if twice:
        raise ValueError(f"Columns {twice} occur more than once. Rename or drop them.")


def warn_of_columns(plans: list[ColumnPlan]) -> None:
    """Issue one warning about all columns with `warn`."""
    spoken = [plan.report for plan in plans if plan.warn]
    if not spoken:
        return
    lines = [f"Column {report.name!r} {_spoken(report)}{_remedy(report)}." for report in spoken[:5]]
    more = f" So are {len(spoken) - 5} more: see column_report_." if len(spoken) > 5 else ""
    warn_user(" ".join(lines) + more, ColumnWarning)


def _remedy(report: ColumnReport) -> str:
    """Hint on how to change the use of a column."""
    if report.change == "groups":
        return (
            f". If new rows will have other values there, give fit(groups=X[{report.name!r}]) and "
            f"leave the column out: columns={{{report.name!r}: 'left out'}}"
        )
    return f" (columns={{{report.name!r}: {report.change!r}}} changes it)" if report.change else ""


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
        if isinstance(wish, str) and wish.startswith("date:"):
            check_format(wish.removeprefix("date:"), name)
        elif isinstance(wish, str) and wish.startswith(FOLDER):
            kind_of_folder(wish.removeprefix(FOLDER))
        elif not callable(wish) and wish not in WISHES:
            options = ", ".join(map(repr, WISHES))
            raise ValueError(
                f"columns={{{name!r}: {wish!r}}} is not known.{did_you_mean(wish, WISHES)} Use one "
                f"of {options}, a format such as 'date:%d-%m-%y', the folder of a model as "
                "'text:FOLDER', or a function from texts to vectors."
            )
    return chosen


def plan_column(
    column: pd.Series,
    name: str,
    wish: Wish | None,
    written: Written,
    usual: Decimal,
    *,
    judge: bool,
) -> ColumnPlan:
    """Choose the use of one column by the rules of `plan_columns`.

    `written` is the number format of the file, `usual` the decimal mark of ambiguous numbers.
    """
    if wish == "left out":
        return ColumnPlan(_report(column, name, "left out", reason="as you said"))
    if not column.notna().any():
        return ColumnPlan(_report(column, name, "left out", reason=EMPTY), warn=True)
    kind = kind_of(column)
    if wish == "category":
        return ColumnPlan(_report(column, name, "category"))
    if callable(wish) or (wish is not None and wish.startswith("text")):
        return _as_text(column, name, kind, wish)
    if wish == "number" and kind != "number":
        return _as_number(column, name, kind, usual)
    if kind == "date" or (wish is not None and wish.startswith("date")):
        return _as_date(column, name, kind, (wish or "").removeprefix("date").removeprefix(":"))
    plan = ColumnPlan(_report(column, name, kind))
    if kind == "number" and name in written.columns:
        is_whole = pd.api.types.is_integer_dtype(column)
        plan = _as_written(plan, written.columns[name], is_whole=is_whole)
    if not judge or wish == "number":
        return plan
    if kind == "category" and not isinstance(column.dtype, pd.CategoricalDtype):
        plan = _judge_text(column, name, plan, usual)
    if wish == "keep" or plan.report.use in ("date", "text", "left out"):
        return _kept(plan, column) if wish == "keep" else plan
    reason = _row_number(column, name, plan.report)
    return _left_out(plan, reason) if reason else plan


def _as_text(column: pd.Series, name: str, kind: str, wish: str | Embed) -> ColumnPlan:
    if kind != "category":
        raise ValueError(
            f"columns={{{name!r}: {wish!r}}}: the column holds {kind}s, which need no wish. "
            "Leave that out."
        )
    if wish == "text":
        return ColumnPlan(_report(column, name, "text", reason="as you said"))
    embed = wish if callable(wish) else wish.removeprefix(FOLDER)
    source = getattr(embed, "__name__", type(embed).__name__) if callable(embed) else embed
    reason = f"as you said, with vectors of {source}"
    return ColumnPlan(_report(column, name, "text", reason=reason), embed=embed)


def _kept(plan: ColumnPlan, column: pd.Series) -> ColumnPlan:
    if plan.report.use != "left out":
        return plan
    return ColumnPlan(_report(column, plan.report.name, kind_of(column)))


def kind_of(column: pd.Series) -> Literal["number", "category", "date"]:
    """Classify a column by its type; ValueError unless it holds numbers, text or dates."""
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        if pd.api.types.is_complex_dtype(column):
            raise ValueError(f"Column {column.name!r} holds complex numbers. Split it in two.")
        return "number"
    if pd.api.types.is_timedelta64_dtype(column):
        return "number"
    if isinstance(column.dtype, pd.CategoricalDtype | pd.StringDtype):
        return "category"
    if holds_dates(column) or holds_times(column):
        return "date"
    values = column.dropna()
    number = int | float | np.number | bool | decimal.Decimal | datetime.timedelta
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


def _as_written(plan: ColumnPlan, spelling: Spelling, *, is_whole: bool) -> ColumnPlan:
    """Record the number format of a file that `read_table` has parsed."""
    if not spelling.described or (is_whole and spelling == Spelling(",")):
        return replace(plan, spelling=spelling)  # the format of the whole table
    reason = f"numbers with {spelling.described}"
    report = replace(plan.report, reason=reason, change="category")
    return replace(plan, report=report, spelling=spelling)


def _as_number(column: pd.Series, name: str, kind: str, usual: Decimal) -> ColumnPlan:
    if kind == "date":
        raise ValueError(
            f"columns={{{name!r}: 'number'}}: the column holds dates. Leave that out: dates become "
            "numbers by themselves."
        )
    values = column.dropna().astype(object).unique().tolist()
    common, others, tokens = numbers_among(values, majority=True)
    if values and len(others) == len(values):
        raise ValueError(
            f"columns={{{name!r}: 'number'}}: no value reads as a number, such as {values[0]!r}. "
            f"Leave that out, or use the column otherwise: columns={{{name!r}: 'category'}}."
        )
    several = _several_signs(common)
    if several:
        shown = [next(text for text, token in tokens.items() if token.sign == s) for s in several]
        raise ValueError(
            f"columns={{{name!r}: 'number'}}: the column holds different units, such as "
            f"{listed(shown)}. Bring its numbers to one unit first, or use it as a 'category'."
        )
    bare = [text for text, token in tokens.items() if not token.sign]
    return _in_numbers(column, name, common, others, usual, bare)


def _several_signs(common: Common | None) -> list[str]:
    signs = sorted(common.signs - {""}) if common is not None else []
    return signs if len(signs) > 1 else []


def _in_numbers(
    column: pd.Series,
    name: str,
    common: Common | None,
    words: list[str],
    usual: Decimal,
    bare: list[str],
) -> ColumnPlan:
    """Parse text as numbers, also `bare` ones without a sign; `words` count as missing."""
    spelling = common.spelling(usual) if common is not None else None
    special = spelling is not None and spelling.described
    if spelling is not None and not spelling.decimal:
        spelling = replace(spelling, decimal=usual)  # decimal mark of the table
    plan = ColumnPlan(_report(column, name, "number"))
    if words:
        plan = _with_words_as_gaps(column, plan.report, words)
    if not special:
        return plan
    n_bare = int(column.isin(bare).sum()) if spelling is not None and spelling.bare else 0
    without = f", {n_bare} of {len(column)} cells without it" if n_bare else ""
    reason = "; ".join(filter(None, [f"numbers with {special}{without}", plan.report.reason]))
    report = replace(plan.report, reason=reason, change="category")
    return ColumnPlan(report, warn=True, spelling=spelling)


def _as_date(column: pd.Series, name: str, kind: str, layout: str) -> ColumnPlan:
    if kind == "date":
        return _dated(column, name, TIME if holds_times(column) else "", [])
    if kind == "number" and not layout:
        raise ValueError(
            f"columns={{{name!r}: 'date'}}: the column holds numbers. Name the format that they "
            f"have: columns={{{name!r}: 'date:%Y%m%d'}}."
        )
    counts = column.astype(object).value_counts()
    layouts, odd = ([layout], []) if layout else dates_among(counts.index.tolist())
    if len(layouts) > 1:
        shown = " or ".join(f"columns={{{name!r}: 'date:{one}'}}" for one in layouts)
        raise ValueError(
            f"Column {name!r} holds dates such as {column.dropna().iloc[0]!r}, in which day and "
            f"month cannot be told apart. Name the format: {shown}, or write them as 2024-12-31."
        )
    if layout:
        odd = dates_unlike(counts.index.tolist(), layout)
    if not layouts or not may_be_gaps(odd, counts):
        shown = f", such as {next(iter(odd or counts.index), None)!r}" if len(counts) else ""
        raise ValueError(
            f"columns={{{name!r}: 'date{':' * bool(layout)}{layout}'}}: not all values are dates"
            f"{' of this format' * bool(layout)}{shown}. Name the format that they have, such as "
            f"columns={{{name!r}: 'date:%d-%m-%y'}}, or write them as 2024-12-31."
        )
    return _dated(column, name, layouts[0], odd)


def _dated(column: pd.Series, name: str, layout: str, words: list[str]) -> ColumnPlan:
    date = date_column(column.mask(column.isin(words)) if words else column, name, layout)
    what = "time of day" if layout == TIME else "date"
    text = layout and not holds_times(column)
    read = "" if layout == TIME else f" (read as {spelled_layout(layout)})"
    reason, change = (f"text that is a {what} in every row{read}", "category") if text else ("", "")
    report = _report(column, name, "date", parts=tuple(date.parts), reason=reason, change=change)
    if not words:
        return ColumnPlan(report, date)
    plan = _with_words_as_gaps(
        column, replace(report, reason=f"text that is a {what}{read}"), words
    )
    return replace(plan, date=date)


def _judge_text(column: pd.Series, name: str, plan: ColumnPlan, usual: Decimal) -> ColumnPlan:
    """Choose the use of a text column by its values."""
    counts = column.astype(object).value_counts()
    values = counts.index.tolist()
    layouts, odd = dates_among(values)
    if layouts and may_be_gaps(odd, counts):
        if len(layouts) == 1:
            return _dated(column, name, layouts[0], odd)
        reason = "dates in which day and month cannot be told apart"
        return ColumnPlan(replace(plan.report, reason=reason, change="date"), warn=True)
    common, others, tokens = numbers_among(values)
    own = _every_row_its_own(plan.report, len(column))
    if common is None or counts[others].sum() > (1 - _MOSTLY) * counts.sum():
        if own != ROW_ID and holds_text(values, counts.tolist()):
            reason = f"mostly several words, {len(values)} different texts"
            return ColumnPlan(_report(column, name, "text", reason=reason, change="category"))
        return _left_out(plan, own) if own else plan
    if len(common.signs) > 1:
        return _of_several_signs(column, plan, common, [t for t in tokens if tokens[t].sign])
    if not others and common.plain and common.decimal_by(usual) != ",":
        return _numbers_as_text(column, name, values, plan)
    if may_be_gaps(others, counts):
        return _in_numbers(column, name, common, others, usual, [])
    reason = f"numbers, but {_cells_of_text(column, others)}"
    return ColumnPlan(replace(plan.report, reason=reason, change="number"), warn=True)


def _of_several_signs(
    column: pd.Series, plan: ColumnPlan, common: Common, signed: list[str]
) -> ColumnPlan:
    """Keep numbers with different signs or units, or partly without, as categories."""
    several, n = _several_signs(common), int(column.isin(signed).sum())
    if several:
        reason, change = f"numbers with different units: {listed(several)}", ""
    elif n <= (1 - _MOSTLY) * column.notna().sum():
        reason, change = f"numbers, but {_cells_of_text(column, signed)}", "number"
    else:
        others = f"with {max(common.signs)!r} and the others without"
        reason, change = f"numbers, {n} {others}", "number"
    own = _every_row_its_own(plan.report, len(column)) if several else ""
    plan = ColumnPlan(replace(plan.report, reason=reason, change=change), warn=True)
    return _left_out(plan, f"{own}; {reason}") if own else plan


def _numbers_as_text(
    column: pd.Series, name: str, values: list[Any], plan: ColumnPlan
) -> ColumnPlan:
    """Keep numbers written as text as categories, unless they differ in (nearly) every row."""
    reason = _every_row_its_own(plan.report, len(column))
    padded = any(isinstance(v, str) and _PADDED.fullmatch(v.strip()) for v in values)
    if reason and (padded or is_id_name(name)):
        return _left_out(plan, reason, change="number")
    if reason:
        report = _report(
            column, name, "number", change="category", reason="text that is a number in every row"
        )
        return ColumnPlan(report, warn=True)
    return ColumnPlan(replace(plan.report, reason="text that reads as numbers", change="number"))


def _with_words_as_gaps(column: pd.Series, report: ColumnReport, words: list[str]) -> ColumnPlan:
    """Plan for numbers or dates with some texts that count as missing."""
    cells = _cells_of_text(column, words, " that counts as missing")
    report = replace(
        report,
        gap_words=tuple(sorted(words)),
        reason="; ".join(filter(None, [report.reason, cells])),
        change="category",
        missing=report.missing + int(column.isin(words).sum()),
        distinct=None if report.distinct is None else report.distinct - len(words),
    )
    return ColumnPlan(report, warn=True)


def _cells_of_text(column: pd.Series, texts: list[str], counts: str = "") -> str:
    rows = np.flatnonzero(column.isin(texts))
    first = f"{column.iloc[rows[0]]!r} in row {rows[0]}, counted from 0"
    return f"{len(rows)} of {len(column)} cells hold text{counts} (first {first})"


def _every_row_its_own(report: ColumnReport, n_rows: int) -> str:
    """Reason that a text differs in (nearly) every row; empty if it does not."""
    n, distinct = n_rows - report.missing, report.distinct or 0
    if n < 0.9 * n_rows:
        return ""  # whether there is a value may be informative
    if distinct == n and n >= _FEWEST_IDS and is_id_name(report.name):
        return ROW_ID
    if distinct == n and n >= _FEWEST_TEXTS:
        return "text that is different in every row"
    if n >= _MANY_TEXTS and distinct >= _NEARLY_ALL * n:
        return f"text that is different in nearly every row ({distinct} in {n})"
    return ""


def _row_number(column: pd.Series, name: str, report: ColumnReport) -> str:
    """Reason that whole numbers are row numbers or row ids; empty if they are not."""
    n = len(column) - report.missing
    if report.use != "number" or report.distinct != n or n < _FEWEST_IDS:
        return ""
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        return ""
    values = pd.to_numeric(column.dropna(), errors="coerce").to_numpy(dtype=float)
    if np.isnan(values).any() or not np.isfinite(values).all() or (values % 1 != 0).any():
        return ""
    if is_id_name(name):
        return ROW_ID
    whole = pd.api.types.is_integer_dtype(column) and n == len(column) >= _FEWEST_RUN
    if whole and (np.diff(values) == 1).all() and not _TIME_WORDS & set(_words(name)):
        return f"row numbers: {values[0]:.0f} to {values[-1]:.0f} in order"
    return ""


def counts_rows(column: pd.Series, name: str) -> bool:
    """Whether a column numbers the rows of its table from 0 or 1 and is not named an id."""
    if len(column) < 2 or set(_words(name)) & _ID_WORDS or column.isna().any():
        return False
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return bool(numbers[0] in (0, 1) and (np.diff(numbers) == 1).all())


def _words(name: str) -> list[str]:
    return [word.casefold() for word in _WORDS.findall(name)]


def is_id_name(name: str) -> bool:
    """Whether a column is named an id or an index."""
    words = _words(name)
    named = bool(words) and (words[-1] in _ID_WORDS or words[0] in _ID_WORDS)
    return named or _INDEX_NAME.fullmatch(name.strip()) is not None


def _left_out(plan: ColumnPlan, reason: str, change: str = "keep") -> ColumnPlan:
    report = replace(plan.report, use="left out", reason=reason, change=change)
    return ColumnPlan(report, warn=True)
