"""Read and write tables: CSV, TSV, Parquet and npz; "-" is standard input or output."""

import io
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearwise.data.delimited import read_delimited
from nearwise.data.npz import FEATURE_NAMES, Arrays, read_arrays, write_arrays
from nearwise.names import nearest_names
from nearwise.safe_files import standard_output, write_whole

Format = Literal["csv", "tsv", "parquet", "npz"]
FORMATS: tuple[Format, ...] = ("csv", "tsv", "parquet", "npz")
_SUFFIXES: dict[str, Format] = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".parquet": "parquet", ".pq": "parquet",
    ".npz": "npz",
}  # fmt: skip
_PARQUET_MAGIC = b"PAR1"
_ZIP_MAGIC = b"PK\x03\x04"


def table_format(path: str | os.PathLike[str]) -> Format | None:
    """Return the format that the suffix of `path` names, or None for any other suffix."""
    return _SUFFIXES.get(Path(path).suffix.lower())


def read_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a table with named columns.

    The suffix decides (.csv, .tsv, .tab, .parquet, .pq, .npz). Standard input and files with any
    other suffix are told by their first bytes: Parquet, npz, else CSV. The delimiter of a CSV is
    whichever of comma, semicolon and tab occurs most in its header (comma on a tie). Numbers are
    read to the last bit; text such as 01 becomes a number, dates stay text. pandas' usual words for
    missing values (empty, NA, None, nan, ...) count as missing, and so do values that a short line
    lacks; a column name that occurs again gets .1, .2, ... appended. An npz gives columns f0, f1,
    ... from a feature array (X, features, ...), then one column for each one-dimensional array of
    the same length.

    Parameters
    ----------
    path : path or "-"
        File, or "-" for standard input.

    Returns
    -------
    table : DataFrame of shape (n_rows, n_columns)
        At least one row and one column; text column names; rows numbered from 0.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is empty, has no rows, or cannot be read in its format.
    OSError
        If the file cannot be opened.
    """
    if str(path) == "-":
        where, content = "standard input", sys.stdin.buffer.read()
    else:
        where, content = str(path), _read_bytes(Path(path))
    if not content or content.isspace():
        raise ValueError(f"{where} is empty. Pass a table with a header and at least one row.")
    known = None if str(path) == "-" else table_format(path)
    table = _parse(content, known or _sniff(content), where)
    table.columns = pd.Index([str(name) for name in table.columns])
    if table.empty:
        raise ValueError(
            f"{where} has {table.shape[1]} columns and {len(table)} rows. "
            "Pass a table with at least one row."
        )
    return table


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        folder = path.parent
        tables = [p for p in sorted(folder.glob("*")) if table_format(p)] if folder.is_dir() else []
        stems = {p.stem: p.name for p in tables}  # an ending alike says nothing
        guess = nearest_names(path.stem, stems)
        hint = f" Its folder holds {', '.join(p.name for p in tables[:8])}." if tables else ""
        hint = f" Did you mean {stems[guess[0]]!r}?" if guess else hint
        raise FileNotFoundError(f"No file {path}.{hint} Check the path.") from error
    except IsADirectoryError as error:
        raise IsADirectoryError(f"{path} is a folder; pass a file in it.") from error


def _sniff(content: bytes) -> Format:
    if content.startswith(_PARQUET_MAGIC):
        return "parquet"
    return "npz" if content.startswith(_ZIP_MAGIC) else "csv"


def _parse(content: bytes, form: Format, where: str) -> pd.DataFrame:
    if form == "npz":
        return _from_arrays(read_arrays(content, where), where)
    if form == "parquet":
        return _parse_parquet(content, where)
    return _parse_text(content, "\t" if form == "tsv" else None, where)


def _parse_parquet(content: bytes, where: str) -> pd.DataFrame:
    try:
        table = pd.read_parquet(io.BytesIO(content))
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these two
        raise ValueError(
            f"{where} cannot be read as Parquet: {error}. Write it anew, or rename it to .csv if "
            "it is text."
        ) from error
    named = [name is not None for name in table.index.names]
    return table.reset_index(drop=not all(named))


def _parse_text(content: bytes, delimiter: str | None, where: str) -> pd.DataFrame:
    try:
        header = content.lstrip().partition(b"\n")[0].decode("utf-8-sig")
        with warnings.catch_warnings():
            # lines longer than the header: pandas would drop their last values
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return read_delimited(
                io.BytesIO(content),
                encoding="utf-8-sig",
                sep=delimiter or _delimiter(header),
                index_col=False,
                low_memory=False,
            )
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 text ({error.reason}). Save it as UTF-8, or as Parquet."
        ) from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        raise ValueError(
            f"{where} cannot be read as CSV: {error}. No line may have more values than the header."
        ) from error


def _delimiter(header: str) -> str:
    outside = "".join(header.split('"')[::2])
    return max(",;\t", key=outside.count)


def _from_arrays(arrays: Arrays, where: str) -> pd.DataFrame:
    matrix = next((n for n in FEATURE_NAMES if n in arrays and arrays[n].ndim == 2), None)
    n_rows = len(arrays[matrix]) if matrix else len(np.atleast_1d(next(iter(arrays.values()))))
    columns: Arrays = {}
    if matrix:
        X = arrays[matrix]
        columns |= {f"f{i}": X[:, i] for i in range(X.shape[1])}
    columns |= {n: a for n, a in arrays.items() if n != matrix and a.shape == (n_rows,)}
    left = {name: a.shape for name, a in arrays.items() if name != matrix and name not in columns}
    if not columns or left:
        raise ValueError(
            f"{where} is no table: it holds { ({n: a.shape for n, a in arrays.items()}) }. Store "
            f"one two-dimensional feature array ({', '.join(FEATURE_NAMES)}) and "
            "one-dimensional arrays of the same length."
        )
    return pd.DataFrame(columns)


def write_table(
    table: pd.DataFrame, path: str | os.PathLike[str], *, format: Format | None = None
) -> None:
    """Write a table without its index; the file appears whole or not at all.

    `read_table` gives the same values back. Parquet keeps the type of every column; CSV and TSV
    keep numbers to the last bit but no types: categories become text, text like 007 a number,
    empty text missing. npz stores columns f0, f1, ... of one
    numeric type as one array X (they come first when read) and every other column as an array of
    its own, categories as text.

    Parameters
    ----------
    table : DataFrame of shape (n_rows, n_columns)
        What to write; column names must differ.
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
        If the file cannot be written (no such folder, read-only, disk full); a file that was
        there is left as it was.
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
        return write_arrays(_to_arrays(table))
    text = table.to_csv(index=False, sep="\t" if form == "tsv" else ",", lineterminator="\n")
    return text.encode("utf-8")


def _to_arrays(table: pd.DataFrame) -> Arrays:
    packed: list[str] = []
    while f"f{len(packed)}" in table.columns and "X" not in table.columns:
        packed.append(f"f{len(packed)}")
    types = set(table[packed].dtypes)
    arrays: Arrays = {}
    # one array for embeddings; columns of several types keep an array each
    if len(types) == 1 and isinstance(kind := types.pop(), np.dtype) and kind.kind in "fiu":
        arrays["X"] = table[packed].to_numpy()
    else:
        packed = []
    for name in table.columns:
        if name not in packed:
            arrays[name] = _plain(table[name])
    return arrays


def _plain(column: "pd.Series[Any]") -> NDArray[np.generic]:
    """Return a column as numbers, truth values or fixed-width text."""
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        numeric = column.astype(float) if column.isna().any() else column
        return np.asarray(numeric.to_numpy())
    if column.isna().any():
        raise ValueError(
            f"Column {column.name!r} has missing text, which npz cannot hold. Write Parquet or CSV."
        )
    return column.astype(str).to_numpy(dtype=str)


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
