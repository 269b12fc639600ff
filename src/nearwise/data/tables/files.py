"""Read and write tables; "-" is standard input or output."""

import io
import os
import re
import stat
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pandas as pd

from nearwise.data.tables.cells import Cells, with_words
from nearwise.data.tables.delimited import parse_text
from nearwise.data.tables.documents import parse_json, parse_parquet
from nearwise.data.tables.durations import with_durations
from nearwise.data.tables.npz import of_table, read_arrays, to_table, write_arrays
from nearwise.data.tables.numeric_columns import Learned, Written
from nearwise.data.tables.sheets import parse_excel
from nearwise.data.tables.unpack import (
    COMPRESSED_SUFFIXES,
    ZIP_MAGIC,
    Note,
    is_workbook,
    refuse_other_kinds,
    unpack,
    zip_names,
)
from nearwise.names import did_you_mean, nearest_names
from nearwise.safe_files import standard_output, write_whole
from nearwise.warn import warn_user

Format = Literal["csv", "tsv", "parquet", "npz"]
FORMATS: tuple[Format, ...] = ("csv", "tsv", "parquet", "npz")
_SUFFIXES: dict[str, Format] = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".parquet": "parquet", ".pq": "parquet",
    ".npz": "npz",
}  # fmt: skip
PARQUET_MAGIC = b"PAR1"
_DEVICE_BYTES = 1 << 20  # most bytes read from a device
_READ_ONLY_SUFFIXES = {
    ".xlsx": "excel", ".xlsm": "excel", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"
}  # fmt: skip
_NAMED = ("parquet", "npz", "json", "jsonl")  # formats with a name for every column


def table_format(path: str | os.PathLike[str]) -> Format | None:
    """Return the format for the suffix of `path`, or None for any other suffix."""
    return _SUFFIXES.get(Path(path).suffix.lower())


def read_table(
    path: str | os.PathLike[str],
    *,
    header: bool | None = None,
    known: Collection[str] = (),
    like: Learned | None = None,
    keep_words: Collection[str] = (),
    sheet: str | int | None = None,
    note: Note | None = None,
) -> pd.DataFrame:
    """Read a table: delimited text, Parquet, Excel, JSON, JSON lines or npz.

    Compressed files (.gz, .bz2, .xz, .zst, .zip of one file) are unpacked first. The format is
    detected from the first bytes, then from the suffix; by default it is delimited text. Its
    delimiter is the one of comma, semicolon, tab and bar that occurs equally often in the first
    lines, or else most often in the first line; without any of them values are separated by blanks.
    Encodings are UTF-8, UTF-16 with a byte order mark, or Western European (cp1252). Numbers are
    read exactly; codes such as 01 and dates stay text. Columns with decimal commas (1,5) or commas
    at thousands (1,000) are numbers. pandas' words for missing values (empty, NA, None, nan, ...),
    a lone ? and missing values of short lines are missing. An npz has columns f0, f1, ... from a
    feature array (X, features, ...), then one column per one-dimensional array of equal length.

    Parameters
    ----------
    path : path or "-"
        File, or "-" for standard input.
    header : bool, optional
        Whether the first line of text or of a sheet holds column names. Without names the columns
        are named "0", "1", ... By default the first line holds names; ValueError if it looks like
        data.
    known : collection of str
        Expected column names; a first line with all of them holds names.
    like : AttnKNNClassifier, optional
        Model for the rows; numbers are read in the format of its training table. If 8.500 was
        8500 there, it is 8500 here, even in an ambiguous file. Columns with a special number format
        stay text, and the model parses them.
    keep_words : collection of str
        Text columns in which NA, None and the like are words; only empty cells are missing.
    sheet : str or int, optional
        Sheet of an Excel workbook: its name, or its number, counted from 1. By default the first
        one, or the only one with a table if the first has none.
    note : callable, optional
        Called with a sentence about each change to the content; by default a warning.

    Returns
    -------
    table : DataFrame of shape (n_rows, n_columns)
        At least one row and one column; text column names, all different; rows numbered from 0.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is empty, has no rows, cannot be read in its format, holds more than 50 MB
        and more than 200 times its size (Parquet: 1,000 times), the first line seems to be data,
        a column name occurs more than once, or a column of `keep_words` is missing.
    OSError
        If the file cannot be opened.
    ImportError
        If an Excel file is read without the extra "excel".
    """
    options: dict[str, Any] = {"known": known, "like": like, "keep_words": keep_words}
    return read_cells(path, header=header, sheet=sheet, note=note, **options)[0]


