"""What each column of a table is taken for, what is left out, and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from nearwise.classifier.inputs.column_report import (
    WISHES,
    ColumnPlan,
    ColumnReport,
    ColumnWarning,
    Wish,
)
from nearwise.classifier.inputs.column_rules import plan_column
from nearwise.classifier.inputs.containers import as_rows
from nearwise.names import did_you_mean
from nearwise.warn import warn_user


def plan_columns(
    frame: pd.DataFrame, wishes: Mapping[str, Wish] | None = None, *, judge: bool = True
) -> list[ColumnPlan]:
    """Decide what each column of a training table is used as.

    Types decide first: numbers and truth values are numbers, dates are dates, all else is a
    category. Text that writes a date in every row is one; texts among numbers that stand for a gap
    ("?", "unknown") are gaps. Left out are row numbers, row ids, and text that differs in (nearly)
    every row, which tell nothing of new rows. `wishes` overrule all this; "keep" only forbids to
    leave a column out. Without `judge` types alone decide.

    ValueError if a wish names no column or no use, cannot be fulfilled, leaves no column, or if a
    column holds what is none of numbers, text and dates.
    """
    chosen = _check_wishes(wishes, frame)
    plans = [
        plan_column(frame[name], str(name), chosen.get(str(name)), judge=judge)
        for name in frame.columns
    ]
    if plans and all(plan.report.use == "left out" for plan in plans):
        first = plans[0].report
        raise ValueError(
            f"Every column is left out, {first.name!r} first ({first.reason}). Keep those that "
            f"say something of a row: columns={{{first.name!r}: 'keep'}} (--keep "
            f"'{first.name}')."
        )
    return plans


def report_columns(X: Any, columns: Mapping[str, Wish] | None = None) -> list[ColumnReport]:
    """Tell, without fitting, what the columns of a table would be used as.

    Parameters
    ----------
    X : DataFrame of shape (n_rows, n_columns), or a table of polars or pyarrow
    columns : mapping of str to {"keep", "number", "category", "date", "left out"}, optional
        As in `AttnKNNClassifier`.

    Returns
    -------
    reports : list of ColumnReport

    Raises
    ------
    ValueError
        If `X` is no table, and as in `AttnKNNClassifier.fit`.
    """
    frame = as_rows(X)
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"X is a {type(X).__name__}, which has no columns by name. Give a table.")
    names = [str(name) for name in frame.columns]
    refuse_repeated(names)
    frame = frame.set_axis(names, axis=1)
    return [plan.report for plan in plan_columns(frame, columns)]


def refuse_repeated(columns: Sequence[str]) -> None:
    """Refuse columns that share a name: nothing could tell them apart."""
    twice = sorted(name for name, count in Counter(columns).items() if count > 1)
    if twice:
        raise ValueError(f"Columns {twice} occur more than once. Rename or drop them.")


def warn_of_columns(plans: list[ColumnPlan]) -> None:
    """Say once what the user should know and has not asked for."""
    spoken = [plan.report for plan in plans if plan.warn]
    if not spoken:
        return
    lines = [
        f"Column {report.name!r} {_spoken(report)} "
        f"(columns={{{report.name!r}: {report.change!r}}} changes it)."
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
