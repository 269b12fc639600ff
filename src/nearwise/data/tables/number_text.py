"""Text that is numbers as people write them: 1,5 or 1.000,5 or "1,000", and ? for a gap."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np
import pandas as pd

from nearwise.data.tables.unpack import Note
from nearwise.names import listed

Columns = dict[int, "pd.Series"]

_EXPONENT = r"(?:[eE][+-]?\d+)?"
_PLAIN = re.compile(rf"[+-]?(?:\d+\.?\d*|\.\d+){_EXPONENT}", re.ASCII)
# 1,5 and 1.000,5 and 1.000.000; no leading zeros as in 01,02, which are codes
_COMMA = re.compile(
    rf"[+-]?(?:(?:0|[1-9]\d*)(?:,\d+)?|[1-9]\d{{0,2}}(?:\.\d{{3}})+(?:,\d+)?){_EXPONENT}", re.ASCII
)
_POINT = re.compile(
    rf"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d+)?|[1-9]\d{{0,2}}(?:,\d{{3}})+(?:\.\d+)?){_EXPONENT}", re.ASCII
)


def read_numbers(
    table: pd.DataFrame,
    names: Sequence[str],
    delimiter: str,
    where: str,
    note: Note,
    *,
    as_text: Callable[[list[int]], pd.DataFrame],
) -> pd.DataFrame:
    """Turn text columns into numbers where every value is a number in one of the usual spellings.

    A cell that holds nothing but a question mark is a gap first. A column is one of decimal commas
    (1,5 or 1.000,5) or of thousands separated by commas (1,000 or 1,000.5) if all its values can be
    read so. What can be read both ways, as 1,234, follows the columns of the file that cannot; if
    there are none, a comma separates thousands in a file separated by commas and decimals in any
    other. Where columns have decimal commas and none has decimal points, points separate thousands
    (1.000). Columns of which one value is no number stay text.

    Parameters
    ----------
    table : DataFrame
        As pandas read it, columns numbered from 0; not changed.
    names : sequence of str
        What the columns are called in notes.
    delimiter : str
        What separates the values of a line.
    where : str
        What the file is called in notes.
    note : callable
        Takes a sentence about what was read differently.
    as_text : callable
        Gives the columns of these numbers as they are written in the file.

    Returns
    -------
    table : DataFrame
        Numbers are read to the nearest float64; whole ones stay int64 where there is no gap.
    """
    columns = _without_question_marks(_text_columns(table), names, where, note)
    styles = {i: style for i, column in columns.items() if (style := _style(column))}
    sure = {"comma", "point"} & set(styles.values())
    pointed: Columns = {}
    if set(styles.values()) - {"plain"}:
        written = _with_points(table, as_text)
        pointed = {
            i: column
            for i, column in written.items()
            if _all_match(_COMMA, column.dropna().unique())
        }
        sure |= {"point"} if len(written) > len(pointed) else set()
    if sure == {"comma"}:
        columns |= pointed
        styles |= dict.fromkeys(pointed, "comma")
    usual = min(sure) if len(sure) == 1 else "point" if delimiter == "," else "comma"
    styles = {i: usual if style == "either" else style for i, style in sorted(styles.items())}
    for mark, what in (("comma", "with a decimal comma"), ("point", "with commas at thousands")):
        found = [names[i] for i, style in styles.items() if style == mark]
        if found:
            note(f"{where}: read as numbers {what}: {listed(found)}.")
    columns |= {i: _numbers(columns[i], style) for i, style in styles.items()}
    if not columns:
        return table
    return pd.concat([columns.get(i, table[i]) for i in range(table.shape[1])], axis=1)


def _text_columns(table: pd.DataFrame) -> Columns:
    kinds = table.dtypes.items()
    return {
        cast(int, i): table[i]
        for i, kind in kinds
        if pd.api.types.is_object_dtype(kind) or pd.api.types.is_string_dtype(kind)
    }


def _without_question_marks(
    columns: Columns, names: Sequence[str], where: str, note: Note
) -> Columns:
    """Make gaps of cells that hold nothing but a question mark."""
    marks = {i: column.eq("?").fillna(False).to_numpy(dtype=bool) for i, column in columns.items()}
    touched = [i for i, where_marked in marks.items() if where_marked.any()]
    if touched:
        n_cells = sum(int(marks[i].sum()) for i in touched)
        shown = listed([names[i] for i in touched])
        note(f"{where}: {n_cells} cells hold only '?' and count as gaps: {shown}.")
    return columns | {i: columns[i].mask(marks[i]) for i in touched}


def _with_points(table: pd.DataFrame, as_text: Callable[[list[int]], pd.DataFrame]) -> Columns:
    """Give the columns, as written, that pandas read as numbers with a decimal point."""
    kinds = table.dtypes.items()
    places = [cast(int, i) for i, kind in kinds if pd.api.types.is_float_dtype(kind)]
    written = as_text(places) if places else table
    return {i: written[i] for i in places if written[i].str.contains(".", regex=False).any()}


def _style(column: "pd.Series") -> str | None:
    """Tell how all values of a column spell numbers (plain, comma, point or either), if they do."""
    values = column.dropna().unique().tolist()
    if not values:
        return None
    if all(type(value) is int for value in values):  # beyond 64 bits
        return "plain"
    if not all(isinstance(value, str) for value in values):
        return None
    if _all_match(_PLAIN, values):
        return "plain"
    comma, point = _all_match(_COMMA, values), _all_match(_POINT, values)
    if comma and point:
        return "either"
    return "comma" if comma else "point" if point else None


def _all_match(pattern: re.Pattern[str], values: Iterable[str]) -> bool:
    return all(pattern.fullmatch(value.strip()) for value in values)


def _numbers(column: "pd.Series", style: str) -> "pd.Series":
    spelling = {"comma": {".": "", ",": "."}, "point": {",": ""}, "plain": {}}[style]
    table = str.maketrans(spelling)
    spelt = {value: str(value).strip().translate(table) for value in column.dropna().unique()}
    if not column.isna().any() and all(re.fullmatch(r"[+-]?\d{1,18}", t) for t in spelt.values()):
        return column.map({value: int(text) for value, text in spelt.items()}).astype(np.int64)
    # float(), so that every number is the nearest double as in the columns that pandas reads
    return column.map({value: float(text) for value, text in spelt.items()}).astype(np.float64)
