"""Sheets of Excel workbooks: choice of the sheet, rows around the table, types of cells."""

import io
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pandas as pd

from nearwise.data.tables.around import FIRST, has_units, n_footers, n_titles
from nearwise.data.tables.cells import MISSING, Cells, beyond_float, with_exact_wholes
from nearwise.data.tables.header import check_names, unnamed_by_place
from nearwise.data.tables.numeric_columns import Written, read_numbers
from nearwise.data.tables.unpack import Note, check_expansion, explained, is_workbook, zip_names
from nearwise.names import did_you_mean, listed

Rows = list[list[Any]]
_CELL_BYTES = 64  # bytes of a cell in memory


def parse_excel(
    content: bytes,
    where: str,
    note: Note,
    *,
    header: bool | None,
    known: Collection[str] = (),
    like: Written | None = None,
    sheet: str | int | None = None,
) -> tuple[pd.DataFrame, Cells]:
    """Read a sheet of an Excel workbook (.xlsx), as `parse_text` reads text.

    `sheet` is a name or a number, counted from 1. By default it is the first one, or the only one
    with a table. Formulas have the values last computed by Excel. Empty cells and words for missing
    values are missing; empty rows are skipped. Text that is a number in every cell becomes numbers.
    ImportError if openpyxl is not installed. ValueError if the content is no workbook, expands too
    much, or the first row does not hold names; or if there is no such sheet, or no single one with
    a table.
    """
    rows = _table_rows(_sheet_rows(content, where, note, sheet), header, known, where, note)
    if not rows:
        return pd.DataFrame(), lambda wanted: pd.DataFrame(columns=list(wanted))
    first = ["" if cell is None or cell in MISSING else str(cell) for cell in rows[0]]
    below = rows if header is False else rows[1:]
    cells = [*map(str, range(len(first)))] if header is False else first
    plain = [[None if cell in MISSING else cell for cell in row] for row in below]
    body = pd.DataFrame(plain, columns=range(len(cells)))
    body, spelt = _with_numbers(body, cells, where, note, like or Written())
    if header is False:
        table = body.set_axis(cells, axis=1)
    else:
        table = check_names(
            cells, body, insisted=header is True, known=known, where=where, note=note
        )
    held = pd.DataFrame(below, columns=unnamed_by_place(cells), dtype=object)
    return spelt.attach(table), lambda wanted: held[list(wanted)]


def _sheet_rows(content: bytes, where: str, note: Note, wanted: str | int | None) -> Rows:
    """Return the rows of the wanted sheet, or else of the first with a table."""
    with _open_book(content, where) as book:
        sheets = book.worksheets
        if wanted is not None:
            return _rows_of(_named_sheet(sheets, wanted, where), content, where)
        first, *others = [sheet.title for sheet in sheets]
        rows = _rows_of(sheets[0], content, where)
        if not others or _n_columns(rows) > 1:
            if others:
                note(f"{where}: read the first sheet, {first!r}; not read: {_choice(others)}.")
            return rows
        read = {sheet.title: _rows_of(sheet, content, where) for sheet in sheets[1:]}
        tables = [name for name, found in read.items() if _n_columns(found) > 1]
        if not tables and _n_columns(rows) == 0:
            tables = [name for name, found in read.items() if _n_columns(found)]
        if len(tables) > 1:
            raise ValueError(
                f"{where}: the first sheet, {first!r}, holds no table, and {len(tables)} others "
                f"do. Name one: {_choice(tables)}."
            )
        if tables:
            note(f"{where}: read the sheet {tables[0]!r}; the first one, {first!r}, has no table.")
            return read[tables[0]]
        note(f"{where}: read the first sheet, {first!r}; not read: {_choice(others)}.")
        return rows


def _choice(names: Sequence[str]) -> str:
    return f"{listed(names)} (sheet=, --sheet)"


def _named_sheet(sheets: Sequence[Any], wanted: str | int, where: str) -> Any:
    """Return a sheet by its name or, if no name is equal, its number."""
    names = [sheet.title for sheet in sheets]
    if str(wanted) in names:
        return sheets[names.index(str(wanted))]
    number = int(wanted) if str(wanted).isdecimal() else 0
    if not 1 <= number <= len(names):
        raise ValueError(
            f"{where} has no sheet {wanted!r}.{did_you_mean(str(wanted), names)} It has: "
            f"{listed(names, n=20)}; numbers begin with 1."
        )
    return sheets[number - 1]


