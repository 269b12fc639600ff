"""Parser of delimited text: detects encoding and layout, and reads numbers exactly."""

import codecs
import csv
import io
import re
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pandas as pd

from nearwise.data.tables.cells import Cells, beyond_float, with_exact_wholes
from nearwise.data.tables.header import check_names, unnamed_by_place
from nearwise.data.tables.layout import BLANKS, Layout, first_line, layout_of, sample, split
from nearwise.data.tables.lines import (
    number_of_values,
    separator_line,
    with_row_names,
    without_empty_ends,
    without_footer,
    without_remarks,
    without_rules,
    without_titles,
    without_units,
)
from nearwise.data.tables.numeric_columns import Written, read_numbers, text_columns
from nearwise.data.tables.unpack import Note

# since 3.1 pandas reads floats exactly by default, and the old option warns
_EXACT: dict[str, Any] = (
    {}
    if tuple(int(part) for part in pd.__version__.split(".")[:2]) >= (3, 1)
    else {"float_precision": "round_trip"}
)
MAX_COLUMNS = 100_000  # pandas takes a minute and 1.4 GB for a million
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WORDS = {BLANKS: "blanks", "\t": "tabs"}


def read_delimited(source: Path | BinaryIO, **options: Any) -> pd.DataFrame:
    """Call `pandas.read_csv` with `options`, floats parsed to the nearest double."""
    return pd.read_csv(source, **_EXACT, **options)


def parse_text(
    content: bytes,
    where: str,
    note: Note,
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    known: Collection[str] = (),
    like: Written | None = None,
) -> tuple[pd.DataFrame, Cells]:
    """Parse delimited text; encoding, delimiter, names and number formats are detected.

    Returns the table and a function for its columns in their original form.

    UTF-8, UTF-16 or UTF-32 with a byte order mark, or Western European text (cp1252). `header` and
    `known` as in `read_table`; `like` is the number format of a model's training table; `note` is
    called with a sentence about every change to the content.
    ValueError if the text cannot be decoded, a line has too many values, or a quote never closes;
    or if there are more than `MAX_COLUMNS` columns, or the first line does not hold names.
    """
    content = _as_utf8(content, where, note)
    content, named = separator_line(content, where, note)
    content = without_remarks(content, named or delimiter, where, note)
    if header is None:
        content = without_titles(content, named or delimiter, known, where, note)
    content = without_rules(content, where, note)
    layout = layout_of(sample(content), named or delimiter)
    if layout.delimiter == BLANKS:
        note(f"{where}: no delimiter found; values are taken to be separated by blanks.")
    if len(split(first_line(content), layout)) > MAX_COLUMNS:
        raise ValueError(
            f"{where} has more than {MAX_COLUMNS:,} columns, the most that are read. Is it one "
            "line where there should be many?"
        )
    if header is not False:
        content = with_row_names(content, layout, where, note)
        content = without_units(content, layout, where, note)
    content = without_footer(content, layout, where, note)
    content, cells, body = _read_all(content, layout, header, where, note)
    _note_short_lines(content, layout, body, where, note)
    numbered = [str(i) for i in range(body.shape[1])]

    def as_text(places: Sequence[int], **options: Any) -> pd.DataFrame:
        taken = _read(content, layout, header, dtype=str, usecols=list(places), **options)
        return taken.set_axis(sorted(places), axis=1)

    body, spelt = read_numbers(
        body.set_axis(range(body.shape[1]), axis=1),
        numbered if header is False else cells,
        layout.delimiter,
        where,
        note,
        as_text=as_text,
        padded=_may_be_padded(content, layout),
        like=like or Written(),
    )
    large = [cast(int, i) for i, column in body.items() if beyond_float(column)]
    # pandas leaves missing values empty if some integers exceed unsigned 64 bits
    unread = [i for i, column in text_columns(body).items() if column.eq("").any()]
    if large or unread:
        texts = as_text([*large, *unread])
        columns = {i: body[i] if i in large else text for i, text in texts.items()}
        exact = {i: with_exact_wholes(columns[i], text) for i, text in texts.items()}
        body = pd.concat([exact.get(i, body[i]) for i in body.columns], axis=1)
    if header is False:
        table = body.set_axis(numbered, axis=1)
    else:
        table = check_names(
            cells, body, insisted=header is True, known=known, where=where, note=note
        )
    names = numbered if header is False else unnamed_by_place(cells)

    def written(wanted: Sequence[str]) -> pd.DataFrame:
        places = {name: names.index(name) for name in wanted}
        text = as_text(list(places.values()), keep_default_na=False).fillna("")
        return pd.DataFrame({name: text[place] for name, place in places.items()})

    return spelt.attach(table), written