def read_cells(
    path: str | os.PathLike[str],
    *,
    header: bool | None = None,
    known: Collection[str] = (),
    like: Learned | None = None,
    keep_words: Collection[str] = (),
    sheet: str | int | None = None,
    note: Note | None = None,
) -> tuple[pd.DataFrame, Cells]:
    """Read a table as `read_table` does, and return a function for its original columns."""
    if str(path) == "-":
        where, content = "standard input", sys.stdin.buffer.read()
    else:
        where, content = str(path), _read_bytes(Path(path))
    content = unpack(content, where)
    if not content or content.isspace():
        raise ValueError(f"{where} is empty. Pass a table with a header and at least one row.")
    form = _form(content, None if str(path) == "-" else Path(path))
    if header is False and form in _NAMED:
        raise ValueError(
            f"{where} names its columns itself, as {form} always does. Leave header=False "
            "(--no-header) out."
        )
    if sheet is not None and form != "excel":
        raise ValueError(
            f"{where} is read as {form} and has no sheets. Leave sheet= (--sheet) out."
        )
    notes: list[str] = []
    written = Written() if like is None else like.report_.written
    table, cells = _parse(content, form, where, header, known, written, sheet, notes.append)
    table.columns = pd.Index([str(name) for name in table.columns])
    if table.empty:
        raise ValueError(
            f"{where} has {table.shape[1]} columns and {len(table)} rows. "
            "Pass a table with at least one row."
        )
    twice = table.columns[table.columns.duplicated()].unique()
    if len(twice):
        raise ValueError(f"{where}: the columns {list(twice)} occur more than once. Rename them.")
    with_durations(table, where, notes.append)
    for name in keep_words:
        if name not in table:
            raise ValueError(f"{where} has no column {name!r}.{did_you_mean(name, table.columns)}")
        table[name] = with_words(cells([name])[name])
    for text in notes:  # only for usable tables
        (note or warn_user)(text)
    return table, cells


def _read_bytes(path: Path) -> bytes:
    with open_table(path) as file:
        if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
            return file.read(_DEVICE_BYTES)  # some never end
        return file.read()


def open_table(path: Path) -> BinaryIO:
    """Open a file for reading; an error lists the tables in its folder."""
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        folder = path.parent
        tables = [p for p in sorted(folder.glob("*")) if table_format(p)] if folder.is_dir() else []
        stems = {p.stem: p.name for p in tables}  # compare without suffixes
        guess = nearest_names(path.stem, stems)
        hint = f" Its folder holds {', '.join(p.name for p in tables[:8])}." if tables else ""
        hint = f" Did you mean {stems[guess[0]]!r}?" if guess else hint
        raise FileNotFoundError(f"No file {path}.{hint} Check the path.") from error
    except IsADirectoryError as error:
        raise IsADirectoryError(f"{path} is a folder; pass a file in it.") from error


