"""Delimited text: how it is encoded and laid out, and its values to the last bit."""

import codecs
import csv
import io
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pandas as pd

from nearwise.data.tables.cells import Cells, beyond_float, with_exact_wholes
from nearwise.data.tables.header import check_names, unnamed_by_place
from nearwise.data.tables.numeric_columns import Written, read_numbers, text_columns
from nearwise.data.tables.unpack import Note

# pandas reads floats exactly by default since 3.1, where naming the old switch warns
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
_DELIMITERS = (",", ";", "\t", "|")
BLANKS = r"\s+"
_WORDS = {BLANKS: "blanks", "\t": "tabs"}
_SAMPLE = 1 << 16  # bytes that the layout is found from
_SEPARATOR = re.compile(rb'\s*"?sep=([,;|\t])"?[^\S\r\n]*(?:\r\n|\n|\r)', re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """How the values of a line are separated: by a character, or a regular expression for blanks.

    `spaced`: a blank follows every delimiter and is not a part of the value.
    """

    delimiter: str
    spaced: bool

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for pandas."""
        return {
            "sep": self.delimiter,
            "skipinitialspace": self.spaced,
            "encoding": "utf-8",
            "index_col": False,
            "low_memory": False,
        }


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
    """Read delimited text: encoding, delimiter, names and spellings of numbers are detected.

    Beside the table comes what gives its columns as they are written.

    UTF-8, UTF-16 or UTF-32 with its mark, or Western European text (cp1252). `header` and `known`
    as in `read_table`; `like` describes how a model's table was written; `note` takes a sentence
    about everything that was not read as it stands.
    ValueError if the text cannot be decoded, a line has too many values, a quote never closes,
    there are more than `MAX_COLUMNS` columns, or the first line does not hold names.
    """
    content = _as_utf8(content, where, note)
    if separator := _SEPARATOR.match(content):
        delimiter, content = separator[1].decode(), content[separator.end() :]
        note(f"{where}: the first line says that {delimiter!r} separates values; left out.")
    content = _without_remarks(content, delimiter, where, note)
    lines = _sample(content)
    if any(re.fullmatch(r"(?=.*[|+])[\s|+:-]*--[\s|+:-]*", line) for line in lines[:2]):
        raise ValueError(
            f"{where} is laid out with lines of dashes, as Markdown is. Leave these lines out, and "
            "the bars at the ends of the others."
        )
    layout = _layout_of(lines, delimiter)
    if layout.delimiter == BLANKS:
        note(f"{where}: no delimiter found; values are taken to be separated by blanks.")
    if len(_split(_first_line(content), layout)) > MAX_COLUMNS:
        raise ValueError(
            f"{where} has more than {MAX_COLUMNS:,} columns, the most that are read. Is it one "
            "line where there should be many?"
        )
    try:
        cells = _first_cells(content, layout)
        body = _read(content, layout, header)
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        raise ValueError(_complaint(content, layout, error, where)) from error
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
    # pandas leaves gaps empty where 64 bits without a sign do not hold some
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


def _without_remarks(content: bytes, delimiter: str | None, where: str, note: Note) -> bytes:
    """Leave out the lines at the top that begin with #, unless the last of them holds the names."""
    remarks = re.match(rb"\s*(#[^\r\n]*\s*)+", content)
    if remarks is None:
        return content
    lines = [line for line in remarks[0].splitlines() if line.strip()]
    rest = content[remarks.end() :]
    layout = _layout_of(_sample(rest), delimiter)
    last = _split(lines[-1].decode(errors="replace"), layout)
    following = _split(_first_line(rest), layout)
    n_numbers = sum(value.replace(".", "").strip().isdigit() for value in following)
    if 1 < len(last) == len(following) and 2 * n_numbers >= len(following):
        rest = lines.pop() + b"\n" + rest
    if lines:
        note(f"{where}: left out {len(lines)} lines at the top that begin with #.")
    return rest


def _first_line(content: bytes) -> str:
    """Return the first line that is not blank."""
    line = re.match(rb"\s*([^\r\n]*)", content)
    return line[1].decode(errors="replace") if line else ""


def _split(line: str, layout: Layout) -> list[str]:
    """Split a line without quotes into values."""
    return line.split() if layout.delimiter == BLANKS else line.split(layout.delimiter)


def _sample(content: bytes) -> list[str]:
    """Return the first lines; what stands in quotes is taken out of them."""
    start = content[:_SAMPLE].decode(errors="replace")
    lines = re.split(r"\r\n|\n|\r", re.sub(r'"[^"]*"', '""', start))
    if len(content) > _SAMPLE and len(lines) > 1:
        lines.pop()  # cut off
    return [line for line in lines if line.strip()] or [""]


def _layout_of(lines: Sequence[str], delimiter: str | None) -> Layout:
    """Return the layout of lines without quoted text, of a delimiter if one is given."""
    delimiter = delimiter or _delimiter(lines)
    below = lines[1:] or lines
    spaced = delimiter != BLANKS and all(
        0 < line.count(delimiter) == line.count(f"{delimiter} ") for line in below
    )
    return Layout(delimiter, spaced)


def _delimiter(lines: Sequence[str]) -> str:
    """Choose what occurs equally often in all lines, or all but the first; else most in that."""
    counts = {mark: [line.count(mark) for line in lines] for mark in _DELIMITERS}
    steady = [mark for mark, n in counts.items() if n[0] and len(set(n)) == 1]
    # 1,5;2,5 holds as many commas as semicolons, or more
    if {",", ";"} <= set(steady) and not any(re.search(r"(?<!\d),|,(?!\d)", x) for x in lines):
        return ";"
    # a first line unlike all the others is a remark: its marks mean nothing
    below = [mark for mark, n in counts.items() if len(n) > 2 and n[1] and len(set(n[1:])) == 1]
    candidates = steady or below or [mark for mark, n in counts.items() if n[0]]
    if not candidates and _has_blanks(lines):
        return BLANKS
    return max(candidates or [","], key=lambda mark: counts[mark][:2])


def _has_blanks(lines: Sequence[str]) -> bool:
    """Return whether blanks separate columns: as many in each line, one of them all numbers."""
    rows = [line.split() for line in lines]
    if len(rows[0]) < 2 or len({len(row) for row in rows}) > 1:
        return False
    columns = zip(*(rows[1:] or rows), strict=True)
    return any(all(re.fullmatch(r"[+-]?[\d.,]+(e[+-]?\d+)?", v) for v in c) for c in columns)


def _as_utf8(content: bytes, where: str, note: Note) -> bytes:
    """Bring text to UTF-8 without a mark."""
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
    """Return whether a value may be a whole number with a zero in front; no date or time is."""
    delimiter = rb"\s" if layout.delimiter == BLANKS else re.escape(layout.delimiter).encode()
    value = rb'[" ]*0\d+(?![\w.:/-])'
    # one search each: the engine looks for the character that a pattern begins with
    return any(re.search(start + value, content) for start in (rb"\A", rb"\n", delimiter))


def _first_cells(content: bytes, layout: Layout) -> list[str]:
    options = layout.options | {"nrows": 1, "dtype": object, "keep_default_na": False}
    first = read_delimited(io.BytesIO(content), header=None, **options)
    return [str(cell) for cell in first.iloc[0]]


def _read(content: bytes, layout: Layout, header: bool | None, **options: Any) -> pd.DataFrame:
    with warnings.catch_warnings():
        # lines longer than the header: pandas would drop their last values
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return read_delimited(
            io.BytesIO(content),
            header=None if header is False else 0,
            **(layout.options | options),
        )


def _rows(content: bytes, layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield the line on which each row ends, counted from 1, and its number of values."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")
    if layout.delimiter == BLANKS:
        yield from ((i, len(line.split())) for i, line in enumerate(text, 1) if line.strip())
        return
    rows = csv.reader(text, delimiter=layout.delimiter, skipinitialspace=layout.spaced)
    yield from ((rows.line_num, len(row)) for row in rows if row)


def _complaint(content: bytes, layout: Layout, error: Exception, where: str) -> str:
    """Report what keeps text from being a table, with the line where that can be found."""
    if "EOF inside string" in str(error):
        row = re.sub(r".*row ", "", str(error)).strip()
        return (
            f"{where} cannot be read as CSV: a quote that opens in row {row} never closes. Close "
            "it, or double a quote that is part of the text."
        )
    try:
        rows = _rows(content, layout)
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
    """Note how many lines lack values at their end, which pandas takes for gaps."""
    n_columns = body.shape[1]
    if n_columns < 2 or not body.iloc[:, -1].isna().any():
        return
    try:
        short = [line for line, n in _rows(content, layout) if n < n_columns]
    except csv.Error:  # a value longer than csv takes: nothing can be found
        return
    if short:
        note(
            f"{where}: {len(short)} lines have fewer than {n_columns} values (first: line "
            f"{short[0]}); what they lack counts as gaps."
        )
