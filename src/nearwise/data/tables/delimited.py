"""Delimited text: how it is encoded and laid out, and its values to the last bit."""

import codecs
import csv
import io
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd

from nearwise.data.tables.cells import Cells, beyond_float, with_exact_wholes
from nearwise.data.tables.header import check_names, unnamed_by_place
from nearwise.data.tables.unpack import Note
from nearwise.names import listed

Columns = dict[int, "pd.Series"]

_EXPONENT = r"(?:[eE][+-]?\d+)?"
_PLAIN = re.compile(rf"[+-]?(?:\d+\.?\d*|\.\d+){_EXPONENT}", re.ASCII)
_WHOLE, _PADDED = re.compile(r"\d+", re.ASCII), re.compile(r"0\d+", re.ASCII)
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
    padded: bool,
) -> pd.DataFrame:
    """Turn text columns into numbers where every value is a number in one of the usual spellings.

    A cell that holds only a question mark is a gap first. A column is one of decimal commas
    (1,5 or 1.000,5) or of thousands separated by commas (1,000 or 1,000.5) if all its values can be
    read so. What can be read both ways, as 1,234, follows the columns of the file that cannot; if
    there are none, a comma separates thousands in a file separated by commas and decimals in any
    other. Where columns have decimal commas and none has decimal points, points separate thousands
    (1.000). Columns of which one value is not a number stay text, and so do whole numbers of which
    one begins with a zero (01008): these are codes.

    Columns are numbered from 0; `as_text` gives those of some numbers as they are written in the
    file, `padded` says whether any may begin with a zero. Numbers are read to the nearest float64;
    whole ones stay int64 where there is no gap.
    """
    columns = _without_question_marks(_text_columns(table), names, where, note)
    if padded:
        columns |= _codes(table, as_text)
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


def _codes(table: pd.DataFrame, as_text: Callable[[list[int]], pd.DataFrame]) -> Columns:
    """Give the columns, as written, that pandas read as numbers without the zeros in front."""
    places = [cast(int, i) for i, column in table.items() if _whole_numbers(column)]
    written = as_text(places) if places else table
    return {i: written[i] for i in places if _are_codes(written[i].dropna().unique().tolist())}


def _whole_numbers(column: "pd.Series") -> bool:
    real = pd.api.types.is_any_real_numeric_dtype(column.dtype)
    return real and bool((column.dropna() % 1 == 0).all())


def _are_codes(values: list[str]) -> bool:
    padded = any(_PADDED.fullmatch(value.strip()) for value in values)
    return padded and _all_match(_WHOLE, values)


def _style(column: "pd.Series") -> str | None:
    """Return how all values of a column spell numbers (plain, comma, point, either), if they do."""
    values = column.dropna().unique().tolist()
    if not values:
        return None
    if all(type(value) is int for value in values):  # beyond 64 bits
        return "plain"
    if not all(isinstance(value, str) for value in values) or _are_codes(values):
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


# pandas reads floats exactly by default since 3.1, where naming the old switch warns
_EXACT: dict[str, Any] = (
    {}
    if tuple(int(part) for part in pd.__version__.split(".")[:2]) >= (3, 1)
    else {"float_precision": "round_trip"}
)
MAX_COLUMNS = 100_000  # pandas takes a minute and 1.4 GB for a million
_DELIMITERS = (",", ";", "\t", "|")
_BLANKS = r"\s+"
_SAMPLE = 1 << 16  # bytes that the layout is found from
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WORDS = {_BLANKS: "blanks", "\t": "tabs"}


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
) -> tuple[pd.DataFrame, Cells]:
    """Read delimited text: encoding, delimiter, names and spellings of numbers are detected.

    Beside the table comes what gives its columns as they are written.

    UTF-8, UTF-16 or UTF-32 with its mark, or Western European text (cp1252). `header` and `known`
    as in `read_table`; `note` takes a sentence about everything that was not read as it stands.
    ValueError if the text cannot be decoded, a line has too many values, a quote never closes,
    there are more than `MAX_COLUMNS` columns, or the first line does not hold names.
    """
    content = _as_utf8(content, where, note)
    content = _without_remarks(content, delimiter, where, note)
    layout = _layout(_sample(content), delimiter)
    if layout.delimiter == _BLANKS:
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

    body = read_numbers(
        body.set_axis(range(body.shape[1]), axis=1),
        numbered if header is False else cells,
        layout.delimiter,
        where,
        note,
        as_text=as_text,
        padded=_may_be_padded(content, layout),
    )
    large = [cast(int, i) for i, column in body.items() if beyond_float(column)]
    # pandas leaves gaps empty where 64 bits without a sign do not hold some
    unread = [i for i, column in _text_columns(body).items() if column.eq("").any()]
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

    return table, written


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


def _without_remarks(content: bytes, delimiter: str | None, where: str, note: Note) -> bytes:
    """Leave out the lines at the top that begin with #, unless the last of them holds the names."""
    remarks = re.match(rb"\s*(#[^\r\n]*\s*)+", content)
    if remarks is None:
        return content
    lines = [line for line in remarks[0].splitlines() if line.strip()]
    rest = content[remarks.end() :]
    layout = _layout(_sample(rest), delimiter)
    last = _split(lines[-1].decode(errors="replace"), layout)
    following = _split(_first_line(rest), layout)
    n_numbers = sum(value.replace(".", "").strip().isdigit() for value in following)
    if 1 < len(last) == len(following) and 2 * n_numbers >= len(following):
        rest = lines.pop() + b"\n" + rest
    if lines:
        note(f"{where}: left out {len(lines)} lines at the top that begin with #.")
    return rest


def _first_line(content: bytes) -> str:
    line = re.match(rb"\s*([^\r\n]*)", content)
    return line[1].decode(errors="replace") if line else ""


def _split(line: str, layout: Layout) -> list[str]:
    return line.split() if layout.delimiter == _BLANKS else line.split(layout.delimiter)


def _sample(content: bytes) -> list[str]:
    """Return the first lines; what stands in quotes is taken out of them."""
    start = content[:_SAMPLE].decode(errors="replace")
    lines = re.split(r"\r\n|\n|\r", re.sub(r'"[^"]*"', '""', start))
    if len(content) > _SAMPLE and len(lines) > 1:
        lines.pop()  # cut off
    return [line for line in lines if line.strip()] or [""]


def _layout(lines: Sequence[str], delimiter: str | None) -> Layout:
    delimiter = delimiter or _delimiter(lines)
    below = lines[1:] or lines
    spaced = delimiter != _BLANKS and all(
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
        return _BLANKS
    return max(candidates or [","], key=lambda mark: counts[mark][:2])


def _has_blanks(lines: Sequence[str]) -> bool:
    """Return whether blanks separate columns: as many in each line, one of them all numbers."""
    rows = [line.split() for line in lines]
    if len(rows[0]) < 2 or len({len(row) for row in rows}) > 1:
        return False
    columns = zip(*(rows[1:] or rows), strict=True)
    return any(all(re.fullmatch(r"[+-]?[\d.,]+(e[+-]?\d+)?", v) for v in c) for c in columns)


def _may_be_padded(content: bytes, layout: Layout) -> bool:
    """Return whether a value may be a whole number with a zero in front; no date or time is."""
    delimiter = rb"\s" if layout.delimiter == _BLANKS else re.escape(layout.delimiter).encode()
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
    if layout.delimiter == _BLANKS:
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