def _n_columns(rows: Rows) -> int:
    """Return the number of columns with at least two values."""
    width = max(map(len, rows), default=0)
    return sum(
        sum(len(row) > at and row[at] is not None for row in rows) > 1 for at in range(width)
    )


@contextmanager
def _open_book(content: bytes, where: str) -> Iterator[Any]:
    try:
        import openpyxl
    except ImportError as error:
        raise ImportError(
            'reading Excel files needs the extra "excel": pip install nearwise[excel], or save the '
            "sheet as CSV."
        ) from error
    with explained(where, "Excel", "Save it again as .xlsx, or as CSV."):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            declared = sum(info.file_size for info in archive.infolist())
        check_expansion(declared, len(content), where)
        if not is_workbook(zip_names(content)):
            raise ValueError("it is a zip archive without a workbook in it")
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    yield book


def _rows_of(sheet: Any, content: bytes, where: str) -> Rows:
    """Return all rows of a sheet, None for blank cells."""
    rows: Rows = []
    n_cells = 0
    with explained(where, "Excel", "Save it again as .xlsx, or as CSV."):
        sheet.reset_dimensions()  # the size declared in the file may be wrong
        for row in sheet.iter_rows(values_only=True):
            n_cells += len(row)
            check_expansion(n_cells * _CELL_BYTES, len(content), where)
            rows.append([None if _is_blank(value) else value for value in row])
    return rows


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _table_rows(
    rows: Rows, header: bool | None, known: Collection[str], where: str, note: Note
) -> Rows:
    """Return the rows of the table, all of one width; the first one holds the names."""
    if header is None:
        rows = rows[n_titles(_texts(rows[: FIRST + 1]), known, where, note) :]
    rows = [row for row in rows if any(cell is not None and cell not in MISSING for cell in row)]
    width = max(map(len, rows), default=0)
    rows = [[*row, *[None] * (width - len(row))] for row in rows]
    if header is not False and has_units(_texts(rows[: FIRST + 1]), where, note):
        del rows[1]
    start = _texts(rows[: FIRST + 1])
    left = min((at for row in start for at, cell in enumerate(row) if cell), default=0)
    last = ((" ".join(filter(None, cells)), cells[left:]) for cells in map(_text, reversed(rows)))
    return rows[: len(rows) - n_footers([row[left:] for row in start], last, where, note)]


def _texts(rows: Rows) -> list[list[str]]:
    return [_text(row) for row in rows]


def _text(row: Sequence[Any]) -> list[str]:
    return ["" if cell is None else str(cell).strip() for cell in row]


def _with_numbers(
    body: pd.DataFrame, cells: Sequence[str], where: str, note: Note, like: Written
) -> tuple[pd.DataFrame, Written]:
    """Convert columns with numbers in text, also if other cells are numbers."""
    is_text = {at: column.map(lambda cell: isinstance(cell, str)) for at, column in body.items()}
    is_text = {at: mask for at, mask in is_text.items() if mask.any()}
    typed = {at: body[at].where(~mask) for at, mask in is_text.items()}
    places = [at for at, values in typed.items() if _are_all_numbers(values)]
    texts = [body[at].where(is_text[at]).astype(object) for at in places]
    if not places:
        return body, Written()
    table = pd.concat(texts, axis=1).set_axis(range(len(places)), axis=1)
    names = [cells[cast(int, at)] for at in places]
    read, spelt = read_numbers(
        table, names, ",", where, note, as_text=lambda some: table[some], padded=False, like=like
    )
    columns, found = {}, []
    for number, at in enumerate(places):
        column = read[number]
        if pd.api.types.is_any_real_numeric_dtype(column.dtype) or column.isna().all():
            if beyond_float(column):
                column = with_exact_wholes(column, texts[number])
            found += [names[number]] if column.notna().any() else []
            columns[at] = column.where(is_text[at], typed[at]).infer_objects()
        elif typed[at].isna().all():
            columns[at] = column.infer_objects()
    if found:
        note(f"{where}: cells of text are read as numbers: {listed(found)}.")
    return pd.concat([columns.get(at, body[at]) for at in body.columns], axis=1), spelt


def _are_all_numbers(values: pd.Series) -> bool:
    """Whether the typed cells of a column are numbers, or there are none."""
    return all(type(cell) in (int, float) for cell in values.dropna())
