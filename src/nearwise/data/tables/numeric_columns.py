"""Columns of delimited text that are numbers in a common format."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import pandas as pd

from nearwise.data.tables.spellings import (
    DECIMALS,
    Common,
    Decimal,
    Spelling,
    Token,
    in_common,
    number_text,
    tokenized,
)
from nearwise.data.tables.unpack import Note
from nearwise.names import listed

Columns = dict[int, "pd.Series"]
Tokens = dict[str, Token]
AsText = Callable[[list[int]], pd.DataFrame]

_WHOLE, _PADDED = re.compile(r"\d+", re.ASCII), re.compile(r"0\d+", re.ASCII)
# missing values, never text: question mark, spreadsheet errors, NULL of databases
GAP_MARKS = frozenset(
    ("?", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!", "(null)", "(NULL)", "\\N")
)
_EVIDENCE = 1000  # distinct values with a sign that are used to detect the decimal mark
_ATTRIBUTE = "written"  # of a DataFrame's attrs


class Learned(Protocol):
    """Protocol of models that keep the number formats of their training table."""

    @property
    def report_(self) -> Any:
        """Report of the fit; `written` holds the number formats of the columns."""


@dataclass(frozen=True)
class Written:
    """Number formats of a table.

    `columns` has the formats of columns that are ambiguous in text; `decimal` is the decimal mark
    of the table, "" if none occurs.
    """

    columns: dict[str, Spelling] = field(default_factory=dict)
    decimal: Decimal = ""

    def attach(self, table: pd.DataFrame) -> pd.DataFrame:
        """Store the formats in the attributes of a table; `of` reads them again."""
        if self.columns or self.decimal:
            columns = {name: spelling.to_json() for name, spelling in self.columns.items()}
            table.attrs[_ATTRIBUTE] = {"decimal": self.decimal, "columns": columns}
        return table

    @classmethod
    def of(cls, table: pd.DataFrame) -> "Written":
        """Return the formats of a table from `read_table`; empty for any other table."""
        state = table.attrs.get(_ATTRIBUTE)
        if not state:
            return cls()
        columns = {name: Spelling(**spelling) for name, spelling in state["columns"].items()}
        return cls(columns, state["decimal"])


def read_numbers(
    table: pd.DataFrame,
    names: Sequence[str],
    delimiter: str,
    where: str,
    note: Note,
    *,
    as_text: AsText,
    padded: bool,
    like: Written,
) -> tuple[pd.DataFrame, Written]:
    """Convert text columns to numbers if every value is a number in a common format.

    Cells with only a question mark (or another of `GAP_MARKS`) become missing first. A column has
    decimal commas (1,5 or 1.000,5) or commas at thousands (1,000 or 1,000.5) if all its values fit.
    An ambiguous column, as 1,234, follows the other columns of the file; without them, the decimal
    mark of `like`; without that, a comma separates thousands in comma-separated files and decimals
    in all others. If some columns have decimal commas and none has decimal points, points separate
    thousands (1.000). A column stays text if any value is not a number, or if it has integers and
    one begins with a zero (01008): these are codes. Numbers with signs or units stay text, and so
    do columns with a format in `like`.

    Columns are numbered from 0; `as_text` returns columns in their original form, `padded` says
    whether a number may begin with a zero. Numbers are read to the nearest float64; integers stay
    int64 without missing values. Returns the table and its number formats.
    """
    known = [i for i, name in enumerate(names) if name in like.columns]
    table = _with(table, _as_written(table, {i: like.columns[names[i]] for i in known}, as_text))
    columns = _without_gap_marks(text_columns(table), names, where, note)
    kept = {i: columns.pop(i) for i in known if i in columns}
    if padded:
        columns |= _codes(table.drop(columns=known), as_text)
    read = {i: found for i, column in columns.items() if (found := _style(column))}
    styles, tokens = {i: one[0] for i, one in read.items()}, {i: one[1] for i, one in read.items()}
    sure = {mark for found in styles.values() for mark in DECIMALS if mark == found.decimal}
    pointed: Columns = {}
    fits: dict[int, tuple[Common, Tokens] | None] = {}
    if not all(found.plain for found in styles.values()):
        written = _with_points(table.drop(columns=known), as_text)
        fits = {i: _common(column.dropna().unique()) for i, column in written.items()}
        pointed = {i: written[i] for i, found in fits.items() if found and _may_have_commas(found)}
        sure |= {"."} if len(written) > len(pointed) else set()
    told: Decimal = min(sure) if len(sure) == 1 else ""
    usual: Decimal = told or like.decimal or ("." if delimiter == "," else ",")
    spelt = {
        i: found.spelling(told if found.plain else usual)
        for i, found in styles.items()
        if found.signs == {""}
    }
    if sure == {","}:
        columns |= pointed
        spelt |= dict.fromkeys(pointed, Spelling(",", "."))
        tokens |= {i: found[1] for i, found in fits.items() if i in pointed and found}
    special = {i: spelling for i, spelling in spelt.items() if spelling.described}
    for what in dict.fromkeys(spelling.described for spelling in special.values()):
        alike = [names[i] for i, spelling in sorted(special.items()) if spelling.described == what]
        note(f"{where}: read as numbers with {what}: {listed(alike)}.")
    numbers = {i: _numbers(columns[i], s.decimal, tokens.get(i, {})) for i, s in spelt.items()}
    table = _with(table, columns | kept | numbers)
    of_names = {i: name if name.strip() else f"Unnamed: {i}" for i, name in enumerate(names)}
    return table, _written(table, special, styles, told, of_names)


def _with(table: pd.DataFrame, columns: dict[Any, "pd.Series"]) -> pd.DataFrame:
    if not columns:
        return table
    return pd.concat([columns.get(i, table[i]) for i in range(table.shape[1])], axis=1)


def _written(
    table: pd.DataFrame,
    special: dict[int, Spelling],
    styles: dict[int, Common],
    sure: Decimal,
    names: dict[int, str],
) -> Written:
    """Return the formats of a table; a decimal mark found once applies to all numeric columns."""
    kinds = {cast(int, i): kind for i, kind in table.dtypes.items()}
    floats = [i for i, kind in kinds.items() if kind == np.float64 and i not in special]
    points = any((table[i] % 1 > 0).any() or not table[i].hasnans for i in floats)
    signed = [found.decimal for found in styles.values() if found.signs != {""}]
    shown = [*signed, *(spelling.decimal for spelling in special.values())]
    marks = [mark for mark in DECIMALS if mark in shown]
    if not marks:
        return Written(_named(special, names), "." if points else sure)
    decimal: Decimal = marks[0] if len(marks) == 1 and not (points and "," in marks) else ""
    rest = [i for i, kind in kinds.items() if pd.api.types.is_any_real_numeric_dtype(kind)]
    others = {i: Spelling(decimal) for i in rest if decimal} | special
    return Written(_named(others, names), decimal)


def _named(spellings: dict[int, Spelling], names: dict[int, str]) -> dict[str, Spelling]:
    return {names[i]: spelling for i, spelling in sorted(spellings.items())}


def _as_written(table: pd.DataFrame, known: dict[int, Spelling], as_text: AsText) -> Columns:
    """Return columns with a known format as text if pandas may have misread them."""
    places = [
        i
        for i, spelling in known.items()
        if pd.api.types.is_any_real_numeric_dtype(table[i].dtype)
        and spelling.hides_from_pandas
        and (spelling.sign or table[i].dtype == np.float64)
    ]
    return {cast(int, i): column for i, column in as_text(places).items()} if places else {}


def text_columns(table: pd.DataFrame) -> Columns:
    """Return the columns that are neither numbers nor booleans, by position."""
    kinds = table.dtypes.items()
    return {
        cast(int, i): table[i]
        for i, kind in kinds
        if pd.api.types.is_object_dtype(kind) or pd.api.types.is_string_dtype(kind)
    }


def _without_gap_marks(columns: Columns, names: Sequence[str], where: str, note: Note) -> Columns:
    """Replace cells with only a question mark, or another of `GAP_MARKS`, by missing values."""
    marks = {i: column.isin(GAP_MARKS).to_numpy(dtype=bool) for i, column in columns.items()}
    touched = [i for i, where_marked in marks.items() if where_marked.any()]
    if touched:
        n_cells = sum(int(marks[i].sum()) for i in touched)
        shown = listed([names[i] for i in touched])
        found = {mark for i in touched for mark in columns[i][marks[i]].unique()}
        words = ", ".join(map(repr, sorted(found)))
        note(f"{where}: {n_cells} cells hold only {words} and count as gaps: {shown}.")
    return columns | {i: columns[i].mask(marks[i]) for i in touched}


def _with_points(table: pd.DataFrame, as_text: AsText) -> Columns:
    """Return, as text, the columns that pandas read as numbers with a decimal point."""
    kinds = table.dtypes.items()
    places = [cast(int, i) for i, kind in kinds if pd.api.types.is_float_dtype(kind)]
    written = as_text(places) if places else table
    return {i: written[i] for i in places if written[i].str.contains(".", regex=False).any()}


def _may_have_commas(found: tuple[Common, Tokens]) -> bool:
    """Whether numbers with points also fit a format with points at thousands."""
    return all(token.comma for token in found[1].values())


def _codes(table: pd.DataFrame, as_text: AsText) -> Columns:
    """Return number columns with leading zeros in the file as text."""
    places = [cast(int, i) for i, column in table.items() if _whole_numbers(column)]
    written = as_text(places) if places else table
    return {i: written[i] for i in places if _are_codes(written[i].dropna().unique().tolist())}


def _whole_numbers(column: "pd.Series") -> bool:
    real = pd.api.types.is_any_real_numeric_dtype(column.dtype)
    return real and bool((column.dropna() % 1 == 0).all())


def _are_codes(values: list[str]) -> bool:
    padded = any(_PADDED.fullmatch(value.strip()) for value in values)
    return padded and _all_match(_WHOLE, values)


def _all_match(pattern: re.Pattern[str], values: Iterable[str]) -> bool:
    return all(pattern.fullmatch(value.strip()) for value in values)


def _style(column: "pd.Series") -> tuple[Common, Tokens] | None:
    """Return the common number format of all values of a column; None if one is no number."""
    values = column.dropna().unique().tolist()
    if values and all(type(value) is int for value in values):  # beyond 64 bits
        return Common("", "", "", frozenset(("",)), "", plain=True), {}
    if not all(isinstance(value, str) for value in values) or _are_codes(values):
        return None
    if any(token.sign for token in tokenized(values[:1]).values()):
        values = values[:_EVIDENCE]  # the column stays text
    return _common(values)


def _common(values: Collection[str]) -> tuple[Common, Tokens] | None:
    tokens = tokenized(values, whole=True)
    found = in_common(tokens.values()) if len(tokens) == len(values) else None
    return None if found is None or len(found.signs) > 1 else (found, tokens)


def _numbers(column: "pd.Series", decimal: Decimal, tokens: Tokens) -> "pd.Series":
    codes, distinct = pd.factorize(column)  # -1 is a gap
    texts = [number_text(t, tokens[t], decimal) if tokens else t for t in map(str, distinct)]
    # float() gives the nearest double, like pandas
    values = np.array([*map(float, texts), np.nan])
    if (codes >= 0).all() and all(re.fullmatch(r"[+-]?\d{1,18}", text) for text in texts):
        values = np.array([*map(int, texts)], dtype=np.int64)
    return pd.Series(values[codes], index=column.index, name=column.name)
