"""Tables in other formats than delimited text: Parquet, JSON, JSON lines."""

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nearwise.data.tables.cells import exact_wholes
from nearwise.data.tables.unpack import check_expansion, explained

# columns with few different values take almost no space in Parquet
_PARQUET_RATIO = 1000
_TEXT_BYTES = 16  # least bytes of a text value


def parse_parquet(content: bytes, where: str) -> pd.DataFrame:
    """Read a Parquet file, if its declared size is in proportion to its content.

    Decimals become float64; a named index becomes a column. ValueError if it cannot be read,
    declares far more rows than it holds bytes (see `check_expansion`), or has columns of lists,
    structures or bytes.
    """
    with explained(where, "Parquet", "Write it again, or rename it to .csv if it is text."):
        file = pq.ParquetFile(io.BytesIO(content))
        schema, n_rows = file.schema_arrow, file.metadata.num_rows
        n_bytes = n_rows * sum(_n_bytes(field.type) for field in schema)
        check_expansion(n_bytes, len(content), where, ratio=_PARQUET_RATIO)
        n_bytes = _text_bytes(content, [f.name for f in schema if _is_text(f.type)])
        check_expansion(n_bytes, len(content), where, ratio=_PARQUET_RATIO)
    odd = [f"{f.name!r} ({f.type})" for f in schema if _is_nested(f.type)]
    if odd:
        raise ValueError(
            f"{where}: columns {', '.join(odd[:5])} hold lists, structures or bytes. Store one "
            "number or text per cell."
        )
    with explained(where, "Parquet", "Write it again."):
        table = pd.read_parquet(io.BytesIO(content))
        gaps = {f.name for f in schema if pa.types.is_integer(f.type)}
        gaps = {name for name in gaps if name in table and table[name].dtype.kind == "f"}
        if gaps:
            wholes = pq.read_table(io.BytesIO(content), columns=sorted(gaps))
            table = table.assign(**{name: _with_gaps(wholes[name], table) for name in gaps})
    named = [name is not None for name in table.index.names]
    return _with_plain_cells(table.reset_index(drop=not all(named)), where)


def _with_gaps(wholes: pa.ChunkedArray, table: pd.DataFrame) -> pd.Series:
    """Convert integers with missing values exactly; pandas would make floats of them."""
    kind = pd.UInt64Dtype() if pa.types.is_unsigned_integer(wholes.type) else pd.Int64Dtype()
    values = wholes.to_pandas(types_mapper=lambda _: kind)
    return values.astype(kind).set_axis(table.index)


def _is_nested(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _text_bytes(content: bytes, names: list[str]) -> int:
    """Return the bytes of text columns, without decoding repeated values."""
    n_bytes = 0
    if names:
        file = pq.ParquetFile(io.BytesIO(content), read_dictionary=names)
        for batch in file.iter_batches(columns=names):
            for column in batch.columns:
                lengths = pc.cast(pc.binary_length(column.dictionary), pa.int64())
                n_bytes += pc.sum(lengths.take(column.indices)).as_py() or 0
    return n_bytes


def _n_bytes(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # no fixed width
        return _TEXT_BYTES


def parse_json(content: bytes, where: str, *, lines: bool = False) -> pd.DataFrame:
    """Read JSON: a list of objects, an object of columns, or an object on each of its `lines`.

    null and missing members are missing values; types are those of JSON. ValueError if the content
    is not JSON (in UTF-8, UTF-16 or UTF-32) or not a table, or a cell holds a list or an object.
    """
    try:
        text = content.decode(json.detect_encoding(content))
        records: Any = list(_objects(text)) if lines else json.loads(text)
        if isinstance(records, dict) and {"columns", "data"} <= set(records):
            records, names = records["data"], records["columns"]
            table = pd.DataFrame(records, columns=names)
        elif _is_records(records) or isinstance(records, dict):
            table, names = pd.DataFrame(records), None
        else:
            raise ValueError("it is neither a list of objects nor an object of columns")
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(
            f"{where} cannot be read as {'JSON lines' if lines else 'JSON'}: {error}. Write a list "
            'of objects such as [{"width": 1.5, "label": "a"}], or one object per line (.jsonl).'
        ) from error
    table = table.reset_index(drop=True)
    floats = [str(name) for name, column in table.items() if column.dtype.kind == "f"]
    if floats:
        held = pd.DataFrame(records, columns=names, dtype=object)
        table = table.assign(**{name: _wholes(table[name], held[name]) for name in floats})
    return _with_plain_cells(table, where)


def _wholes(column: pd.Series, held: pd.Series) -> pd.Series:
    """Convert a float column to integers with missing values, if all cells are integers."""
    cells = [None if gap else cell for cell, gap in zip(held, column.isna(), strict=True)]
    if {type(cell) for cell in cells} - {type(None)} != {int}:
        return column
    exact = exact_wholes(cells, column.index)
    return column if exact is None else exact


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):  # strings may have other line ends
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            where = f"line {number}, character {error.colno}"
            raise ValueError(f"{where}: {error.msg}") from error
        if not isinstance(record, dict):
            raise ValueError(f"line {number} is not an object")
        yield record


def _is_records(records: object) -> bool:
    return isinstance(records, list) and all(isinstance(record, dict) for record in records)


def _with_plain_cells(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """Convert decimals and numbers beyond 64 bits to float64; ValueError for nested cells."""
    for name, kind in table.dtypes.items():
        if not pd.api.types.is_object_dtype(kind):
            continue
        kinds = {type(value) for value in table[name].dropna()}
        if kinds & {list, dict, tuple, set}:
            raise ValueError(
                f"{where}: column {name!r} holds lists or objects. Store one number or text "
                "per cell."
            )
        if kinds and kinds <= {int, float, Decimal}:
            table[name] = table[name].astype(float)
    return table