def _as_utf8(content: bytes, where: str, note: Note) -> bytes:
    """Convert text to UTF-8 without a byte order mark."""
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    try:
        if encoding != "utf-8":
            content = content.decode(encoding).encode()
        elif not content.isascii():
            content = content.removeprefix(codecs.BOM_UTF8)
            content.decode()
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise ValueError(
                f"{where} begins like {encoding} text and cannot be decoded ({error.reason}). It "
                "is damaged or cut short; save it as UTF-8."
            ) from error
        content = _from_western(content, error, where, note)
    if (position := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, position) + 1
        raise ValueError(
            f"{where} holds a NUL byte in line {line}: it is damaged, binary, or UTF-16 without "
            "its mark. Save it as UTF-8 text."
        )
    return content


def _from_western(content: bytes, error: UnicodeDecodeError, where: str, note: Note) -> bytes:
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError:
        raise ValueError(
            f"{where} is neither UTF-8 text ({error.reason} at byte {error.start}) nor Western "
            "European (cp1252, Latin-1). Save it as UTF-8, or as Parquet."
        ) from error
    note(
        f"{where} is not UTF-8 ({error.reason} at byte {error.start}); read as Western European "
        "text (cp1252, Latin-1). If letters look wrong, save it as UTF-8."
    )
    return text.encode()


def _may_be_padded(content: bytes, layout: Layout) -> bool:
    """Whether a value may be an integer with a leading zero, other than dates and times."""
    delimiter = rb"\s" if layout.delimiter == BLANKS else re.escape(layout.delimiter).encode()
    value = rb'[" ]*0\d+(?![\w.:/-])'
    # separate searches: the engine is fast for patterns that begin with a fixed character
    return any(re.search(start + value, content) for start in (rb"\A", rb"\n", delimiter))


def _first_cells(content: bytes, layout: Layout) -> list[str]:
    options = layout.options | {"nrows": 1, "dtype": object, "keep_default_na": False}
    first = read_delimited(io.BytesIO(content), header=None, **options)
    return [str(cell) for cell in first.iloc[0]]


def _read(content: bytes, layout: Layout, header: bool | None, **options: Any) -> pd.DataFrame:
    with warnings.catch_warnings():
        # for lines longer than the header pandas would drop their last values
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return read_delimited(
            io.BytesIO(content),
            header=None if header is False else 0,
            **(layout.options | options),
        )


def _read_all(
    content: bytes, layout: Layout, header: bool | None, where: str, note: Note
) -> tuple[bytes, list[str], pd.DataFrame]:
    """Return the content as it can be read, the first cells and the table below them."""
    try:
        return content, _first_cells(content, layout), _read(content, layout, header)
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        kept = without_empty_ends(content, layout, where, note)
        if kept is None:
            raise ValueError(_complaint(content, layout, error, where)) from error
        return _read_all(kept, layout, header, where, note)


def _complaint(content: bytes, layout: Layout, error: Exception, where: str) -> str:
    """Describe the reason why text is not a table, with the line if it can be found."""
    if "EOF inside string" in str(error):
        row = re.sub(r".*row ", "", str(error)).strip()
        return (
            f"{where} cannot be read as CSV: a quote that opens in row {row} never closes. Close "
            "it, or double a quote that is part of the text."
        )
    try:
        rows = number_of_values(content, layout)
        _, n_names = next(rows)
        line, n = next((line, n) for line, n in rows if n > n_names)
    except (csv.Error, StopIteration):
        return f"{where} cannot be read as CSV: {error}."
    set_apart = _WORDS.get(layout.delimiter, repr(layout.delimiter))
    return (
        f"{where} cannot be read as CSV: line {line} has {n} values separated by {set_apart}, and "
        f"the first line {n_names}. No line may have more values than the first: give every column "
        "a name, put quotes around text with a delimiter in it, mark remarks at the top with #."
    )


def _note_short_lines(
    content: bytes, layout: Layout, body: pd.DataFrame, where: str, note: Note
) -> None:
    """Note the number of lines with too few values; the rest are missing values."""
    n_columns = body.shape[1]
    if n_columns < 2 or not body.iloc[:, -1].isna().any():
        return
    try:
        short = [line for line, n in number_of_values(content, layout) if n < n_columns]
    except csv.Error:  # a value longer than csv allows
        return
    if short:
        note(
            f"{where}: {len(short)} lines have fewer than {n_columns} values (first: line "
            f"{short[0]}); what they lack counts as gaps."
        )