def _form(content: bytes, path: Path | None) -> str:
    """Detect the format from the first bytes, then from the suffix before any compression."""
    if content.startswith(PARQUET_MAGIC):
        return "parquet"
    if content.startswith(ZIP_MAGIC) and is_workbook(zip_names(content)):
        return "excel"
    if path is not None and path.suffix.lower() in COMPRESSED_SUFFIXES:
        path = path.with_suffix("")
    suffix = "" if path is None else path.suffix.lower()
    known = _SUFFIXES.get(suffix) or _READ_ONLY_SUFFIXES.get(suffix)
    if content.startswith(ZIP_MAGIC) and known != "excel":
        return "npz"
    if known in (None, "csv") and re.match(rb"\s*(\[\s*\{|\{\s*\")", content[:4096]):
        return "jsonl" if re.match(rb"\s*\{[^\n]*\}\s*\n\s*\{", content[:_DEVICE_BYTES]) else "json"
    return known or "csv"


def _parse(
    content: bytes,
    form: str,
    where: str,
    header: bool | None,
    known: Collection[str],
    like: Written,
    sheet: str | int | None,
    note: Note,
) -> tuple[pd.DataFrame, Cells]:
    if form == "excel":
        return parse_excel(content, where, note, header=header, known=known, like=like, sheet=sheet)
    if form in _NAMED:
        if form == "npz":
            table = to_table(read_arrays(content, where), where)
        elif form == "parquet":
            table = parse_parquet(content, where)
        else:
            table = parse_json(content, where, lines=form == "jsonl")
        return table, lambda names: table[list(names)]
    refuse_other_kinds(content, where)
    delimiter = "\t" if form == "tsv" else None
    options: dict[str, Any] = {"delimiter": delimiter, "header": header, "known": known}
    return parse_text(content, where, note, like=like, **options)


def write_table(
    table: pd.DataFrame, path: str | os.PathLike[str], *, format: Format | None = None
) -> None:
    """Write a table without its index, atomically.

    `read_table` returns the same values. Parquet keeps the type of every column; CSV and TSV keep
    exact numbers but no types: categories become text, text like 007 a number, empty text missing.
    npz stores columns f0, f1, ... of one numeric type as one array X (read as the first columns)
    and every other column as a separate array, categories as text.

    Parameters
    ----------
    table : DataFrame of shape (n_rows, n_columns)
        Table to write; column names must differ.
    path : path or "-"
        File, or "-" for standard output.
    format : {"csv", "tsv", "parquet", "npz"}, optional
        Default: by the suffix of `path`; CSV on standard output.

    Raises
    ------
    ValueError
        If the format is unknown, two columns share a name, or npz would have to store missing
        text.
    OSError
        If the file cannot be written (no such folder, read-only, disk full); an existing file
        is then unchanged.
    """
    form = format or ("csv" if str(path) == "-" else table_format(path))
    if form not in FORMATS:
        raise ValueError(
            f"Cannot tell the format of {path} (format={format!r}). Use a suffix among "
            f"{', '.join(_SUFFIXES)} or format= one of {', '.join(FORMATS)}."
        )
    table = table.rename(columns=str)
    twice = table.columns[table.columns.duplicated()].unique()
    if len(twice):
        raise ValueError(f"The columns {list(twice)} occur more than once. Rename them.")
    content = _serialise(table, form)
    if str(path) == "-":
        with standard_output() as stream:
            stream.flush()
            stream.buffer.write(content)
            stream.buffer.flush()
    else:
        _write_bytes(content, Path(path))


def _serialise(table: pd.DataFrame, form: Format) -> bytes:
    if form == "parquet":
        stream = io.BytesIO()
        try:
            table.to_parquet(stream, index=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The table cannot be written as Parquet: {error}. Give each column one type."
            ) from error
        return stream.getvalue()
    if form == "npz":
        return write_arrays(of_table(table))
    text = table.to_csv(index=False, sep="\t" if form == "tsv" else ",", lineterminator="\n")
    return text.encode("utf-8")


def _write_bytes(content: bytes, path: Path) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"Cannot write {path}: no folder {folder}. Make it first.")
    try:
        write_whole(path, content)
    except OSError as error:
        raise OSError(
            error.errno,
            f"Cannot write {path}: {error.strerror or error}. Choose another place "
            "or free some space; what was there is unchanged.",
        ) from error
