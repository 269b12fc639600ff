"""First line of a text table: detection and check of column names."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

import pandas as pd

from nearwise.data.tables.unpack import Note
from nearwise.names import listed

_NUMBER = re.compile(r"[+-]?(?:\d[\d.,]*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_BLANK = {"", "?", "NA", "N/A", "nan", "NaN", "None", "null", "NULL"}
_FEW = 3  # least length of an ascending row of numbers that may be names, such as years
_DIGITS = 4  # digits that make a pattern significant, as in 2020-01-31


def check_names(
    cells: Sequence[str],
    body: pd.DataFrame,
    *,
    insisted: bool,
    known: Collection[str],
    where: str,
    note: Note,
) -> pd.DataFrame:
    """Set the column names of `body` from the first line `cells`, or raise ValueError.

    Unnamed empty columns are removed; another unnamed column i becomes "Unnamed: i", counted from
    0. The first line holds names if `insisted`, or if it has all columns of a model (`known`).
    ValueError if it looks like data, or a name occurs more than once.
    """
    named = known and set(known) <= set(cells)
    if not insisted and not named:
        _check_first_line(cells, body, where, note)
    twice = [name for name, n in Counter(cells).items() if n > 1 and name.strip()]
    if twice:
        raise ValueError(
            f"{where}: the column names {listed(twice)} occur more than once in the first line. "
            "Give every column a name of its own."
        )
    nameless = [i for i, name in enumerate(cells) if not name.strip()]
    names = unnamed_by_place(cells)
    table = body.set_axis(names, axis=1)
    empty = [names[i] for i in nameless if len(table) and table.iloc[:, i].isna().all()]
    unnamed = [names[i] for i in nameless if i and names[i] not in empty]  # 0: row numbers
    if empty:
        note(f"{where}: {len(empty)} columns without a name and without a value; left out.")
    if unnamed:
        note(f"{where}: {len(unnamed)} columns have no name; they are called {listed(unnamed)}.")
    return table.drop(columns=empty)


def unnamed_by_place(cells: Sequence[str]) -> list[str]:
    """Return column names, with "Unnamed: i" for a blank one."""
    return [name if name.strip() else f"Unnamed: {i}" for i, name in enumerate(cells)]


def _check_first_line(cells: Sequence[str], body: pd.DataFrame, where: str, note: Note) -> None:
    """Raise ValueError if the first line looks like data; note numbers used as names."""
    columns = {
        i: column
        for i, (cell, (_, column)) in enumerate(zip(cells, body.items(), strict=True))
        if cell.strip() not in _BLANK
    }
    places = list(columns)
    numbers = [i for i in places if _NUMBER.fullmatch(cells[i].strip())]
    words = sorted(set(places) - set(numbers))
    if any(_holds_numbers(columns[i]) for i in words):
        return  # a word above numbers is a name
    over_numbers = [i for i in numbers if not len(body) or _holds_numbers(columns[i])]
    alike = [i for i in words if _is_like(cells[i].strip(), columns[i])]
    like_data = [*over_numbers, *alike]
    if not like_data or 2 * len(like_data) < len(places):
        return
    shown = listed([cells[i] for i in over_numbers])
    if not alike and _may_be_names([cells[i] for i in numbers], columns, numbers):
        if 2 * len(over_numbers) > len(places):
            note(
                f"{where}: the first line is read as column names although it holds numbers "
                f"({shown}). If it is a row of data, pass header=False (--no-header)."
            )
        return
    reasons = [f"numbers such as {shown}"] if over_numbers else []
    if alike:
        reasons.append(f"text as further down, {listed([cells[i] for i in alike])}")
    raise ValueError(
        f"{where}: the first line seems to be data, not column names: it holds "
        f"{'; '.join(reasons)}. If it is a row, write a line of names above it, or pass "
        "header=False (on the command line --no-header): the columns are then called 0, 1, ... "
        f"{len(cells) - 1}, also as --target. If it holds names, pass header=True (--header)."
    )


def _holds_numbers(column: "pd.Series") -> bool:
    numeric = pd.api.types.is_numeric_dtype(column.dtype)
    return numeric and not pd.api.types.is_bool_dtype(column.dtype) and bool(column.notna().any())


def _is_like(cell: str, column: "pd.Series") -> bool:
    """Whether text occurs in a column, or has the pattern of its values (such as dates)."""
    values = column.dropna().astype(str).str.strip()
    if not len(values):
        return False
    if values.eq(cell).any():
        return True
    spelling = _spelling(cell)
    return spelling.count("9") >= _DIGITS and all(
        _spelling(v) == spelling for v in values.iloc[:50]
    )


def _spelling(text: str) -> str:
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "9", text))


def _may_be_names(
    cells: Sequence[str], columns: dict[int, "pd.Series"], places: Sequence[int]
) -> bool:
    """Whether numbers are names: 0, 1, 2 ..., or monotonic and far from the values below them."""
    try:
        values = [float(cell) for cell in cells]
    except ValueError:  # 1.000,5
        return False
    if len(values) < _FEW:
        return False
    if values == list(range(len(values))):
        return True  # a DataFrame without names, written by pandas
    rising = all(a < b for a, b in pairwise(values)) or all(a > b for a, b in pairwise(values))
    return rising and 2 * sum(
        _is_outside(value, columns[i]) for value, i in zip(values, places, strict=True)
    ) > len(values)


def _is_outside(value: float, column: "pd.Series") -> bool:
    """Return whether a number lies outside a column's range, widened by its width on both sides."""
    if not _holds_numbers(column):
        return bool(len(column))
    low, high = float(column.min()), float(column.max())
    width = high - low
    return not low - width <= value <= high + width
